"""The team's declaration of an operation: a sentence, its own idempotency, and its side effects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from retrysafe.errors import ConfigurationError

F = TypeVar("F", bound=Callable[..., Any])
Safety = Literal["safe", "idempotent", "neither"]
"""Without retrysafe: "safe" changes nothing, "idempotent" may be done twice, "neither" must not (RFC 9110, 9.2)."""


_MARK = "__retrysafe_declaration__"


class Declaration(NamedTuple):
    """An operation in words.

    sentence: what it does, and what counts as the same intent.
    safety: whether it could be repeated without retrysafe; None when nothing is said.
    side_effects: what it changes or causes, each in a few words.
    """

    sentence: str = ""
    safety: Safety | None = None
    side_effects: tuple[str, ...] = ()


def declare(
    sentence: str | None = None, *, safety: Safety | None = None, side_effects: Iterable[str] = ()
) -> Callable[[F], F]:
    """Decorate what does the work of an operation, for people: `retrysafe describe` prints it.

    It goes on functions guarded by `Boundary.once`, handlers of HTTP routes, of an inbox's messages and of webhooks'
    events, under the decorator that registers them. Nothing else changes.

    Arguments:
        sentence: what the operation does, and what counts as the same intent; by default the first line of the
            docstring.
        safety: whether it could be repeated without retrysafe: "safe" changes nothing, "idempotent" may be done twice,
            "neither" must not (RFC 9110, section 9.2).
        side_effects: what it changes or causes, each in a few words.

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

    def mark(function: F) -> F:
        said = first_line(function) if sentence is None else sentence
        try:
            setattr(function, _MARK, Declaration(said, safety, effects))
        except AttributeError as error:
            raise ConfigurationError(f"{function!r} cannot be declared: give a function of your own.") from error
        return function

    return mark


def declaration_of(function: object) -> Declaration:
    """Return a function's declaration, under whatever decorators; by default the first line of its docstring."""
    inner: object = function
    while inner is not None:
        found = getattr(inner, _MARK, None)
        if isinstance(found, Declaration):
            return found
        inner = getattr(inner, "__wrapped__", None)
    return Declaration(first_line(function))


def first_line(function: object) -> str:
    """The first line of a function's docstring, or nothing."""
    is_named = hasattr(function, "__name__") and not isinstance(function, type)
    text = (function.__doc__ if is_named else None) or ""
    return str(text).strip().partition("\n")[0].rstrip()
