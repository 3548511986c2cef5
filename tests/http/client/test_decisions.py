"""The parts without a network: reactions to a result, waiting times, budgets, redirects, and the meaning of errors."""

from __future__ import annotations

import ssl
from typing import Any

import httpx
import pytest
import requests
import urllib3
from hypothesis import given
from hypothesis import strategies as st

from retrysafe import ConfigurationError
from retrysafe.http.client import Budgets, Host, Retries
from retrysafe.http.client import over_httpx as httpx_side
from retrysafe.http.client import over_requests as requests_side
from retrysafe.http.client.bodies import ends_unmarked, is_read_whole, problem_code
from retrysafe.http.client.budget import Bucket
from retrysafe.http.client.calling import Outgoing
from retrysafe.http.client.driving import best, decides
from retrysafe.http.client.hosts import address, origin_of, quote_key
from retrysafe.http.client.operation import Pause, Refresh, Send
from retrysafe.http.client.redirects import RequestTarget, follow
from retrysafe.http.client.results import Failure, Kind, RetryVerdict, ServerAnswer, in_doubt, judge, may_repeat
from retrysafe.http.key_header import parse
from tests.http.client.senders import Time
from tests.tables import each_row

LOST = Failure(Kind.AMBIGUOUS, RuntimeError())
UNSENT = Failure(Kind.UNSENT, RuntimeError())
HOPELESS = Failure(Kind.HOPELESS, RuntimeError())
HOST = Host("https://api.example.com")


def answer(status: int, code: str = "", **headers: str) -> ServerAnswer:
    return ServerAnswer(status, httpx.Headers({name.replace("_", "-"): headers[name] for name in headers}), code, None)


# ---------------------------------------------------------------- verdicts


def test_verdicts_of_failures() -> None:
    assert [judge(one, HOST) for one in (LOST, UNSENT, HOPELESS)] == [
        RetryVerdict.RETRY,
        RetryVerdict.RETRY,
        RetryVerdict.FINAL,
    ]
    assert [may_repeat(one, repeatable=False) for one in (LOST, UNSENT)] == [False, True]
    assert not may_repeat(answer(503), repeatable=False)


@each_row(
    ("before", "result", "after"),
    [
        (False, LOST, True),
        (False, UNSENT, False),
        (True, UNSENT, True),
        (False, HOPELESS, False),
        (True, answer(201), False),
        (True, answer(422), False),
        (True, answer(500, idempotent_replayed="true"), False),
        (False, answer(500), True),
        (False, answer(503), True),
        (False, answer(408), True),
        (False, answer(429), False),
        (True, answer(429), True),
        (True, answer(401), True),
        (False, answer(401), False),
        (True, answer(307, location="/x"), True),
        (False, answer(409, "in-progress"), True),
        (False, answer(409, "outcome-unknown"), True),
        (True, answer(409, "key-expired"), False),
        (True, answer(409), True),
        (False, answer(409), False),
        (True, answer(409, "key-reused"), False),
    ],
)
def test_doubt(before: bool, result: Any, after: bool) -> None:
    assert in_doubt(before, result) is after


def test_of_two_copies_the_better_counts() -> None:
    ours = answer(201)
    conflict, unavailable = answer(409, retry_after="1"), answer(503)
    assert decides(ours)
    refusals = [answer(status) for status in (401, 403, 404, 409, 422, 429)]
    assert not any(map(decides, [conflict, unavailable, *refusals, answer(307, location="/x"), LOST]))
    assert decides(answer(404, idempotent_replayed="true"))
    assert best([LOST, conflict, unavailable, ours], HOST) is ours
    assert best([LOST, conflict, unavailable], HOST) is unavailable
    assert best([LOST, conflict], HOST) is conflict
    assert best([UNSENT, LOST, HOPELESS], HOST) is LOST
    assert best([unavailable, refusals[1]], HOST) is refusals[1]


# ---------------------------------------------------------------- the budget


@given(st.lists(st.booleans(), max_size=300))
def test_c13_attempts_are_bounded_whatever_happens(requests_: list[bool]) -> None:
    bucket, sent, begun = Bucket(), 0, 0
    for is_request in requests_:
        if is_request:
            bucket = bucket.deposit()
            begun += 1
            sent += 1
        elif (taken := bucket.take()) is not None:
            bucket = taken
            sent += 1
        assert 0 <= bucket.tenths <= 1000
        assert sent * 10 <= begun * 12 + 100


def test_c13_the_bucket_has_a_ceiling() -> None:
    bucket = Bucket()
    for _ in range(10_000):
        bucket = bucket.deposit()
    assert bucket.tenths == 1000


# ---------------------------------------------------------------- redirects, hosts, bodies


def test_c16_targets_of_redirects() -> None:
    target = RequestTarget("POST", "https://api.example.com/a/b?q=1", keyed=True, added={"Authorization": "new"})
    near = follow(target, answer(308, location="../c#part"))
    assert near is not None
    assert (near.url, near.keyed, near.added) == ("https://api.example.com/c", True, target.added)
    for elsewhere in ("https://other.example.com/", "http://api.example.com/", "https://api.example.com:8443/"):
        far = follow(target, answer(307, location=elsewhere))
        assert far is not None
        assert not far.keyed
        assert {"authorization", "cookie"} <= far.dropped
        assert far.added == {}
    same = follow(target, answer(307, location="https://API.example.com:443/x"))
    assert same is not None
    assert same.keyed
    assert follow(target, answer(307, location="ftp://api.example.com/")) is None
    put = follow(target._replace(method="PUT"), answer(302, location="/c"))
    assert put is not None
    assert (put.method, put.keyed) == ("PUT", True)


def test_hosts_are_origins() -> None:
    assert origin_of("HTTPS://Api.Example.com/path") == "https://api.example.com:443"
    assert origin_of("http://[::1]:8080") == "http://[::1]:8080"
    assert origin_of("https://B\u00fccher.example") == address(str(httpx.URL("https://b\u00fccher.example/")))
    strasse = "https://stra\u00dfe.example/"
    assert origin_of(strasse) == address(str(requests.Request("GET", strasse).prepare().url))
    for wrong in (
        "api.example.com",
        "ftp://x",
        "https://x:99999",
        "https://api.example.com/v1",
        "http://[",
        "http://\u2003/",
    ):
        with pytest.raises(ConfigurationError):
            Host(wrong)
    for choice in ({"key_syntax": "odd"}, {"methods": "POST"}, {"retention": 0}):
        with pytest.raises(ConfigurationError):
            Host("https://x", **choice)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="declared twice"):
        Retries([Host("https://x"), Host("https://x:443")])
    for name, value in {"max_attempts": 0, "redirects": -1, "deadline": "soon", "body_limit": True}.items():
        with pytest.raises(ConfigurationError, match=name):
            Retries(**{name: value})  # type: ignore[arg-type]


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=255))
def test_c18_a_quoted_key_is_read_as_it_was(key: str) -> None:
    assert parse([quote_key(key).encode()], "strict") == key


def test_which_responses_are_read_whole() -> None:
    assert is_read_whole({"content-length": "10"}, keyed=False, limit=10)
    assert not is_read_whole({"content-length": "11"}, keyed=True, limit=10)
    assert is_read_whole({}, keyed=True, limit=10)
    assert not is_read_whole({}, keyed=False, limit=10)
    assert not is_read_whole({"content-type": "text/event-stream"}, keyed=True, limit=10)
    assert ends_unmarked(11, "POST", 201, {})
    assert not ends_unmarked(10, "POST", 201, {})
    assert not ends_unmarked(11, "POST", 204, {})
    assert not ends_unmarked(11, "HEAD", 200, {})
    assert not ends_unmarked(11, "POST", 201, {"connection": "close"})
    assert not ends_unmarked(11, "POST", 201, {"transfer-encoding": "chunked"})


def test_codes_of_problem_documents() -> None:
    json = "application/problem+json; charset=utf-8"
    assert problem_code(json, b'{"code": "in-progress"}') == "in-progress"
    for body in (b"{", b"[]", b'{"code": 1}', b"{}"):
        assert problem_code(json, body) == ""
    assert problem_code("application/json", b'{"code": "in-progress"}') == ""


# ---------------------------------------------------------------- which errors mean what

_CERTIFICATE = ssl.SSLCertVerificationError("self-signed")


def _with_cause(error: Exception, cause: Exception) -> Any:
    error.__cause__ = cause
    return error


@each_row(
    ("error", "kind"),
    [
        (httpx.ConnectError("x"), Kind.UNSENT),
        (httpx.ConnectTimeout("x"), Kind.UNSENT),
        (httpx.PoolTimeout("x"), Kind.UNSENT),
        (httpx.ProxyError("x"), Kind.UNSENT),
        (httpx.ReadTimeout("x"), Kind.AMBIGUOUS),
        (httpx.WriteTimeout("x"), Kind.AMBIGUOUS),
        (httpx.ReadError("x"), Kind.AMBIGUOUS),
        (httpx.WriteError("x"), Kind.AMBIGUOUS),
        (httpx.CloseError("x"), Kind.AMBIGUOUS),
        (httpx.RemoteProtocolError("x"), Kind.AMBIGUOUS),
        (httpx.LocalProtocolError("x"), Kind.HOPELESS),
        (httpx.UnsupportedProtocol("x"), Kind.HOPELESS),
        (_with_cause(httpx.ConnectError("x"), _CERTIFICATE), Kind.HOPELESS),
        (_with_cause(httpx.ConnectError("x"), ssl.SSLEOFError("cut off")), Kind.UNSENT),
    ],
)
def test_c04_to_c06_errors_of_httpx(error: httpx.TransportError, kind: Kind) -> None:
    assert httpx_side._failure(error).kind is kind


_POOL: Any = urllib3.HTTPConnectionPool("127.0.0.1", 1)


def _refused(reason: Exception) -> Exception:
    return urllib3.exceptions.MaxRetryError(_POOL, "/", reason)


@each_row(
    ("error", "kind"),
    [
        (requests.ConnectTimeout("x"), Kind.UNSENT),
        (requests.exceptions.ProxyError("x"), Kind.UNSENT),
        (requests.ConnectionError(_refused(urllib3.exceptions.NewConnectionError(_POOL, "x"))), Kind.UNSENT),
        (
            requests.ConnectionError(_refused(urllib3.exceptions.NameResolutionError("h", _POOL, OSError()))),  # type: ignore[arg-type]
            Kind.UNSENT,
        ),
        (requests.ConnectionError(urllib3.exceptions.EmptyPoolError(_POOL, "x")), Kind.UNSENT),
        (requests.ConnectionError(urllib3.exceptions.ProtocolError("reset")), Kind.AMBIGUOUS),
        (requests.ConnectionError(_refused(OSError("x"))), Kind.AMBIGUOUS),
        (requests.ReadTimeout("x"), Kind.AMBIGUOUS),
        (requests.exceptions.ChunkedEncodingError("x"), Kind.AMBIGUOUS),
        (requests.exceptions.SSLError(_refused(urllib3.exceptions.SSLError(_CERTIFICATE))), Kind.HOPELESS),
        (requests.exceptions.SSLError(_refused(urllib3.exceptions.SSLError(ssl.SSLEOFError("x")))), Kind.AMBIGUOUS),
        (requests.exceptions.InvalidURL("x"), Kind.HOPELESS),
        (requests.exceptions.InvalidHeader("x"), Kind.HOPELESS),
    ],
)
def test_c04_to_c06_errors_of_requests(error: requests.RequestException, kind: Kind) -> None:
    assert requests_side._failure(error).kind is kind


# ---------------------------------------------------------------- the operation, step by step


def steps(url: str, time: Time, results: list[Any], **choices: Any) -> list[Any]:
    """Return the requests of an operation whose attempts come to these results."""
    retries = Retries([HOST], environment=time.environment, observers=(), budgets=Budgets(), **choices)
    program = retries.plan(Outgoing("POST", url, (), b"{}")).program()
    asked: list[Any] = []
    waiting = iter(results)
    reply: Any = None
    while True:
        try:
            step = program.send(reply)
        except StopIteration as stop:
            return [*asked, stop.value]
        asked.append(step)
        reply = next(waiting) if isinstance(step, Send) else None
        if isinstance(step, Send):
            step.ended(reply)
        if isinstance(step, Pause):
            time.now += step.seconds


def test_no_attempt_has_more_time_than_is_left() -> None:
    time = Time()
    asked = steps("https://api.example.com/", time, [LOST, LOST, LOST], deadline=1, base=0.25)
    assert [one.end for one in asked if isinstance(one, Send)] == [1001] * 3
    assert time.now == 1000.75


def test_c17_only_what_can_be_repeated_is_hedged() -> None:
    def hedge_after(url: str) -> float | None:
        found: float | None = steps(url, Time(), [answer(201)], hedge_after=0.5)[0].hedge_after
        return found

    assert hedge_after("https://api.example.com/") == 0.5
    assert hedge_after("https://elsewhere.example.com/") is None
    assert steps("https://api.example.com/", Time(), [answer(201)])[0].hedge_after is None


def test_c17_no_copy_is_sent_after_the_deadline() -> None:
    time, budgets = Time(), Budgets()
    retries = Retries([HOST], environment=time.environment, observers=(), budgets=budgets, hedge_after=0.5, deadline=1)
    step = next(retries.plan(Outgoing("POST", "https://api.example.com/", (), b"{}")).program())
    assert isinstance(step, Send)
    left = budgets.left(HOST.origin)
    time.now += 1
    assert not step.admits_hedge()
    assert budgets.left(HOST.origin) == left
    time.now -= 0.5
    assert step.admits_hedge()


def test_c15_a_body_that_is_gone_is_not_sent_although_nothing_was() -> None:
    retries = Retries([HOST], environment=Time().environment, observers=())
    program = retries.plan(Outgoing("POST", "https://api.example.com/", (), None)).program()
    assert isinstance(next(program), Send)
    with pytest.raises(StopIteration) as ended:
        program.send(UNSENT)
    assert ended.value.value.limit == "unrepeatable"


def test_c08_one_refresh_is_asked_for() -> None:
    asked = steps("https://api.example.com/", Time(), [answer(401)])
    assert [type(one) for one in asked[:2]] == [Send, Refresh]
    assert asked[-1].result.status == 401
