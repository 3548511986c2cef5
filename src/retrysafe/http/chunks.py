"""The driver of guarded requests in sync code, where the sender takes the response's chunks: WSGI, Flask, Django."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from retrysafe.http import commit_watch
from retrysafe.http.bodies import Body
from retrysafe.http.exchange import SYNC_PORT, AnswerInstead, Capture, Exchange
from retrysafe.http.guard import RETURNED, Guard, ResponseOrigin
from retrysafe.http.messages import Headers, Request, Response
from retrysafe.http.problems import Refusal
from retrysafe.http.without_loop import run_without_loop


class StreamedResponse(NamedTuple):
    """A response as the handler gives it: its chunks come when they are asked for."""

    status: int
    headers: Headers
    chunks: Iterable[bytes]
    error: Exception | None = None
    """The handler's exception, for frameworks that turn it into a response before we can see it."""
    whole: bool = False
    """True if the chunks are all there already and are sent without us: then none leaves before the record."""
    origin: ResponseOrigin = RETURNED


class Unsettled(Exception):
    """Ends a response whose outcome could not be recorded after its beginning had left: the client must see that."""


Handler = Callable[[], StreamedResponse]


class ChunkedExchange(Exchange):
    """An exchange whose handler gives a response in chunks."""

    def __init__(
        self, guard: Guard, request: Request, key: str, body: Body, scope: str | None = None, *, deferred: bool = False
    ) -> None:
        super().__init__(guard, request, key, body, scope, deferred=deferred, port=SYNC_PORT)

    def serve(self, handler: Handler) -> StreamedResponse | Response:
        """Claim the key and run ``handler``; returns its response, or ours in its place.

        The chunks of a `StreamedResponse` are `Chunks`, held back as the contract requires (or the handler's own, when
        the store does not answer and the policy lets it pass): the sender closes them, however far they were sent.
        Raises what the handler raises.
        """
        found: list[StreamedResponse] = []

        async def run() -> None:
            response = handler()
            if self.claim is not None:
                response = response._replace(chunks=Chunks(self, response).begin())
            found[:] = [response]

        try:
            instead = run_without_loop(self.attempt(run))
        except BaseException:
            commit_watch.forget()
            raise
        if instead is None:
            return found[0]
        commit_watch.forget()
        return self.guard.answer(instead) if isinstance(instead, Refusal) else instead


class Chunks:
    """The chunks of a response on their way to the client, captured: an iterator with ``close``."""

    def __init__(self, exchange: ChunkedExchange, response: StreamedResponse) -> None:
        self._exchange = exchange
        self._response = response
        self._chunks = iter(response.chunks)
        self._capture = Capture(exchange.guard)
        self._leaving: deque[bytes] = deque()
        self._closed = False

    @property
    def settled(self) -> bool:
        """True if the outcome is recorded, or has failed; the chunks that are left then are all held here."""
        return self._exchange.settled

    # ------------------------------------------------------------ sending

    def begin(self) -> Chunks:
        """Take chunks until one may leave, so that until then another response can stand in place of this one.

        Raises `AnswerInstead`, or what the handler raises: then nothing of it has left, and it is over.
        """
        try:
            try:
                self._capture.begin(self._response.status, self._response.headers)
            except Refusal as refusal:
                run_without_loop(self._exchange.give_up(refusal))
            while not self.settled and (self._response.whole or not self._capture.may_begin):
                self._take()
        except BaseException:
            self._closed = True
            self._close_chunks()
            raise
        return self

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
                run_without_loop(self._exchange.end(Unsettled("The client left before the end of the event stream.")))
            while not self.settled:
                self._capture.rest()
                self._take_late()
        finally:
            self._close_chunks()

    def _close_chunks(self) -> None:
        commit_watch.forget()
        close = getattr(self._response.chunks, "close", None)
        if close is not None:
            close()

    # ------------------------------------------------------------ capturing

    def _take_late(self) -> None:
        """Take a chunk when others have left: what is refused now can only break the response off."""
        try:
            self._take()
        except AnswerInstead as error:
            raise Unsettled(f"The response was broken off: {self._exchange.instead}") from error

    def _take(self) -> None:
        """Take the next chunk of the handler's, or record the response when there are no more."""
        try:
            chunk = next(self._chunks, None)
            if chunk is None:
                run_without_loop(self._exchange.settle(self._capture, self._response.error, self._response.origin))
            else:
                self._capture.add(chunk)
        except Refusal as refusal:
            self._capture.rest()
            run_without_loop(self._exchange.give_up(refusal))
        except BaseException as error:
            self._capture.rest()
            if not self.settled:
                run_without_loop(self._exchange.end(error))
            raise
