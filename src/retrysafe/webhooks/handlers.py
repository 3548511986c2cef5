"""Which handler an event has."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from retrysafe.entrypoint import Function, function_of
from retrysafe.errors import ConfigurationError
from retrysafe.webhooks.deliveries import WebhookEvent

T = TypeVar("T")


def taken(handler: Function, event: WebhookEvent[Any]) -> WebhookEvent[Any]:
    """The event with its data as its handler takes it."""
    return event if handler.parse is None else dataclasses.replace(event, data=handler.parse(event.data))


class Handlers:
    """The handlers of a receiver by the types of their events, and the one for all others."""

    def __init__(self) -> None:
        self._by_type: dict[str, Function] = {}
        self._otherwise: Function | None = None

    def add(
        self, types: tuple[str, ...], function: Callable[[WebhookEvent[T]], Any], parse: Callable[[Any], T] | None
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
            self._by_type[kind] = function_of(function, parse)

    def otherwise(self, function: Callable[[WebhookEvent[Any]], Any]) -> None:
        """Let ``function`` handle all others. Raises `ConfigurationError` for a second one."""
        if self._otherwise is not None:
            raise ConfigurationError("There is an @otherwise already.")
        self._otherwise = function_of(function, None)

    def find(self, kind: str) -> Function | None:
        """The handler for events of this type."""
        return self._by_type.get(kind, self._otherwise)
