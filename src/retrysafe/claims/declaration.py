"""What a team declares of an operation: a sentence, whether it is idempotent by itself, and its side effects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, get_args

from retrysafe.errors import ConfigurationError

Safety = Literal["safe", "idempotent", "neither"]
"""Without retrysafe: "safe" changes nothing, "idempotent" may be done twice, "neither" must not (RFC 9110, 9.2)."""


class Declaration(NamedTuple):
    """An operation in words.

    sentence: what it does, and what counts as the same intent.
    safety: whether it could be repeated without retrysafe; None when nothing is said.
    side_effects: what it changes or causes, each in a few words.
    """

    sentence: str = ""
    safety: Safety | None = None
    side_effects: tuple[str, ...] = ()


def declaration_of(
    function: Any, sentence: str | None, safety: Safety | None, side_effects: Iterable[str]
) -> Declaration:
    """The declaration of a function; without ``sentence`` it is the first line of its docstring.

    Raises `ConfigurationError` for another ``safety``, one text as ``side_effects``, and effects of what is "safe".
    """
    if safety is not None and safety not in get_args(Safety):
        raise ConfigurationError(f"safety={safety!r}: expected one of {', '.join(get_args(Safety))}.")
    if isinstance(side_effects, str):
        raise ConfigurationError(f"side_effects={side_effects!r}: give a list, such as [{side_effects!r}].")
    effects = tuple(side_effects)
    if safety == "safe" and effects:
        raise ConfigurationError(
            "safety='safe' excludes side_effects=: an operation that changes something is not safe."
        )
    return Declaration(first_line(function) if sentence is None else sentence, safety, effects)


def first_line(function: Any) -> str:
    """The first line of a function's docstring, or nothing."""
    is_named = hasattr(function, "__name__") and not isinstance(function, type)
    text = (function.__doc__ if is_named else None) or ""
    return str(text).strip().partition("\n")[0].rstrip()
