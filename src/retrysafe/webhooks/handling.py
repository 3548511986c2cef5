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


def parse_data(handler: Function, event: WebhookEvent[Any]) -> WebhookEvent[Any]:
    return event if handler.parse is None else dataclasses.replace(event, data=handler.parse(event.data))


class Handlers:
    """The handlers of a receiver by event types, and the handler of all other events."""

    def __init__(self) -> None:
        self._by_type: dict[str, Function] = {}
        self._otherwise: Function | None = None

    @property
    def types(self) -> list[str]:
        return sorted(self._by_type)

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        return {kind: self._by_type[kind].function for kind in self.types}

    def add(
        self, types: tuple[str, ...], function: Callable[[WebhookEvent[T]], Any], parse: Callable[[Any], T] | None
    ) -> None:
        """Let ``function`` handle events of these types.

        Raises `ConfigurationError` for a second handler of a type, and for a generator function, which would never run.
        """
        if not types:
            raise ConfigurationError(
                'on() needs a type of event: @receiver.on("invoice.paid"); @receiver.otherwise handles all others.'
            )
        for kind in types:
            if kind in self._by_type:
                raise ConfigurationError(f"Events of type {kind!r} already have a handler.")
            self._by_type[kind] = function_of(function, parse)

    def otherwise(self, function: Callable[[WebhookEvent[Any]], Any]) -> None:
        """Let ``function`` handle all other events. Raises `ConfigurationError` for a second one."""
        if self._otherwise is not None:
            raise ConfigurationError("The receiver already has a handler with @otherwise.")
        self._otherwise = function_of(function, None)

    def find(self, kind: str) -> Function | None:
        return self._by_type.get(kind, self._otherwise)


Around = Callable[[], AbstractContextManager[Any]]
"""Returns a context manager that is entered inside the claim, around a sync handler."""

HANDLED: dict[str, Any] = {"handled": True}
"""The stored result of an event that was handled."""


class Handling:
    """Runs the handler of one event at most once, and again only if the database restarts its transaction."""

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
        """The error of the handler, which is raised; errors of the claim become answers."""
        self._entry = boundary.entrypoint
        self._operation = operation
        self._event = event
        self._around = around

    def run(self) -> bool:
        """Handle the event; False when it was handled before. Raises the errors of the claim and of the handler."""
        return not self._entry.run(self._claim, self._handle).replayed

    async def arun(self) -> bool:
        """`run` for a coroutine function as the handler, or without a handler."""
        return not (await self._entry.arun(self._claim, self._ahandle)).replayed

    async def arun_in_threads(self) -> bool:
        """`run` on an event loop for a plain function, which runs in a thread once the event is claimed."""
        return not (await self._entry.run_in_threads(self._claim, self._handle)).replayed

    def _claim(self) -> Claim:
        """The claim of the event; without a handler, under another operation, so that it can be handled later.

        Its type may not be signed, and may have a handler when the event is delivered again.
        """
        event, operation = self._event, self._operation if self.handler else operation_without_handler(self._operation)
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
        """Call the handler within ``around``; raise an error that ``around`` suppresses: the event was not handled."""
        failed: BaseException | None = None
        with self._around():
            try:
                refuse_unfinished(claim, handler.call(self._event_for(handler, claim)))
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
            refuse_unfinished(claim, await self.handler.acall(self._event_for(self.handler, claim)))
        except BaseException as error:
            self.raised = error
            raise
        claim.result = HANDLED

    def _event_for(self, handler: Function, claim: Claim) -> WebhookEvent[Any]:
        """The event, with its data parsed; if that fails, the handler is not run."""
        try:
            given = parse_data(handler, self._event)
        except BaseException:
            claim.not_executed()
            raise
        return dataclasses.replace(given, claim=claim)

    def _keep(self, claim: Claim) -> None:
        """Acknowledge an event without a handler, and store its body as the result, if it is small enough."""
        event, largest = self._event, self._entry.largest_result
        result: dict[str, Any] = {"handled": False, "type": event.type[:LONGEST]}
        if largest is None or 2 * len(event.body) + 8 * LONGEST <= largest:
            result["body"] = event.body
        claim._emit("unhandled", scheme=event.scheme, event_type=event.type)
        claim.result = result


def operation_without_handler(operation: str) -> str:
    return f"{operation} unhandled"
