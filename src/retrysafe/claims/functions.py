"""Functions of the user's: which kind they are, and what they say that they return."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from retrysafe import lazy
from retrysafe.errors import ConfigurationError


class NotYet(ConfigurationError):
    """The annotation names what does not exist, or only not yet."""


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Tell whether it is a coroutine function, or an object that is called like one."""
    return any(map(lazy.inspect.iscoroutinefunction, _called(function)))


class FunctionKind(NamedTuple):
    """A function's kind, and the return annotation that its stored results are rebuilt from."""

    is_coroutine: bool
    returns: Any


_kinds: WeakKeyDictionary[Callable[..., Any], FunctionKind] = WeakKeyDictionary()


def kind_of(function: Callable[..., Any]) -> FunctionKind:
    """The kind of a function, found out once."""
    plain = getattr(function, "__func__", function)
    try:
        found = _kinds.get(plain)
    except TypeError:  # it cannot be referred to weakly
        return FunctionKind(is_coroutine_function(function), return_annotation(function))
    if found is None:
        found = _kinds[plain] = FunctionKind(is_coroutine_function(function), return_annotation(function))
    return found


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
