"""Finds the handler of an event and runs it inside its claim: twins for sync and async handlers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from retrysafe.boundary import Boundary
from retrysafe.claims.claim import Claim
from retrysafe.claims.decorator import fingerprint_of, refuse_unfinished
from retrysafe.entrypoint import CODEC, Function, function_of
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.keys import LONGEST
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

    @property
    def types(self) -> list[str]:
        """The types of events that have a handler of their own."""
        return sorted(self._by_type)

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """The function of each of these types."""
        return {kind: self._by_type[kind].function for kind in self.types}

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


Around = Callable[[], AbstractContextManager[Any]]
"""What is entered inside the claim around a sync handler."""

HANDLED: dict[str, Any] = {"handled": True}
"""The stored result of an event that a handler has handled."""


class Handling:
    """One event on its way to its handler, which runs at most once, and again only if its transaction must."""

    def __init__(
        self,
        boundary: Boundary,
        operation: str,
        event: WebhookEvent[Any],
        handler: Function | None,
        around: Around = nullcontext,
    ) -> None:
        self.handler = handler
        self.raised: BaseException | None = None
        """What the handler raised: the claim's errors are answered, the handler's are the application's."""
        self._entry = boundary.entrypoint
        self._operation = operation
        self._event = event
        self._around = around

    def run(self) -> bool:
        """Handle the event; False when it was handled before. Raises what the claim or the handler raises."""
        return not self._entry.run(self._claim, self._handle).replayed

    async def arun(self) -> bool:
        """`run` for a coroutine function as the handler, or for none."""
        return not (await self._entry.arun(self._claim, self._ahandle)).replayed

    async def arun_in_threads(self) -> bool:
        """`run` on an event loop, with a plain function as the handler: a thread is taken when the event is claimed."""
        return not (await self._entry.run_in_threads(self._claim, self._handle)).replayed

    def _claim(self) -> Claim:
        """The claim of the event; of one that nobody handles apart from it, so that its handling stays possible.

        Its type may not be signed, and may have a handler when it is delivered again.
        """
        event, operation = self._event, self._operation if self.handler else unhandled(self._operation)
        fingerprint = fingerprint_of(dict(event.payload))
        return self._entry.open(event.key, operation=operation, fingerprint=fingerprint, codec=CODEC)

    def _handle(self, claim: Claim) -> None:
        if self.handler is None:
            self._keep(claim)
            return
        if self.handler.is_async:
            claim.not_executed()
            raise ConfigurationError(
                f"The handler of {self._event.type!r} is a coroutine function: use areceive() or ahandle(), "
                "or an ASGI integration; or make it a plain function."
            )
        try:
            self._call_around(self.handler, claim)
        except BaseException as error:
            self.raised = error
            raise
        claim.result = HANDLED

    def _call_around(self, handler: Function, claim: Claim) -> None:
        """What ``around`` suppresses is raised nevertheless: the event was not handled."""
        failed: BaseException | None = None
        with self._around():
            try:
                refuse_unfinished(claim, handler.call(self._given(handler, claim)))
            except BaseException as error:
                failed = error
                raise
        if failed is not None:
            raise failed

    async def _ahandle(self, claim: Claim) -> None:
        if self.handler is None:
            self._keep(claim)
            return
        try:
            refuse_unfinished(claim, await self.handler.acall(self._given(self.handler, claim)), ran=True)
        except BaseException as error:
            self.raised = error
            raise
        claim.result = HANDLED

    def _given(self, handler: Function, claim: Claim) -> WebhookEvent[Any]:
        """The event as its handler takes it, which has not run if that fails."""
        try:
            given = taken(handler, self._event)
        except BaseException:
            claim.not_executed()
            raise
        return dataclasses.replace(given, claim=claim)

    def _keep(self, claim: Claim) -> None:
        """Nobody handles events of this type: it is acknowledged, and its body kept as the result, if it fits."""
        event, largest = self._event, self._entry.largest_result
        result: dict[str, Any] = {"handled": False, "type": event.type[:LONGEST]}
        if largest is None or 2 * len(event.body) + 8 * LONGEST <= largest:
            result["body"] = event.body
        claim.emit("unhandled", scheme=event.scheme, event_type=event.type)
        claim.result = result


def unhandled(operation: str) -> str:
    """The operation under which events are kept that nobody handles."""
    return f"{operation} unhandled"
