"""The stored parts of a response, and the look of a replay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrysafe.claims.responses import MEDIA_TYPE, VERSION, ResponseCodec
from retrysafe.errors import ResultNotEncodable, ResultUnreadable
from retrysafe.http.messages import (
    Headers,
    Response,
    find_dropped_fields,
    is_endless,
    mark_replay,
    strip_fields,
)
from retrysafe.protocol.records import StoredResult
from tests.tables import each_row

NONE = find_dropped_fields(frozenset())
FULL = Response(
    201,
    (
        (b"date", b"Fri, 20 Nov 2026 10:00:00 GMT"),
        (b"content-type", b"application/json"),
        (b"content-length", b"2"),
        (b"connection", b"close, X-Hop"),
        (b"x-hop", b"1"),
        (b"keep-alive", b"timeout=5"),
        (b"transfer-encoding", b"chunked"),
        (b"trailer", b"x"),
        (b"upgrade", b"h2c"),
        (b"te", b"trailers"),
        (b"proxy-connection", b"close"),
        (b"link", b"</a>; rel=next"),
        (b"x-one", b"1"),
        (b"link", b"</b>; rel=prev"),
        (b"set-cookie", b"a=1"),
        (b"set-cookie", b"b=2"),
        (b"www-authenticate", b"Basic"),
        (b"etag", b'"v1"'),
        (b"location", b"/orders/1"),
        (b"cache-control", b"max-age=60"),
    ),
    b"{}",
)


def lines(response: Response, name: bytes) -> list[bytes]:
    return [value for field, value in response.headers if field == name]


def test_r4_lines_stay_lines_in_their_order() -> None:
    assert lines(strip_fields(FULL, None, NONE), b"link") == [b"</a>; rel=next", b"</b>; rel=prev"]


def test_r5_fields_of_one_connection_are_not_stored() -> None:
    names = {name for name, _ in strip_fields(FULL, None, NONE).headers}
    assert names == {b"content-type", b"link", b"x-one", b"etag", b"location", b"cache-control"}


def test_r6_secrets_are_stored_only_if_allowed_and_then_every_line() -> None:
    allowed = strip_fields(FULL, None, find_dropped_fields(frozenset({b"set-cookie"})))
    assert lines(allowed, b"set-cookie") == [b"a=1", b"b=2"]
    assert lines(allowed, b"www-authenticate") == []


def test_r6_an_allow_list_drops_all_others() -> None:
    assert strip_fields(FULL, frozenset({b"etag"}), NONE).headers == ((b"etag", b'"v1"'),)


def test_r2_a_replay_is_the_stored_response_marked() -> None:
    again = mark_replay(strip_fields(FULL, None, NONE))
    assert (again.status, again.body) == (201, b"{}")
    assert lines(again, b"idempotent-replayed") == [b"true"]
    assert lines(again, b"content-length") == [b"2"]
    assert lines(again, b"etag") == [b'"v1"']
    assert lines(again, b"location") == [b"/orders/1"]


@each_row("body", [b"x", None])
def test_r2_the_marks_of_another_layer_behind_the_application_are_not_doubled(body: bytes | None) -> None:
    passed_on = ((b"idempotent-replayed", b"true"), (b"idempotency-replay", b"omitted"))
    names = [name for name, _ in mark_replay(Response(200, passed_on, body)).headers]
    assert (names.count(b"idempotent-replayed"), names.count(b"idempotency-replay")) == (1, 1)


def test_r30_a_replay_is_not_to_be_cached() -> None:
    assert lines(mark_replay(strip_fields(FULL, None, NONE)), b"cache-control") == [b"no-store"]


@each_row(("status", "body", "length"), [(204, b"", []), (303, b"", [b"0"]), (200, b"\x00\xff", [b"2"])])
def test_r7_bodies_of_every_kind(status: int, body: bytes, length: list[bytes]) -> None:
    again = mark_replay(Response(status, (), body))
    assert (again.status, again.body, lines(again, b"content-length")) == (status, body, length)


@each_row("value", [b"text/event-stream", b"Text/Event-Stream; charset=utf-8", b" text/event-stream"])
def test_r11_a_media_type_is_known_in_any_case(value: bytes) -> None:
    assert is_endless([(b"content-type", value)])
    assert not is_endless([(b"x-content-type", value)])
    assert not is_endless([(b"content-type", b"text/plain, " + value)])


def test_r11_a_body_that_was_not_kept() -> None:
    again = mark_replay(strip_fields(FULL, None, NONE)._replace(body=None))
    assert (again.status, again.body) == (201, b"")
    assert lines(again, b"idempotency-replay") == [b"omitted"]
    assert lines(again, b"content-type") == []
    assert lines(again, b"content-length") == [b"0"]


@each_row("body", [b"", b"\n", b"a\nb\r\n", bytes(range(256)), None])
def test_r2_stored_responses_are_read_back_byte_by_byte(body: bytes | None) -> None:
    response = Response(200, ((b"x", b"caf\xe9"), (b"x", b"")), body)
    assert ResponseCodec().decode(ResponseCodec().encode(response, None), None) == response


@each_row(
    "stored",
    [
        StoredResult(b"{}\n", MEDIA_TYPE, VERSION + 1),
        StoredResult(b"{}\n", "application/json", VERSION),
        StoredResult(b"", MEDIA_TYPE, VERSION),
        StoredResult(b"[]\n", MEDIA_TYPE, VERSION),
        StoredResult(b'{"status": 200}\n', MEDIA_TYPE, VERSION),
    ],
)
def test_unreadable_responses_are_an_error_and_no_answer(stored: StoredResult) -> None:
    with pytest.raises(ResultUnreadable):
        ResponseCodec().decode(stored, None)


def test_a_withheld_response_is_told_apart_from_one_that_cannot_be_read() -> None:
    with pytest.raises(ResultNotEncodable, match="withheld"):
        ResponseCodec().decode(StoredResult(None, "", 0), None)


FIRST = b'{"status":201,"headers":[["location","/orders/1"],["x","caf\xc3\xa9"]],"omitted":%b}\nbo\ndy'


@each_row("omitted", [False, True])
def test_responses_stored_by_releases_up_to_0_1_are_read(omitted: bool) -> None:
    stored = StoredResult(FIRST % (b"true" if omitted else b"false"), MEDIA_TYPE, 1)
    headers = ((b"location", b"/orders/1"), (b"x", b"caf\xe9"))
    assert ResponseCodec().decode(stored, None) == Response(201, headers, None if omitted else b"bo\ndy")


@each_row("headers", [((b"x", b"a\nb"),), ((b"x\n", b""),), ((b"x", b"1"), (b"y", b"\n\n"))])
def test_a_line_feed_in_a_field_moves_nothing_of_the_response(headers: Headers) -> None:
    response = Response(200, headers, b"body")
    assert ResponseCodec().decode(ResponseCodec().encode(response, None), None) == response


@given(st.binary(max_size=20), st.integers(0, 60))
def test_a_stored_response_that_is_damaged_is_an_error(noise: bytes, at: int) -> None:
    whole = ResponseCodec().encode(Response(200, ((b"x", b"1"), (b"y", b"2")), b""), None)
    cut = (whole.body or b"")[:at] + noise
    if not cut.startswith(whole.body or b""):
        try:
            read = ResponseCodec().decode(whole._replace(body=cut), None)
        except ResultUnreadable:
            return
        assert ResponseCodec().encode(read, None).body != whole.body
