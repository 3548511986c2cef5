"""A guarded request in sync code: claimed, answered by a handler, recorded, and only then seen by the client.

What WSGI, Flask and Django share. `retrysafe.http.asgi.Exchange` is its twin for ASGI, where a response is a
sequence of messages instead of an iterator.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, NoReturn

from retrysafe.claims.claim import Claim
from retrysafe.errors import RetrysafeError, RetryTransaction
from retrysafe.http import nested
from retrysafe.http.bodies import Body
from retrysafe.http.commit_guard import Phase, Watch, forget, watch
from retrysafe.http.guard import Guard
from retrysafe.http.messages import Headers, Request, Response, is_endless
from retrysafe.http.problems import Refusal


class Live(NamedTuple):
    """A response as the handler gives it: its chunks come when they are asked for."""

    status: int
    headers: Headers
    chunks: Iterable[bytes]
    error: Exception | None = None
    """What the handler raised, for frameworks that make a response of it before we can see it."""
    whole: bool = False
    """Whether the chunks are all there already and are sent without us: then none leaves before the record."""


class Unsettled(Exception):
    """Ends a response whose outcome could not be recorded after its beginning had left: the client must see that."""


class Preempted(BaseException):
    """Ends a handler that asked for its claim and did not get it; what is answered instead is decided around it.

    Not an `Exception`: frameworks would make a response of it.
    """

    def __init__(self, instead: Response | Refusal | RetryTransaction) -> None:
        super().__init__()
        self.instead = instead


Handler = Callable[[], Live]


class Exchange:
    """One guarded request.

    `serve` returns either the handler's own response, its chunks held back as the contract wants, or ours. A
    ``deferred`` exchange leaves it to the handler to call `begin`, when it knows whose request it is.
    """

    def __init__(
        self, guard: Guard, request: Request, key: str, body: Body, whose: str | None = None, *, deferred: bool = False
    ) -> None:
        self.guard = guard
        self.claim: Claim | None = None
        self.restarts = 0
        self.body = body
        self.request = request
        self.key = key
        self._whose = whose
        self._deferred = deferred
        self._watch: Watch | None = None

    def serve(self, handler: Handler) -> Live | Response:
        """`attempt`, with the layer's own answer as a response."""
        try:
            return self.attempt(handler)
        except Refusal as refusal:
            return self.guard.answer(refusal)

    def attempt(self, handler: Handler) -> Live | Response:
        """Claim the key and run ``handler``, again if its transaction must be; a `Response` is a stored one.

        The chunks of a `Live` response are a `Capture` (or the handler's own, when the store does not answer and the
        policy lets it pass): whoever sends them closes them, however far they were sent. Raises `Refusal` for what
        the layer answers by itself, and what the handler raises.
        """
        while True:
            self.claim = None
            try:
                return self._attempt(handler)
            except Preempted as preempted:
                instead = preempted.instead
            except RetryTransaction as again:
                instead = again
            if isinstance(instead, Response):
                return instead
            if isinstance(instead, Refusal):
                raise instead
            pause = self._restart_pause()
            if pause is None:
                raise self.guard.refusal(instead) from instead
            self.restarts += 1
            time.sleep(pause)

    def _restart_pause(self) -> float | None:
        return None if self.claim is None else self.claim.restart_pause(self.restarts)

    def begin_for(self, principal: object, around: Sequence[object] = ()) -> None:
        """`begin` for a principal that the handler found, and those of guards ``around`` it; see `Guard.scope`."""
        try:
            self._whose = self.guard.scope(principal, around)
        except Refusal as refusal:
            _preempt(refusal)
        self.begin()

    def begin(self) -> None:
        """Claim the key; raises `Preempted` when something else is answered than what the handler would."""
        try:
            claim = self.guard.claim(self.request, self.key, self.body, self._whose)
            claim.__enter__()
        except (Refusal, RetryTransaction) as instead:
            _preempt(instead)
        except RetrysafeError as error:
            if self.guard.passes(error):
                return
            _preempt(self.guard.refusal(error))
        if claim.replayed:
            claim.__exit__(None, None, None)
            _preempt(self.guard.replay(claim))
        self.claim = claim
        if self.guard.transactional:
            self._watch = watch(claim, self.guard.entry.address)

    def _attempt(self, handler: Handler) -> Live:
        if not self._deferred:
            self.begin()
        try:
            with nested.around(self):
                live = handler()
            if self.claim is None:  # passed over, because the store does not answer, or never asked for
                return live
            capture = Capture(self, self.claim, live)
        except BaseException as error:
            if self.claim is not None:
                self.leave(self.claim, error)
                forget()
            raise
        try:
            capture.begin()
        except BaseException as error:
            capture.abort(error)
            raise
        return live._replace(chunks=capture)

    def leave(self, claim: Claim, error: BaseException | None) -> None:
        """Leave the claim; raises `RetryTransaction`, or `Refusal` for what the client must be told instead."""
        if self._watch is not None:
            self._watch.phase = Phase.SETTLING
        try:
            claim.__exit__(
                None if error is None else type(error), error, None if error is None else error.__traceback__
            )
        except RetryTransaction:
            raise
        except RetrysafeError as failure:
            raise self.guard.refusal(failure) from failure
        finally:
            if self._watch is not None:
                self._watch.phase = Phase.OVER
        lost = self.guard.lost(error)
        if lost is not None:
            raise lost from error


class Capture:
    """The chunks of a response on their way to the client, and into its record: an iterator with ``close``.

    The last non-empty chunk waits until the outcome is recorded, and all of them do in a transaction. A response
    over the limit, or an event stream, goes out live but for its end, and its body is not kept.

    Attributes:
        settled: whether the outcome is recorded, or has failed; the chunks that are left then are all held here.
    """

    def __init__(self, exchange: Exchange, claim: Claim, live: Live) -> None:
        guard = exchange.guard
        self.settled = False
        self._exchange = exchange
        self._guard = guard
        self._claim = claim
        self._live = live
        self._chunks = iter(live.chunks)
        self._captured: bytearray | None = bytearray()
        self._held: deque[bytes] = deque()
        self._closed = False
        self._holds_all = guard.transactional or guard.policy.on_large == "error"
        self._endless = is_endless(live.headers)

    # ------------------------------------------------------------ sending

    def begin(self) -> None:
        """Take chunks until one may leave, so that until then another response can stand in place of this one.

        Raises `Refusal`, `RetryTransaction`, or what the handler raises.
        """
        if self._endless:
            self._overflow()
        while not self.settled and (self._live.whole or self._may_wait):
            self._take()

    @property
    def _may_wait(self) -> bool:
        """Whether more must be taken, or may be, before anything leaves."""
        return self._captured is not None and (self._holds_all or len(self._held) < 2)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        while not self.settled and len(self._held) <= self._kept_back:
            self._take_late()
        if not self._held:
            raise StopIteration
        return self._held.popleft()

    @property
    def _kept_back(self) -> int:
        """How many chunks wait: none when the client learns only after the last one that it was the last."""
        declared = any(name == b"content-length" for name, _ in self._live.headers)
        return 1 if declared or self._captured is not None else 0

    def close(self) -> None:
        """The sender is done. If the client left before the end, the handler comes to its end without the client.

        Its retry wants the response. Only an event stream is broken off, as it may have no end: it has failed.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._endless and not self.settled:
                self._end(Unsettled("The client left before the end of the event stream."))
            while not self.settled:
                self._held.clear()
                self._take_late()
        finally:
            self._close_chunks()

    def abort(self, error: BaseException) -> None:
        """Give the response up: nothing of it has left."""
        self._closed = True
        try:
            if not self.settled:
                self._end(error)
        finally:
            self._close_chunks()

    def _close_chunks(self) -> None:
        forget()
        close = getattr(self._live.chunks, "close", None)
        if close is not None:
            close()

    # ------------------------------------------------------------ capturing

    def _take_late(self) -> None:
        """Take a chunk when others have left: what is refused now can only break the response off."""
        try:
            self._take()
        except (Refusal, RetryTransaction) as error:
            raise Unsettled(f"The response was broken off: {error}") from error

    def _take(self) -> None:
        """Take the next chunk of the handler's, or record the response when there are no more."""
        try:
            chunk = next(self._chunks, None)
            if chunk is None:
                self._settle()
            elif chunk:
                self._capture(chunk)
        except BaseException as error:
            self._held.clear()
            if not self.settled:
                self._end(error)
            raise

    def _capture(self, chunk: bytes) -> None:
        self._held.append(chunk)
        if self._captured is not None:
            self._captured += chunk
            if len(self._captured) > self._guard.policy.response_limit:
                self._overflow()

    def _overflow(self) -> None:
        self._captured = None
        if self._holds_all:
            refusal = Refusal("response-unsupported")
            self._end(refusal)
            raise refusal

    def _settle(self) -> None:
        error = self._live.error
        if error is not None and self._live.status >= 500 and self._guard.entry.restarts(error):
            self._end(error)
            return
        body = None if self._captured is None else bytes(self._captured)
        response = Response(self._live.status, self._live.headers, body)
        self._guard.judge(self._claim, response, self._exchange.request)
        self._end(None)

    def _end(self, error: BaseException | None) -> None:
        self.settled = True
        self._exchange.leave(self._claim, error)


def _preempt(instead: Response | Refusal | RetryTransaction) -> NoReturn:
    raise Preempted(instead) from (instead if isinstance(instead, Exception) else None)
