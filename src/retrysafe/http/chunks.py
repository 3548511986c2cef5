"""A guarded request in async code whose response is one value: what aiohttp and gRPC share.

`retrysafe.http.exchange` has the capture of its response, and the twin of this for sync code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from retrysafe.claims.claim import Claim
from retrysafe.errors import RetrysafeError, RetryTransaction
from retrysafe.http import nested
from retrysafe.http.bodies import Body
from retrysafe.http.exchange import Capture
from retrysafe.http.guard import RETURNED, Guard
from retrysafe.http.messages import Request, Response

Handler = Callable[[], Awaitable[Response]]


class UnaryExchange:
    """One guarded request: claimed, answered by a handler, recorded, and only then given back."""

    def __init__(self, guard: Guard, request: Request, key: str, body: Body, whose: str | None) -> None:
        self.guard = guard
        self.claim: Claim | None = None
        self.request = request
        self.key = key
        self.course = RETURNED
        """The origin of the handler's response."""
        self._body = body
        self._whose = whose

    async def attempt(self, handler: Handler) -> Response | None:
        """Claim the key and run ``handler``, again if its transaction must be.

        Returns None when the handler's own response is to go out, and else the response in its place. Raises
        `Refusal` for what the layer answers by itself, and what the handler raises.
        """
        restarts = 0
        while True:
            try:
                stored = await self._begin()
                if stored is None:
                    await self._run(handler)
                return stored
            except RetryTransaction as error:
                pause = None if self.claim is None else self.claim.restart_pause(restarts)
                if pause is None:
                    raise self.guard.refusal(error) from error
            restarts += 1
            await asyncio.sleep(pause)

    async def _begin(self) -> Response | None:
        """Claim the key; the stored response when there is nothing to run."""
        self.claim = None
        claim = self.guard.claim(self.request, self.key, self._body, self._whose)
        try:
            await self.guard.entry.enter(claim)
        except RetryTransaction:
            raise
        except RetrysafeError as error:
            if self.guard.passes(error):
                return None
            raise self.guard.refusal(error) from error
        self.claim = claim
        if not claim.replayed:
            return None
        await self.guard.entry.leave(claim, None)
        return self.guard.replay(claim)

    async def _run(self, handler: Handler) -> None:
        claim = self.claim
        if claim is None:  # passed over, because the store does not answer
            with nested.around(self):
                await handler()
            return
        try:
            with nested.around(self):
                response = await handler()
            self.guard.judge(claim, Capture(self.guard).whole(response), self.request, self.course)
        except BaseException as error:
            await self._leave(claim, error)
            raise
        await self._leave(claim, None)

    async def _leave(self, claim: Claim, error: BaseException | None) -> None:
        try:
            await self.guard.entry.leave(claim, error)
        except RetryTransaction:
            raise
        except RetrysafeError as failure:
            raise self.guard.refusal(failure) from failure
        lost = self.guard.lost(error)
        if lost is not None:
            raise lost from error
