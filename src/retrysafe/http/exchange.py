"""A guarded request in sync code: claimed, answered by a handler, recorded, and only then seen by the client.

What WSGI, Flask and Django share. `retrysafe.http.asgi.Exchange` is its twin for ASGI, where a response is a
sequence of messages instead of an iterator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from retrysafe.claim import Claim
from retrysafe.errors import RetrysafeError, RetryTransaction
from retrysafe.http.bodies import Body
from retrysafe.http.guard import Guard
from retrysafe.http.messages import Headers, Request, Response
from retrysafe.http.problems import Refusal


class Live(NamedTuple):
    """A response as the handler gives it: its chunks come when they are asked for."""

    status: int
    headers: Headers
    chunks: Iterable[bytes]


class Unsettled(Exception):
    """Ends a response whose outcome could not be recorded after its beginning had left: the client must see that."""


Handler = Callable[[], Live]


class Exchange:
    """One guarded request.

    `serve` returns either the handler's own response, its chunks held back as the contract wants, or ours.
    """

    def __init__(self, guard: Guard, request: Request, key: str, body: Body, whose: str | None) -> None:
        self.guard = guard
        self.claim: Claim | None = None
        self.restarts = 0
        self._request = request
        self._key = key
        self._body = body
        self._whose = whose

    def serve(self, handler: Handler) -> Live | Response:
        """Claim the key and run ``handler``, again if its transaction must be; a `Response` stands in its place."""
        while True:
            try:
                answer = self._begin()
                return self._run(handler) if answer is None else answer
            except RetryTransaction as error:
                pause = None if self.claim is None else self.claim.restart_pause(self.restarts)
                if pause is None:
                    return self.guard.answer(self.guard.refusal(error))
            except Refusal as refusal:
                return self.guard.answer(refusal)
            self.restarts += 1
            time.sleep(pause)

    def _begin(self) -> Response | None:
        """Claim the key; the response when there is nothing to run."""
        self.claim = None
        claim = self.guard.claim(self._request, self._key, self._body, self._whose)
        try:
            claim.__enter__()
        except RetryTransaction:
            raise
        except RetrysafeError as error:
            if self.guard.passes(error):
                return None
            raise self.guard.refusal(error) from error
        self.claim = claim
        if not claim.replayed:
            return None
        claim.__exit__(None, None, None)
        return self.guard.replay(claim)

    def _run(self, handler: Handler) -> Live:
        claim = self.claim
        if claim is None:  # passed over, because the store does not answer
            return handler()
        try:
            live = handler()
        except BaseException as error:
            self._fail(claim, error)
            raise
        capture = Capture(self.guard, claim, live)
        capture.begin()
        return Live(live.status, live.headers, capture)

    def _fail(self, claim: Claim, error: BaseException) -> None:
        """The handler raised."""
        try:
            claim.__exit__(type(error), error, error.__traceback__)
        except RetryTransaction:
            raise
        except RetrysafeError as failure:
            raise self.guard.refusal(failure) from failure


class Capture:
    """The chunks of a response on their way to the client, and into its record.

    The last non-empty chunk waits until the outcome is recorded, and all of them do in a transaction. A response
    over the limit, or an event stream, goes out live but for its end, and its body is not kept.
    """

    def __init__(self, guard: Guard, claim: Claim, live: Live) -> None:
        self._guard = guard
        self._claim = claim
        self._live = live
        self._chunks = iter(live.chunks)
        self._captured: bytearray | None = bytearray()
        self._held: list[bytes] = []
        self._settled = False
        self._holds_all = guard.transactional or guard.policy.on_large == "error"

    def begin(self) -> None:
        """Take chunks until one may leave, so that until then another response can stand in place of this one.

        Raises `Refusal`, `RetryTransaction`, or what the handler raises.
        """
        if any(
            name == b"content-type" and value.startswith(b"text/event-stream") for name, value in self._live.headers
        ):
            self._overflow()
            return
        while (
            not self._settled and self._captured is not None and len(self._held) < (1 << 62 if self._holds_all else 2)
        ):
            self._take()

    def __iter__(self) -> Iterator[bytes]:
        while not self._settled:
            if len(self._held) > 1:
                yield self._held.pop(0)
            else:
                self._take_late()
        yield from self._held
        self._held.clear()

    def close(self) -> None:
        """The server is done with the response; one that is not complete has failed."""
        try:
            if not self._settled:
                self._fail(Unsettled("The response was closed before its end."))
        finally:
            close = getattr(self._live.chunks, "close", None)
            if close is not None:
                close()

    def _take_late(self) -> None:
        """Take a chunk when others have left: what is refused now can only break the response off."""
        try:
            self._take()
        except (Refusal, RetrysafeError) as error:
            raise Unsettled(str(error)) from error

    def _take(self) -> None:
        """Take the next chunk of the handler's, or record the response when there are no more."""
        try:
            chunk = next(self._chunks, None)
        except BaseException as error:
            self._fail(error)
            raise
        if chunk is None:
            self._settle()
            return
        if chunk:
            self._held.append(chunk)
        if self._captured is not None:
            self._captured += chunk
            if len(self._captured) > self._guard.policy.response_limit:
                self._overflow()

    def _overflow(self) -> None:
        self._captured = None
        if self._holds_all:
            refusal = Refusal("response-unsupported")
            self._fail(refusal)
            raise refusal

    def _settle(self) -> None:
        body = None if self._captured is None else bytes(self._captured)
        self._guard.judge(self._claim, Response(self._live.status, self._live.headers, body))
        self._end(None)

    def _fail(self, error: BaseException) -> None:
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        self._settled = True
        try:
            self._claim.__exit__(None if error is None else type(error), error, None)
        except RetryTransaction:
            raise
        except RetrysafeError as failure:
            raise self._guard.refusal(failure) from failure
