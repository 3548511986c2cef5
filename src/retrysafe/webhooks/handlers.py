"""Which handler an event has."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from retrysafe.errors import ConfigurationError
from retrysafe.once import is_coroutine_function, is_generator_function
from retrysafe.webhooks.deliveries import Event

T = TypeVar("T")


class Handler(NamedTuple):
    """A function of the user's, and what makes of the document what it takes."""

    function: Callable[[Event[Any]], Any]
    parse: Callable[[Any], Any] | None
    is_async: bool

    def takes(self, event: Event[Any]) -> Event[Any]:
        """The event with its data as the function takes it."""
        return event if self.parse is None else dataclasses.replace(event, data=self.parse(event.data))


class Handlers:
    """The handlers of a receiver by the types of their events, and the one for all others."""

    def __init__(self) -> None:
        self._by_type: dict[str, Handler] = {}
        self._otherwise: Handler | None = None

    def add(
        self, types: tuple[str, ...], function: Callable[[Event[T]], Any], parse: Callable[[Any], T] | None
    ) -> None:
        """Let ``function`` handle events of these types. Raises `ConfigurationError` for a second handler of one.

        And for a generator function, which would never run.
        """
        if not types:
            raise ConfigurationError(
                'on() names no type of event: @receiver.on("invoice.paid"), or @receiver.otherwise.'
            )
        for kind in types:
            if kind in self._by_type:
                raise ConfigurationError(f"Events of type {kind!r} have a handler already.")
            self._by_type[kind] = _handler(function, parse)

    def otherwise(self, function: Callable[[Event[Any]], Any]) -> None:
        """Let ``function`` handle all others. Raises `ConfigurationError` for a second one."""
        if self._otherwise is not None:
            raise ConfigurationError("There is an @otherwise already.")
        self._otherwise = _handler(function, None)

    def find(self, kind: str) -> Handler | None:
        """The handler for events of this type."""
        return self._by_type.get(kind, self._otherwise)


def _handler(function: Callable[[Event[Any]], Any], parse: Callable[[Any], Any] | None) -> Handler:
    if is_generator_function(function):
        raise ConfigurationError("A handler is a function or a coroutine function; to call a generator runs nothing.")
    return Handler(function, parse, is_coroutine_function(function))
