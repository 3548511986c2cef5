"""The protocol's decisions: who is guarded, by what fingerprint, and what a response amounts to."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from retrysafe import Boundary, KeyReused
from retrysafe.claims.responses import ResponseCodec
from retrysafe.http.bodies import Body
from retrysafe.http.guard import Guard
from retrysafe.http.messages import Request, Response
from retrysafe.http.policy import Options
from retrysafe.http.principals import is_named, make_scope
from retrysafe.http.problems import Refusal
from retrysafe.protocol.fingerprint import of_parts
from retrysafe.protocol.keys import LONGEST
from tests.http.observing import Recorder
from tests.tables import each_row


@pytest.fixture
def boundary() -> Iterator[Boundary]:
    made = Boundary("api", store="memory://")
    yield made
    made.close()


def request(method: str = "POST", path: bytes = b"/pay", query: bytes = b"", **headers: bytes) -> Request:
    lines = tuple((name.replace("_", "-").encode(), value) for name, value in headers.items())
    return Request(method, path, query, lines)


def admitted(boundary: Boundary, asked: Request, **options: Any) -> str | None:
    return Guard(boundary, options, principal="shared").admit(asked)  # type: ignore[arg-type]


def code(boundary: Boundary, asked: Request, **options: Any) -> str:
    with pytest.raises(Refusal) as refused:
        admitted(boundary, asked, **options)
    return refused.value.code


def run(guard: Guard, asked: Request, content: bytes = b"", key: str = "k", scope: str | None = None) -> Response:
    """Serve a request whose handler answers 200, to the end."""
    body = Body(asked, guard.policy)
    body.add(content)
    claim = guard.claim(asked, key, body, scope)
    with claim:
        if not claim.replayed:
            guard.judge(claim, Response(200, (), b"done"), asked)
    return claim.result  # type: ignore[no-any-return]


@each_row("method", ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "QUERY"])
def test_k7_other_methods_pass_untouched(boundary: Boundary, method: str) -> None:
    assert admitted(boundary, request(method, idempotency_key=b'"broken'), required=True) is None


def test_k7_methods_are_a_choice(boundary: Boundary) -> None:
    assert admitted(boundary, request("PUT", idempotency_key=b"k"), methods=["PUT"]) == "k"


def test_k6_no_key(boundary: Boundary) -> None:
    assert admitted(boundary, request()) is None
    assert code(boundary, request(), required=True) == "key-missing"
    assert code(boundary, request(), routes={"/pay": "required"}) == "key-missing"
    assert admitted(boundary, request(idempotency_key=b"k"), routes={"/pay": "off"}) is None


def test_k6_a_path_is_matched_as_the_application_routes_it(boundary: Boundary) -> None:
    assert code(boundary, request(path=b"/%70ay"), routes={"/pay": "required"}) == "key-missing"


def test_k5_a_broken_key_is_refused_where_keys_are_optional_too(boundary: Boundary) -> None:
    assert code(boundary, request(idempotency_key=b'"broken')) == "key-invalid"


def test_k11_a_guessable_key_is_refused_when_asked(boundary: Boundary) -> None:
    assert code(boundary, request(idempotency_key=b"17"), key_policy="strong") == "key-invalid"


@each_row("nobody", [None, "", True, 1.5, object()])
def test_k8_nobody_is_refused(boundary: Boundary, nobody: object) -> None:
    with pytest.raises(Refusal) as refused:
        Guard(boundary, {}, lambda scope: nobody).scope(nobody)
    assert refused.value.code == "principal-missing"


def test_k8_two_principals_do_not_meet_and_k9_one_meets_itself(boundary: Boundary) -> None:
    guard = Guard(boundary, {}, lambda scope: None)
    scopes = [guard.scope(who) for who in ("ann", "bob", 17, UUID(int=17))]
    assert len(set(scopes)) == 4
    assert guard.scope("ann") == scopes[0]


@each_row(
    ("one", "other"),
    [
        (("a", "1:b"), ("a:1", "b")),
        (("", "1:a:b"), ("a", "b")),
        (("a", "b" * 300), ("a", "b" * 301)),
        (("", "b" * 300), ("", make_scope("", "b" * 300))),
        (("a", "b" * 300), ("", make_scope("a", "b" * 300))),
    ],
)
def test_k8_scopes_of_tenant_and_principal_do_not_meet(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert make_scope(*one) != make_scope(*other)
    assert all(len(make_scope(*pair)) <= LONGEST for pair in (one, other))


def test_k8_principals_of_different_types_do_not_meet() -> None:
    assert len({make_scope(tenant, who) for tenant in ("", "7") for who in (7, "7", "#7", "0:#7")}) == 8
    assert make_scope("", "ann") == "ann", "as records of earlier versions have it"
    assert make_scope("", "ann", "bob") != make_scope("", "bob", "ann")
    assert not any(map(is_named, (None, "", True, b"7", 1.5, object())))


OTHERS = {
    "method": request("PATCH"),
    "path": request(path=b"/pay/"),
    "query": request(query=b"a=2&a=1"),
    "content-type": request(content_type=b"text/plain"),
    "content-encoding": request(content_encoding=b"gzip"),
    "if-match": request(if_match=b'"v2"'),
    "if-none-match": request(if_none_match=b"*"),
}


@each_row("part", OTHERS)
def test_f1_each_part_counts_and_a_mismatch_names_it(boundary: Boundary, part: str) -> None:
    guard = Guard(boundary, {}, principal="shared")
    run(guard, request())
    with pytest.raises(KeyReused) as reused:
        run(guard, OTHERS[part])
    assert reused.value.differing == (part,)


@pytest.mark.fault(68)
@each_row("path", [b"/pay", b"/" + b"long" * 1000])
def test_f1_a_fingerprint_is_that_of_all_parts_as_earlier_releases_wrote_it(boundary: Boundary, path: bytes) -> None:
    guard, content = Guard(boundary, {}, principal="shared"), b"{}"
    asked = request("POST", path, b"a=1", content_type=b"text/plain", if_match=b'"v1"', accept=b"*/*")
    parts = {"method": b"POST", "path": path, "query": b"a=1", "content-type": b"text/plain", "if-match": b'"v1"'}
    whole = of_parts({**parts, "body": sha256(content).digest()})
    for _ in range(2):  # the second one knows the head
        body = Body(asked, guard.policy)
        body.add(content)
        with guard.claim(asked, f"k{len(path)}", body, None) as claim:
            if not claim.replayed:
                guard.judge(claim, Response(200, (), b"done"), asked)
    codec = ResponseCodec()
    given: Any = {"operation": "http", "fingerprint": whole, "annotation": asked, "codec": codec}
    with boundary.entrypoint.open(f"k{len(path)}", **given) as same:
        assert same.replayed


def test_f1_the_body_counts_byte_by_byte(boundary: Boundary) -> None:
    guard = Guard(boundary, {}, principal="shared")
    asked = request(content_type=b"application/json")
    run(guard, asked, b'{"a": 1}')
    with pytest.raises(KeyReused) as reused:
        run(guard, asked, b'{"a":1}')
    assert reused.value.differing == ("body",)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (request(path=b"/a%2Fb"), request(path=b"/a/b")),
        (request(query=b"a=1&a=2"), request(query=b"a=2&a=1")),
    ],
)
def test_f2_paths_and_queries_are_compared_as_they_were_sent(boundary: Boundary, one: Request, other: Request) -> None:
    guard = Guard(boundary, {}, principal="shared")
    run(guard, one)
    with pytest.raises(KeyReused):
        run(guard, other)


def test_f3_a_canonical_form_compares_what_is_meant(boundary: Boundary) -> None:
    guard = Guard(boundary, {"canonical_json": True}, principal="shared")
    asked = request(content_type=b"application/json; charset=utf-8")
    run(guard, asked, b'{"a": 0.1, "b": 1}')
    run(guard, asked, b'{"b":1.0,"a":0.1}')
    with pytest.raises(KeyReused):
        run(guard, asked, b'{"a": 0.1000000000000000055, "b": 1}')


def test_f3_an_encoded_body_is_compared_by_its_bytes(boundary: Boundary) -> None:
    guard = Guard(boundary, {"canonical_json": True}, principal="shared")
    asked = request(content_type=b"application/json", content_encoding=b"gzip")
    assert run(guard, asked, b"\x1f\x8b one") == run(guard, asked, b"\x1f\x8b one")
    with pytest.raises(KeyReused):
        run(guard, asked, b"\x1f\x8b two")


@each_row("path", [b"/" + b"x" * 300, b"/\xc3\x84", b"/\x7f"])
def test_an_endpoint_of_any_bytes_has_keys_of_its_own(boundary: Boundary, path: bytes) -> None:
    guard = Guard(boundary, {"operation": "endpoint"}, principal="shared")
    assert run(guard, request(path=path)).status == 200
    assert run(guard, request(path=path + b"/")).status == 200
    with pytest.raises(KeyReused):
        run(guard, request(path=path), b"another")


@pytest.mark.fault(65, 67, 68)
@each_row("content", [b"{", b'{"a":1,"a":2}', b"NaN", b"\xff"])
def test_f3_json_without_a_canonical_form_is_refused_and_consumes_no_key(boundary: Boundary, content: bytes) -> None:
    guard = Guard(boundary, {"canonical_json": True}, principal="shared")
    asked = request(content_type=b"application/problem+json")
    with pytest.raises(Refusal) as refused:
        run(guard, asked, content)
    assert refused.value.code == "request-invalid"
    run(guard, asked, b"{}")


def test_f5_other_headers_do_not_count(boundary: Boundary) -> None:
    guard = Guard(boundary, {}, principal="shared")
    run(guard, request(date=b"1", traceparent=b"00-1", authorization=b"Bearer a"))
    run(guard, request(date=b"2", traceparent=b"00-2", authorization=b"Bearer b"))


def test_the_same_key_at_another_endpoint_is_another_key_if_so_chosen(boundary: Boundary) -> None:
    options: Options = {"operation": "endpoint"}
    guard = Guard(boundary, options, principal="shared")
    run(guard, request(path=b"/" + b"a" * 300))
    run(guard, request(path=b"/" + b"a" * 301))
    run(guard, request("PATCH", path=b"/" + b"a" * 300))


@pytest.mark.fault(65)
@pytest.mark.parametrize("status", [400, 402, 404, 405, 409, 410, 413, 415, 422, 451])
def test_r25_refusals_of_the_application_are_stored(boundary: Boundary, status: int) -> None:
    assert served(boundary, [status, 200]) == [status, status]


@pytest.mark.parametrize("status", [401, 403, 408, 421, 425, 429])
def test_refusals_of_which_a_retry_may_fare_better_free_the_key(boundary: Boundary, status: int) -> None:
    assert served(boundary, [status, 200]) == [status, 200]


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_5xx_frees_a_keyed_key_and_is_stored_if_so_chosen(boundary: Boundary, status: int) -> None:
    assert served(boundary, [status, 200]) == [status, 200]
    assert served(boundary, [status, 200], key="other", on_5xx="store") == [status, status]


def test_a_failure_that_the_handler_declared_is_stored_as_its_answer(boundary: Boundary) -> None:
    guard = Guard(boundary, {}, principal="shared")
    asked = request()
    for _ in range(2):
        claim = guard.claim(asked, "k", Body(asked, guard.policy), None)
        with claim:
            if not claim.replayed:
                claim.fail(ValueError("no such card"))
                guard.judge(claim, Response(503, (), b"no such card"), asked)
        assert claim.result == Response(503, (), b"no such card")
    assert claim.replayed


def served(boundary: Boundary, statuses: list[int], key: str = "k", **options: Any) -> list[int]:
    """Return the answers to a client that tries once for each of the handler's statuses."""
    guard = Guard(boundary, options, principal="shared")  # type: ignore[arg-type]
    asked = request()
    got = []
    for status in statuses:
        claim = guard.claim(asked, key, Body(asked, guard.policy), None)
        with claim:
            if not claim.replayed:
                guard.judge(claim, Response(status, (), b""), asked)
        got.append(claim.result.status)
    return got


def test_k10_the_raw_key_is_neither_stored_nor_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    seen, key = Recorder(), "card-4242424242424242"
    boundary = Boundary("api", store=f"sqlite:///{tmp_path}/keys.db", observers=[seen])
    guard = Guard(boundary, {}, principal=str)
    for path in (b"/pay", b"/pay", b"/other"):
        asked = request(path=path, idempotency_key=key.encode())
        admitted = guard.admit(asked)
        assert admitted == key
        with contextlib.suppress(KeyReused), guard.claim(asked, key, Body(asked, guard.policy), "ann") as claim:
            if not claim.replayed:
                guard.judge(claim, Response(200, (), b"done"), asked)
    boundary.close()
    assert {"started", "completed", "replayed", "mismatch"} <= set(seen.names)
    told = caplog.text + str(seen.told) + str([record.__dict__ for record in caplog.records])
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert key not in told
    assert key.encode() not in stored
    assert b"ann" in stored


@each_row("status", [307, 308])
@each_row("on_expired", ["new", "refuse"])
def test_a_redirected_request_may_use_its_key_at_the_other_place(status: int, on_expired: str) -> None:
    boundary = Boundary("moved", store="memory://", on_expired=on_expired, window="1h", memory="2h")  # type: ignore[arg-type]
    guard = Guard(boundary, {}, principal="shared")
    for path, answer in ((b"/orders/", status), (b"/orders/", status), (b"/orders", 201), (b"/orders", 500)):
        asked = request(path=path)
        claim = guard.claim(asked, "k", Body(asked, guard.policy), None)
        with claim:
            if not claim.replayed:
                guard.judge(claim, Response(answer, (), b""), asked)
    assert claim.replayed
    assert claim.result.status == 201
    with pytest.raises(KeyReused):
        run(guard, request(path=b"/orders/"))
    boundary.close()


def test_other_redirects_are_answers(boundary: Boundary) -> None:
    for status in (301, 302, 303):
        assert served(boundary, [status, 200], key=str(status)) == [status, status]
