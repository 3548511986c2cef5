"""Functions of the user's: which kind they are, and what they say that they return."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

from retrysafe import lazy
from retrysafe.errors import ConfigurationError


class NotYet(ConfigurationError):
    """The annotation names what does not exist, or only not yet."""


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Tell whether it is a coroutine function, or an object that is called like one."""
    return any(map(lazy.inspect.iscoroutinefunction, _called(function)))


def is_generator_function(function: Callable[..., Any]) -> bool:
    """Tell whether calling it makes a generator, of either colour, and runs nothing."""
    called = _called(function)
    return any(map(lazy.inspect.isgeneratorfunction, called)) or any(map(lazy.inspect.isasyncgenfunction, called))


def _called(function: Callable[..., Any]) -> tuple[Any, Any]:
    return function, getattr(type(function), "__call__", None)  # noqa: B004 - of a callable object, it tells the kind


def return_annotation(function: Callable[..., Any]) -> Any:
    """Resolve the return annotation alone, so that a parameter's may name what exists only for type checkers."""
    plain = lazy.inspect.unwrap(function)
    written = getattr(plain, "__annotations__", {})
    if "return" not in written:
        return None

    def bearer() -> None: ...

    bearer.__annotations__ = {"return": written["return"]}
    try:
        hints = typing.get_type_hints(bearer, getattr(plain, "__globals__", None), include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise NotYet(
            f"The return annotation of {plain.__qualname__} cannot be resolved ({error}), and stored results are "
            "rebuilt from it: import what it names at run time, not for type checking only."
        ) from error
    return hints["return"]
