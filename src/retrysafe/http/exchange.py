"""One guarded request: claimed, answered by a handler, recorded, and only then whole for the client.

An `Exchange` is the course of a request whatever carries it: claim the key, run the handler (again if its transaction
must be), record the response, or answer in the handler's place. It is written once, as coroutines. What they wait for
is a `Port`: on an event loop the boundary's entry point; in sync code `SYNC_PORT`, which never waits, so that
`run_without_loop` runs them.

The drivers run the handler and move its response:

    `UnaryExchange` below                   a response that is one value: aiohttp, gRPC
    `retrysafe.http.chunks.ChunkedExchange`   sync code, where the sender takes chunks: WSGI, Flask, Django
    `retrysafe.http.asgi.AsgiExchange`        the application sends messages

A client must not see a complete response before its record is written: if the write fails, the client's retry has to
find the work undone or in doubt, not a second execution of work that looked finished. So the end of each response is
held back. `Capture` decides how much, without I/O. A driver passes it the application's output (`begin`, `add`), sends
what it releases (`leaving`), records the captured response (`Exchange.settle`), and then sends the rest (`rest`):

    state      what may leave before the record is written            what ends the state
    waiting    nothing: there is no status yet                        begin: holding; an event stream is live
    holding    the start and all chunks but the last (contract R8);   add: live, when the body is over the limit
               where all is held, not even the start                  finish: complete
    live       the start and all chunks; the last one of a declared   finish: complete
               length waits, for the client counts (R11)
    complete   nothing more; what is held leaves with `rest`

A live response is recorded without its body. Where all is held (in a transaction, whose commit may fail, and with
``on_large="error"``) nothing can be live, and `Refusal` is raised instead.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn, Protocol

from retrysafe.claims.claim import Claim
from retrysafe.errors import Postponed, RetrysafeError, RetryTransaction
from retrysafe.http import commit_watch, nested
from retrysafe.http.bodies import Body
from retrysafe.http.commit_watch import CommitWatch, Phase
from retrysafe.http.guard import RETURNED, Guard, ResponseOrigin
from retrysafe.http.messages import Headers, Request, Response, is_endless
from retrysafe.http.problems import Refusal
from retrysafe.protocol.exception_groups import every


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

    def take(self, response: Response) -> None:
        """The response is one value, and so has an end; its body is None if it is not in memory. Raises `Refusal`."""
        self.status, self.headers = response.status, response.headers
        if response.body is None:
            self.omit()
        else:
            self.add(response.body)

    def rest(self) -> list[bytes]:
        """Take the chunks that are left."""
        chunks, self._held = self._held, []
        return chunks


class AnswerInstead(BaseException):
    """Ends a handler in whose place something else is answered: `Exchange.instead` says what.

    Not an `Exception`: frameworks would make a response of it. Whatever becomes of it inside, it is answered around it.
    """


class Port(Protocol):
    """Enters and leaves claims, as an entry point does on an event loop."""

    def enter(self, claim: Claim, /) -> Awaitable[object]: ...

    def leave(self, claim: Claim, error: BaseException | None, /) -> Awaitable[object]: ...


class SyncPort:
    """The port of sync code: nothing is waited for, but done before the coroutine goes on."""

    async def enter(self, claim: Claim, /) -> None:
        claim.__enter__()

    async def leave(self, claim: Claim, error: BaseException | None, /) -> None:
        claim.__exit__(None if error is None else type(error), error, None if error is None else error.__traceback__)

    async def sleep(self, seconds: float, /) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - no loop waits


SYNC_PORT = SyncPort()


class Exchange:
    """The course of one guarded request.

    ``deferred``: the handler itself calls `begin_for`, when it knows whose request it is.

    Attributes:
        claim: the claim under which the handler runs; None before it is made, and where it was passed over.
        tried: the claim, also where the store did not answer and it was passed over.
        instead: what is answered in the handler's place: a replay, a refusal, or another run of the handler.
        sent: whether the beginning of the handler's response has left.
        settled: whether the outcome is recorded, or has failed.
        restarts: how often the handler has been run again.
    """

    claim: Claim | None = None
    tried: Claim | None = None
    instead: Response | Refusal | RetryTransaction | None = None
    sent = settled = False
    restarts = 0
    _watch: CommitWatch | None = None

    def __init__(
        self,
        guard: Guard,
        request: Request,
        key: str,
        body: Body,
        scope: str | None = None,
        *,
        deferred: bool = False,
        port: SyncPort | None = None,
    ) -> None:
        self.guard = guard
        self.request = request
        self.key = key
        self.body = body
        self._key_scope = scope
        self._deferred = deferred
        self._port: Port = guard.entry if port is None else port
        self._sleep = asyncio.sleep if port is None else port.sleep

    async def attempt(self, run: Callable[[], Awaitable[None]]) -> Response | Refusal | None:
        """Claim the key and ``run`` the handler, again if its transaction must be.

        Returns what is answered in place of the handler's response; None: that one. Raises what the handler raises.
        """
        while True:
            if not self._deferred:
                await self.begin()
            if self.instead is None:
                outer = nested.AROUND.get()
                nested.AROUND.set(self)
                try:
                    await run()
                except BaseException as error:  # noqa: BLE001 - it is raised there
                    await self._fail(error)
                finally:
                    nested.AROUND.set(outer)
            instead = self.instead
            if not isinstance(instead, RetryTransaction):
                return instead
            pause = None if self.sent or self.tried is None else self.tried._restart_pause(self.restarts)
            if pause is None:
                return self.guard.refusal(instead)
            self.restarts += 1
            await self._sleep(pause)
            self.claim = self.tried = self.instead = None
            self.settled = False

    async def begin_for(self, principal: object, around: Sequence[object] = ()) -> None:
        """`begin`, unless it has been tried, for a principal that the handler found; see `Guard.scope`.

        Raises `AnswerInstead` when something else is answered than what the handler would.
        """
        if self.instead is None and self.tried is None:
            try:
                self._key_scope = self.guard.scope(principal, around)
            except Refusal as refusal:
                self.preempt(refusal)
            await self.begin()
        if self.instead is not None:  # a handler that swallowed what ended it must not work after all
            self.preempt(self.instead)

    async def begin(self) -> None:
        """Claim the key; ``instead`` is set when something else is answered than what the handler would."""
        guard = self.guard
        try:
            claim = self.tried = guard.claim(self.request, self.key, self.body, self._key_scope)
            await self._port.enter(claim)
        except (Refusal, RetryTransaction) as instead:
            self.instead = instead
        except RetrysafeError as error:
            if not guard.passes(error):
                self.instead = guard.refusal(error)
        else:
            if claim.replayed:
                await self._port.leave(claim, None)
                self.instead = guard.replay(claim)
            else:
                self.claim = claim
                self._watch = _watch_commits(claim, guard.entry.address) if guard.transactional else None

    async def settle(self, capture: Capture, error: Exception | None, origin: ResponseOrigin) -> None:
        """Record the response before the client can see the end of it; ``error`` is what it was made of, if known."""
        assert self.claim is not None
        wanted = None if error is None else self.guard.find_restart(capture.status, error)
        if wanted is not None:
            await self.end(wanted)
        else:
            self.guard.judge(self.claim, capture.finish(), self.request, origin)
            await self.end(None)

    async def give_up(self, refusal: Refusal) -> NoReturn:
        """End the claim as a failure, for a response that cannot be kept."""
        await self.end(refusal)
        self.preempt(refusal)

    async def end(self, error: BaseException | None) -> None:
        """Leave the claim, once; raises `AnswerInstead` when the client must be told something else."""
        assert self.claim is not None
        self.settled = True
        if self._watch is not None:
            self._watch.phase = Phase.SETTLING
        try:
            await self._port.leave(self.claim, error)
        except RetryTransaction as again:
            self.preempt(again)
        except (RetrysafeError, Postponed) as failure:
            self.preempt(self.guard.refusal(failure))
        finally:
            if self._watch is not None:
                self._watch.phase = Phase.OVER
        if error is not None and (lost := self.guard.find_lost(error)) is not None:
            self.preempt(lost)

    def preempt(self, instead: Response | Refusal | RetryTransaction) -> NoReturn:
        """Answer something else than what the handler would, and end the handler."""
        self.instead = instead
        raise AnswerInstead from instead if isinstance(instead, Exception) else None

    async def _fail(self, error: BaseException) -> None:
        """The handler ended without a response; raises its error again unless something else is to be answered."""
        if self.instead is not None:
            if every(error, (Exception, AnswerInstead)):
                return
        elif self.claim is not None and not self.settled:
            behind = self.guard.find_restart(500, error) if isinstance(error, Exception) else None
            try:
                await self.end(behind or error)
            except AnswerInstead:
                return
            if isinstance(error, RetryTransaction):  # of a boundary further in
                self.instead = error
                return
        raise error


def _watch_commits(claim: Claim, address: str) -> CommitWatch | None:
    """Watch over what a request does to the database, as far as a library is loaded that can be watched."""
    if "sqlalchemy.orm" not in sys.modules:
        return None
    from retrysafe.http import sessions

    sessions.listen()
    return commit_watch.watch(claim, address)


class UnaryExchange(Exchange):
    """An exchange whose response is one value, for sync code too if its ``port`` is `SYNC_PORT`.

    Attributes:
        origin: the origin of the handler's response.
        error: the handler's exception that it answers, if any.
    """

    origin = RETURNED
    error: Exception | None = None

    async def respond(self, handler: Callable[[], Awaitable[Response]]) -> Response | Refusal | None:
        """Claim the key and run ``handler``; returns what is answered in its place, as `attempt`."""

        async def run() -> None:
            response = await handler()
            if self.claim is None:  # passed over, because the store does not answer
                return
            capture = Capture(self.guard)
            try:
                capture.take(response)
            except Refusal as refusal:
                await self.give_up(refusal)
            await self.settle(capture, self.error, self.origin)

        try:
            return await self.attempt(run)
        finally:
            commit_watch.forget()  # the task, or thread, may go on to serve another request
