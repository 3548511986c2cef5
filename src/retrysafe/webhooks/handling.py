"""One event, handled inside its claim: twins for sync and async handlers."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from retrysafe.boundary import Boundary
from retrysafe.claim import Claim
from retrysafe.codec import JSONCodec
from retrysafe.core.keys import LONGEST
from retrysafe.doors import enter, leave, refuse_bound_to_threads
from retrysafe.errors import ConfigurationError, RetryTransaction
from retrysafe.once import fingerprint_of, refuse_unfinished
from retrysafe.webhooks.deliveries import Event
from retrysafe.webhooks.handlers import Handler

Around = Callable[[], AbstractContextManager[Any]]
"""What is entered inside the claim around a sync handler."""

HANDLED: dict[str, Any] = {"handled": True}
"""The stored result of an event that a handler has handled."""

_CODEC = JSONCodec()
"""What stores the results, which are ours: a codec of the boundary's for those of its functions may not know them."""


class Handling:
    """One event on its way to its handler, which runs at most once, and again only if its transaction must."""

    def __init__(
        self,
        boundary: Boundary,
        operation: str,
        event: Event[Any],
        handler: Handler | None,
        around: Around = nullcontext,
    ) -> None:
        self.handler = handler
        self.raised: BaseException | None = None
        """What the handler raised: the claim's errors are answered, the handler's are the application's."""
        self._boundary = boundary
        self._operation = operation
        self._event = event
        self._around = around

    def run(self) -> bool:
        """Handle the event; False when it was handled before. Raises what the claim or the handler raises."""
        restarts = 0
        while True:
            claim = self._claim()
            try:
                with claim:
                    if not claim.replayed:
                        self._handle(claim)
                return not claim.replayed
            except RetryTransaction:
                pause = claim.restart_pause(restarts)
                if pause is None:
                    raise
            restarts += 1
            time.sleep(pause)

    async def arun(self) -> bool:
        """`run` for a coroutine function as the handler, or for none."""
        refuse_bound_to_threads(self._boundary)
        restarts = 0
        while True:
            claim = self._claim()
            try:
                await enter(claim, self._boundary)
                await self._ahandle_and_leave(claim)
                return not claim.replayed
            except RetryTransaction:
                pause = claim.restart_pause(restarts)
                if pause is None:
                    raise
            restarts += 1
            await asyncio.sleep(pause)

    def _claim(self) -> Claim:
        """The claim of the event; of one that nobody handles apart from it, so that its handling stays possible.

        Its type may not be signed, and may have a handler when it is delivered again.
        """
        event, operation = self._event, self._operation if self.handler else unhandled(self._operation)
        fingerprint = fingerprint_of(dict(event.payload))
        return self._boundary.open(event.key, operation=operation, fingerprint=fingerprint, codec=_CODEC)

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

    def _call_around(self, handler: Handler, claim: Claim) -> None:
        """What ``around`` suppresses is raised nevertheless: the event was not handled."""
        failed: BaseException | None = None
        with self._around():
            try:
                refuse_unfinished(claim, handler.function(self._given(handler, claim)))
            except BaseException as error:
                failed = error
                raise
        if failed is not None:
            raise failed

    async def _ahandle_and_leave(self, claim: Claim) -> None:
        try:
            if not claim.replayed:
                await self._ahandle(claim)
        except BaseException as error:
            await leave(claim, error, self._boundary)
            raise
        await leave(claim, None, self._boundary)

    async def _ahandle(self, claim: Claim) -> None:
        if self.handler is None:
            self._keep(claim)
            return
        try:
            refuse_unfinished(claim, await self.handler.function(self._given(self.handler, claim)), ran=True)
        except BaseException as error:
            self.raised = error
            raise
        claim.result = HANDLED

    def _given(self, handler: Handler, claim: Claim) -> Event[Any]:
        """The event as its handler takes it, which has not run if that fails."""
        try:
            taken = handler.takes(self._event)
        except BaseException:
            claim.not_executed()
            raise
        return dataclasses.replace(taken, claim=claim)

    def _keep(self, claim: Claim) -> None:
        """Nobody handles events of this type: it is acknowledged, and its body kept as the result, if it fits."""
        event, largest = self._event, self._boundary.largest_result
        result: dict[str, Any] = {"handled": False, "type": event.type[:LONGEST]}
        if largest is None or 2 * len(event.body) + 8 * LONGEST <= largest:
            result["body"] = event.body
        claim.notice("unhandled", scheme=event.scheme, event_type=event.type)
        claim.result = result


def unhandled(operation: str) -> str:
    """The operation under which events are kept that nobody handles."""
    return f"{operation} unhandled"
