"""Sync integrations: the time at which chunks may leave, and responses that are not read to their end."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrysafe import Boundary, current
from retrysafe.http.bodies import Body
from retrysafe.http.chunks import ChunkedExchange, Chunks, StreamedResponse, Unsettled
from retrysafe.http.exchange import Capture
from retrysafe.http.guard import Guard
from retrysafe.http.messages import Headers, Request, Response
from retrysafe.http.policy import Policy
from retrysafe.http.problems import Refusal
from tests.tables import each_row

REQUEST = Request("POST", b"/pay", b"", ())
LENGTH = ((b"content-length", b"3"),)
EVENTS = ((b"content-type", b"text/event-stream; charset=utf-8"),)


class Source:
    """The chunks of a handler: which were taken, and how often it was closed."""

    def __init__(self, *chunks: bytes | BaseException) -> None:
        self._left = list(chunks)
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        while self._left:
            chunk = self._left.pop(0)
            if isinstance(chunk, BaseException):
                raise chunk
            yield chunk

    @property
    def taken(self) -> bool:
        return not self._left

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(params=["keyed", "external", "transactional"])
def boundary(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Boundary]:
    made = Boundary("api", store=f"sqlite:///{tmp_path}/keys.db", effects=request.param)
    yield made
    made.close()


@pytest.fixture
def leased() -> Iterator[Boundary]:
    made = Boundary("api", store="memory://")
    yield made
    made.close()


def exchange(boundary: Boundary, **options: Any) -> ChunkedExchange:
    guard = Guard(boundary, options, principal="shared")  # type: ignore[arg-type]
    return ChunkedExchange(guard, REQUEST, "k", Body(REQUEST, guard.policy), None)


def serve(boundary: Boundary, source: Source, headers: Headers = (), **options: Any) -> Chunks:
    live = exchange(boundary, **options).serve(lambda: StreamedResponse(200, headers, source))
    assert isinstance(live, StreamedResponse)
    assert isinstance(live.chunks, Chunks)
    return live.chunks


def replay(boundary: Boundary, **options: Any) -> Response:
    def handler() -> StreamedResponse:
        raise AssertionError("It ran again.")

    answer = exchange(boundary, **options).serve(handler)
    assert isinstance(answer, Response)
    return answer


def test_r2_the_chunks_come_once_and_the_retry_gets_their_sum(boundary: Boundary) -> None:
    source = Source(b"a", b"", b"b", b"c", b"")
    capture = serve(boundary, source)
    assert b"".join(capture) == b"abc"
    capture.close()
    capture.close()
    assert source.closed == 1
    assert replay(boundary).body == b"abc"


def test_r8_the_last_bytes_wait_for_the_record(leased: Boundary) -> None:
    capture = serve(leased, Source(b"a", b"b", b"c", b""), LENGTH)
    assert [next(capture), next(capture)] == [b"a", b"b"]
    assert replay(leased).status == 409, "not recorded yet, and so not complete for the client"
    assert next(capture) == b"c"
    assert replay(leased).body == b"abc"
    capture.close()


def test_r28_a_chunk_is_taken_only_when_one_must_leave(leased: Boundary) -> None:
    source = Source(b"a", b"b", b"c")
    capture = serve(leased, source)
    assert not source.taken
    assert list(capture) == [b"a", b"b", b"c"]
    capture.close()


def test_in_a_transaction_all_is_taken_before_anything_leaves(tmp_path: Any) -> None:
    boundary = Boundary("api", store=f"sqlite:///{tmp_path}/keys.db", effects="transactional")
    source = Source(b"a", b"b", b"c")
    capture = serve(boundary, source)
    assert source.taken
    assert capture.settled
    assert list(capture) == [b"a", b"b", b"c"]
    capture.close()
    boundary.close()


@pytest.mark.parametrize("headers", [(), LENGTH])
def test_r11_large_responses_go_out_live_and_are_recorded_without_their_body(
    leased: Boundary, headers: Headers
) -> None:
    capture = serve(leased, Source(b"abc", b"d", b"e"), headers, response_limit=2)
    assert list(capture) == [b"abc", b"d", b"e"]
    capture.close()
    again = replay(leased)
    assert (again.status, again.body) == (200, b"")
    assert (b"idempotency-replay", b"omitted") in again.headers


def test_r11_an_event_goes_out_before_the_next_one_is_made(leased: Boundary) -> None:
    source = Source(b"data: 1\n\n", b"data: 2\n\n")
    capture = serve(leased, source, EVENTS)
    assert next(capture) == b"data: 1\n\n"
    assert not source.taken
    assert next(capture) == b"data: 2\n\n"
    assert replay(leased).status == 409
    assert list(capture) == []
    assert (b"idempotency-replay", b"omitted") in replay(leased).headers
    capture.close()


@each_row(("headers", "options"), [((), {"response_limit": 2}), (EVENTS, {})])
def test_r11_a_transaction_keeps_no_live_response(tmp_path: Any, headers: Headers, options: Any) -> None:
    boundary = Boundary("api", store=f"sqlite:///{tmp_path}/keys.db", effects="transactional")
    source = Source(b"abc", b"d")
    answer = exchange(boundary, **options).serve(lambda: StreamedResponse(200, headers, source))
    assert isinstance(answer, Response)
    assert answer.status == 501
    assert source.closed == 1
    capture = serve(boundary, Source(b"x"))
    assert list(capture) == [b"x"], "rolled back, so the key is free"
    capture.close()
    boundary.close()


@pytest.mark.parametrize("limit", [2, 100])
def test_r17_a_response_that_is_closed_early_is_drained_and_recorded(leased: Boundary, limit: int) -> None:
    source = Source(b"a", b"b", b"c", b"d")
    capture = serve(leased, source, response_limit=limit)
    assert next(capture) == b"a"
    capture.close()
    assert source.taken
    assert source.closed == 1
    assert replay(leased).body == (b"abcd" if limit == 100 else b"")


def test_r17_an_event_stream_that_is_closed_early_has_failed(leased: Boundary) -> None:
    source = Source(b"data: 1\n\n", b"data: 2\n\n")
    capture = serve(leased, source, EVENTS)
    next(capture)
    capture.close()
    assert not source.taken
    assert source.closed == 1
    assert list(serve(leased, Source(b"again"))) == [b"again"]


@pytest.mark.parametrize("chunks", [(ValueError("x"),), (b"a", b"b", ValueError("x"))])
def test_r16_an_error_among_the_chunks_is_raised_and_frees_the_key(leased: Boundary, chunks: Any) -> None:
    source = Source(*chunks)
    with pytest.raises(ValueError, match="x"):
        capture = serve(leased, source)
        try:
            list(capture)
        finally:
            capture.close()
    assert source.closed == 1
    assert list(serve(leased, Source(b"again"))) == [b"again"]


@pytest.mark.parametrize("chunks", [("text",), (b"a", b"b", "text")])
def test_r16_chunks_that_are_no_bytes_are_an_error_of_the_handler(leased: Boundary, chunks: Any) -> None:
    source = Source(*chunks)
    with pytest.raises(TypeError):
        capture = serve(leased, source)
        try:
            list(capture)
        finally:
            capture.close()
    assert source.closed == 1
    assert list(serve(leased, Source(b"again"))) == [b"again"]


def test_r16_a_result_that_is_no_response_frees_the_key(leased: Boundary) -> None:
    with pytest.raises(TypeError):
        exchange(leased).serve(lambda: StreamedResponse(200, (), None))  # type: ignore[arg-type]
    assert list(serve(leased, Source(b"again"))) == [b"again"]


def lose(boundary: Boundary, exchange: ChunkedExchange) -> None:
    """Let another attempt take the key over, as after a lease that lapsed."""
    held = exchange.claim._held  # type: ignore[union-attr]
    assert held is not None
    held.ownership = held.ownership._replace(token=held.ownership.token - 1)


def test_r20_a_lost_lease_is_not_sent_as_success(leased: Boundary) -> None:
    asked = exchange(leased)

    def handler() -> StreamedResponse:
        lose(leased, asked)
        return StreamedResponse(200, (), [b"a"])

    answer = asked.serve(handler)
    assert isinstance(answer, Response)
    assert answer.status == 409


def test_r20_a_handler_that_finds_its_lease_lost_is_answered_as_such(leased: Boundary) -> None:
    def handler() -> StreamedResponse:
        claim = current()
        claim._held.until = 0.0  # type: ignore[union-attr]  # as after a pause, before the heartbeat beats again
        claim.ensure_held()
        return StreamedResponse(200, (), [b"a"])

    answer = exchange(leased).serve(handler)
    assert isinstance(answer, Response)
    assert answer.status == 409


def test_r20_a_lease_that_is_lost_when_bytes_have_left_breaks_the_response_off(leased: Boundary) -> None:
    asked = exchange(leased)
    source = Source(b"a", b"b", b"c")
    live = asked.serve(lambda: StreamedResponse(200, LENGTH, source))
    assert isinstance(live, StreamedResponse)
    assert isinstance(live.chunks, Chunks)
    lose(leased, asked)
    got = []
    with pytest.raises(Unsettled):
        got.extend(live.chunks)
    assert got == [b"a", b"b"]
    assert list(live.chunks) == []
    live.chunks.close()
    assert source.closed == 1


@each_row("memory", [0, 100])
def test_r12_the_body_is_a_file_as_often_as_it_is_opened(memory: int) -> None:
    body = Body(REQUEST, Policy(body_memory=memory))
    body.add(b"one\ntwo\n")
    body.add(b"three")
    first, second = body.open(), body.open()
    assert first.readline() == b"one\n"
    assert second.read() == b"one\ntwo\nthree"
    assert list(first) == [b"two\n", b"three"]
    second.close()
    assert body.open().read() == b"one\ntwo\nthree"
    body.close()


class Sent(NamedTuple):
    """The client's parts of a response: the chunks before its end is recorded, and those after."""

    before: list[bytes]
    after: list[bytes]


def told(capture: Capture, headers: Headers, chunks: list[bytes]) -> Sent:
    """Tell a capture of a whole response."""
    before: list[bytes] = []
    capture.begin(200, headers)
    for chunk in chunks:
        capture.add(chunk)
        if capture.may_begin:
            before += capture.leaving()
    return Sent(before, capture.rest())


@given(st.lists(st.binary(max_size=4), max_size=8), st.sampled_from([(), LENGTH, EVENTS]), st.integers(0, 12))
def test_r8_no_client_has_a_whole_response_before_it_is_recorded(
    chunks: list[bytes], headers: Headers, limit: int
) -> None:
    capture = Capture(Guard(_boundary(), {"response_limit": limit}, principal="shared"))
    sent = told(capture, headers, chunks)
    whole, sent_by_it = b"".join(chunks), [chunk for chunk in chunks if chunk]
    assert sent.before + sent.after == sent_by_it, "in their order, and none is lost"
    assert capture.live == (headers == EVENTS or len(whole) > limit)
    assert capture.finish().body == (None if capture.live else whole)
    if headers == LENGTH or not capture.live:
        assert len(sent.after) >= min(1, len(sent_by_it)), "the last bytes are what completes it"
    else:
        assert not sent.after, "an unbounded response goes out as it comes"


@each_row("limit", [2, 100])
def test_a_held_response_leaves_nothing_and_is_not_live(limit: int) -> None:
    capture = Capture(Guard(_boundary(), {"on_large": "error", "response_limit": limit}, principal="shared"))
    capture.begin(200, ())
    capture.add(b"a")
    capture.add(b"b")
    assert not capture.may_begin
    assert capture.leaving() == []
    if limit == 2:
        with pytest.raises(Refusal):
            capture.add(b"c")
    else:
        assert capture.rest() == [b"a", b"b"]
    with pytest.raises(Refusal):
        Capture(Guard(_boundary(), {"on_large": "error"}, principal="shared")).begin(200, EVENTS)


def test_later_changes_of_the_application_change_no_record() -> None:
    capture, chunk = Capture(Guard(_boundary(), {}, principal="shared")), bytearray(b"abc")
    capture.begin(200, ())
    capture.add(chunk)
    chunk[:] = b"xyz"
    assert capture.finish().body == b"abc"
    assert capture.rest() == [b"abc"]


@cache
def _boundary() -> Boundary:
    return Boundary("captured", store="memory://")
