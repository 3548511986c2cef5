"""The response of a guarded request: captured, held back until it is recorded, and only then whole for the client.

A client must not see a complete response before its record is written: if the write fails, the client's retry has to
find the work undone or in doubt, not a second execution of work that looked finished. So the end of each response is
held back. `Capture` decides how much, without I/O. A driver passes it the application's output (`begin`, `add`), sends
what it releases (`leaving`), records the captured response (`finish`), and then sends the rest (`rest`):

    state      what may leave before the record is written            what ends the state
    waiting    nothing: there is no status yet                        begin: holding; an event stream is live
    holding    the start and all chunks but the last (contract R8);   add: live, when the body is over the limit
               where all is held, not even the start                  finish: complete
    live       the start and all chunks; the last one of a declared   finish: complete
               length waits, for the client counts (R11)
    complete   nothing more; what is held leaves with `rest`

A live response is recorded without its body. Where all is held (in a transaction, whose commit may fail, and with
``on_large="error"``) nothing can be live, and `Refusal` is raised instead.

The drivers: `Exchange` and `Chunks` below for sync code, where the client takes chunks (WSGI, Flask, Django, gRPC);
`retrysafe.http.asgi.AsgiExchange`, where the application sends messages; and `retrysafe.http.unary.UnaryExchange` for a
response that is one value (aiohttp, gRPC on a loop).
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
from retrysafe.http.commit_guard import CommitWatch, Phase, forget, watch
from retrysafe.http.guard import RETURNED, Course, Guard
from retrysafe.http.messages import Headers, Request, Response, is_endless
from retrysafe.http.problems import Refusal


class Capture:
    """One response on its way to its record and to the client; the states are at the head of this file.

    Attributes:
        status: 0 until there is one.
        endless: whether it is an event stream, which may have no end.
        live: whether its body is not kept.
    """

    __slots__ = ("_body", "_guard", "_held", "endless", "headers", "live", "status")

    def __init__(self, guard: Guard) -> None:
        self.status = 0
        self.headers: Headers = ()
        self.endless = self.live = False
        self._guard = guard
        self._body: bytes | bytearray = b""
        self._held: list[bytes] = []

    def begin(self, status: int, headers: Headers) -> None:
        """The status and the field lines are known. Raises `Refusal`."""
        self.status, self.headers = status, headers
        if is_endless(headers):
            self.endless = True
            self.omit()

    def add(self, chunk: bytes) -> None:
        """The next chunk is known. Raises `Refusal`."""
        if not chunk:
            return
        chunk = b"".join((chunk,))  # of any bytes-like type, and not to be changed any more
        self._held.append(chunk)
        if self.live:
            return
        if not self._body:
            self._body = chunk
        elif isinstance(self._body, bytes):
            self._body = bytearray(self._body) + chunk
        else:
            self._body += chunk
        if len(self._body) > self._guard.policy.response_limit:
            self.omit()

    def omit(self) -> None:
        """Let the body go that is not to be kept. Raises `Refusal` where it must be."""
        if self._guard.holds_all:
            raise Refusal("response-unsupported")
        self.live, self._body = True, b""

    @property
    def may_begin(self) -> bool:
        """True if the start of the response may leave before its end is known."""
        return self.live or (len(self._held) > 1 and not self._guard.holds_all)

    def leaving(self) -> list[bytes]:
        """Take the chunks that may leave before the end is known."""
        if self._guard.holds_all:
            return []
        free = len(self._held) - self._waiting
        chunks, self._held = self._held[:free], self._held[free:]
        return chunks

    @property
    def _waiting(self) -> int:
        """The number of chunks that wait: none when the client learns only after the last one that it was the last."""
        declared = any(name == b"content-length" for name, _ in self.headers)
        return min(len(self._held), 1) if declared or not self.live else 0

    def finish(self) -> Response:
        """The response is complete: as it is to be judged and recorded, before the rest may leave."""
        return Response(self.status, self.headers, None if self.live else bytes(self._body))

    def whole(self, response: Response) -> Response:
        """`finish` for a response that is one value, and so has an end; its body is None if it is not in memory."""
        self.status, self.headers = response.status, response.headers
        if response.body is None:
            self.omit()
        else:
            self.add(response.body)
        return self.finish()

    def rest(self) -> list[bytes]:
        """Take the chunks that are left."""
        chunks, self._held = self._held, []
        return chunks


class Live(NamedTuple):
    """A response as the handler gives it: its chunks come when they are asked for."""

    status: int
    headers: Headers
    chunks: Iterable[bytes]
    error: Exception | None = None
    """The handler's exception, for frameworks that turn it into a response before we can see it."""
    whole: bool = False
    """True if the chunks are all there already and are sent without us: then none leaves before the record."""
    course: Course = RETURNED


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

    `serve` returns either the handler's own response, its chunks held back as the contract requires, or ours. A
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
        self._watch: CommitWatch | None = None

    def serve(self, handler: Handler) -> Live | Response:
        """`attempt`, with the layer's own answer as a response."""
        try:
            return self.attempt(handler)
        except Refusal as refusal:
            return self.guard.answer(refusal)

    def attempt(self, handler: Handler) -> Live | Response:
        """Claim the key and run ``handler``, again if its transaction must be; a `Response` is a stored one.

        The chunks of a `Live` response are `Chunks` (or the handler's own, when the store does not answer and the
        policy lets it pass): the sender closes them, however far they were sent. Raises `Refusal` for what
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
            chunks = Chunks(self, self.claim, live)
        except BaseException as error:
            if self.claim is not None:
                self.leave(self.claim, error)
                forget()
            raise
        try:
            chunks.begin()
        except BaseException as error:
            chunks.abort(error)
            raise
        return live._replace(chunks=chunks)

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


class Chunks:
    """The chunks of a response on their way to the client, captured: an iterator with ``close``.

    Attributes:
        settled: whether the outcome is recorded, or has failed; the chunks that are left then are all held here.
    """

    def __init__(self, exchange: Exchange, claim: Claim, live: Live) -> None:
        self.settled = False
        self._exchange = exchange
        self._guard = exchange.guard
        self._claim = claim
        self._live = live
        self._chunks = iter(live.chunks)
        self._capture = Capture(exchange.guard)
        self._leaving: deque[bytes] = deque()
        self._closed = False

    # ------------------------------------------------------------ sending

    def begin(self) -> None:
        """Take chunks until one may leave, so that until then another response can stand in place of this one.

        Raises `Refusal`, `RetryTransaction`, or what the handler raises.
        """
        self._capture.begin(self._live.status, self._live.headers)
        while not self.settled and (self._live.whole or not self._capture.may_begin):
            self._take()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        while not self._leaving:
            self._leaving.extend(self._capture.rest() if self.settled else self._capture.leaving())
            if self._leaving:
                break
            if self.settled:
                raise StopIteration
            self._take_late()
        return self._leaving.popleft()

    def close(self) -> None:
        """The sender is done. If the client left before the end, the handler comes to its end without the client.

        Its retry wants the response. Only an event stream is broken off, as it may have no end: it has failed.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._capture.endless and not self.settled:
                self._end(Unsettled("The client left before the end of the event stream."))
            while not self.settled:
                self._capture.rest()
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
            else:
                self._capture.add(chunk)
        except BaseException as error:
            self._capture.rest()
            if not self.settled:
                self._end(error)
            raise

    def _settle(self) -> None:
        error = self._live.error
        if error is not None and self._guard.restarts(self._live.status, error):
            self._end(error)
            return
        self._guard.judge(self._claim, self._capture.finish(), self._exchange.request, self._live.course)
        self._end(None)

    def _end(self, error: BaseException | None) -> None:
        self.settled = True
        self._exchange.leave(self._claim, error)


def _preempt(instead: Response | Refusal | RetryTransaction) -> NoReturn:
    raise Preempted(instead) from (instead if isinstance(instead, Exception) else None)
