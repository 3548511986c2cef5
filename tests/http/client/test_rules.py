"""The client's rules of the HTTP contract, each by its name, over every transport and against real sockets."""

from __future__ import annotations

import gzip
import io
import json
import re
import threading
import zlib
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from retrysafe import ConfigurationError, InvalidKey
from retrysafe.http.client import (
    Budgets,
    Environment,
    Host,
    Journal,
    RequestKeyExpired,
    RequestKeyReused,
    RequestOutcomeUnknown,
    Retries,
)
from retrysafe.http.client.bodies import decode, problem_code
from tests.http.client.conftest import Make
from tests.http.client.senders import FAILURES, SENDERS, Time
from tests.http.client.server import (
    AMBIGUOUS,
    Server,
    cuts_body,
    delayed,
    drops_answer,
    drops_request,
    in_chunks,
    problem,
    running,
    says,
    stalls,
    well,
)
from tests.http.observing import Recorder
from tests.ports import free_port
from tests.tables import each_row

pytestmark = pytest.mark.slow

BY_NAME = {behaviour.__name__: behaviour for behaviour in AMBIGUOUS}


# ---------------------------------------------------------------- keys and bodies


def test_c01_every_attempt_has_the_same_key_url_and_bytes(make: Make, server: Server) -> None:
    server.will(drops_request, drops_answer)
    got = make().post(f"{server.url}?a=1&a=2", b"\x00\xff{}", content_type="application/octet-stream")
    assert got.status == 201
    assert server.effects == [server.keys[0]]
    first, *others = [(request.key, request.target, request.body) for request in server.requests]
    assert others == [first, first]
    assert first[1:] == ("/orders?a=1&a=2", b"\x00\xff{}")


def test_c01_two_operations_have_two_keys(make: Make, server: Server) -> None:
    sender = make()
    sender.post(server.url)
    sender.post(server.url)
    assert len(set(server.keys)) == len(server.effects) == 2
    assert all(key is not None and len(key) == 36 for key in server.keys)


def test_c01_a_key_of_the_callers_own_is_kept(make: Make, server: Server) -> None:
    server.will(drops_answer)
    make().post(server.url, Idempotency_Key="order-17")
    assert server.keys == ["order-17", "order-17"]
    with pytest.raises(InvalidKey):
        make().post(server.url, Idempotency_Key="a, b")
    assert len(server.requests) == 2


def test_c01_a_call_without_a_key_of_the_callers_own_is_refused_where_one_is_required(
    make: Make, server: Server
) -> None:
    sender = make(hosts=[Host(server.origin, requires_key=True)])
    with pytest.raises(InvalidKey, match="Nothing was sent"):
        sender.post(server.url)
    assert server.requests == []
    server.will(drops_answer)
    assert [sender.post(server.url, Idempotency_Key="order-17").status for _ in "ab"] == [201, 201]
    assert server.effects == ["order-17"]


def test_c01_a_provider_gets_the_key_in_its_own_header(make: Make, server: Server, time: Time, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "calls.db")
    sender = make(hosts=[Host(server.origin, provider="paypal", retention="1h")], journal=journal, max_attempts=2)
    server.will(drops_answer)
    assert sender.post(server.url, Idempotency_Key="order-17").status == 201
    server.will(drops_answer, drops_answer)
    with pytest.raises(FAILURES):
        sender.post(server.url, b"another")
    (resumed,) = sender.resume(journal, time.environment.wall)
    assert resumed.error is None
    assert [request.all("idempotency-key") for request in server.requests] == [[]] * 5
    assert [request.all("paypal-request-id") for request in server.requests[:2]] == [["order-17"]] * 2
    assert len(server.effects) == len(set(server.keys)) == 2
    with running() as other:
        server.will(says(307, headers={"Location": other.url}))
        sender.post(server.url)
        assert [request.key for request in other.requests] == [None]
    server.will(says(303, headers={"Location": server.url}))
    sender.post(server.url)
    assert [(request.method, request.key) for request in server.requests[-1:]] == [("GET", None)]


def test_c01_terms_that_no_host_can_keep_are_refused() -> None:
    origin = "https://api.example.com"
    for terms, said in (
        ({"provider": "strpe"}, "Did you mean 'stripe'"),
        ({"provider": "square"}, "no header carries it"),
        ({"provider": "twilio"}, "takes a key nowhere"),
        ({"provider": "paypal"}, "Give retention="),
        ({"header": "two words"}, "not the name of a header"),
    ):
        with pytest.raises(ConfigurationError, match=re.escape(said)):
            Host(origin, **terms)
    stripe = Host(origin, provider="stripe")
    assert (stripe.retention, stripe.field("k"), stripe.should_retry) == (86400, "k", "Stripe-Should-Retry")
    with pytest.raises(InvalidKey, match="up to 64 characters"):
        Host(origin, provider="adyen").field("k" * 65)


def test_c01_only_declared_methods_get_a_key(make: Make, server: Server) -> None:
    sender = make()
    for method in ("GET", "PUT", "DELETE", "PATCH"):
        sender.send(method, server.url)
    assert [key is not None for key in server.keys] == [False, False, False, True]


# ---------------------------------------------------------------- what is retried


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_c04_requests_certainly_not_sent_are_retried_without_a_key(make: Make, time: Time, method: str) -> None:
    with pytest.raises(FAILURES) as failed:
        make(hosts=[]).send(method, f"http://127.0.0.1:{free_port()}/")
    assert len(time.slept) == 2
    assert "has not been carried out (3 sent; not sent again: attempts)" in failed.value.__notes__[0]


@pytest.mark.parametrize("behaviour", BY_NAME)
def test_c05_an_ambiguous_failure_is_retried_where_the_key_is_honoured(
    make: Make, server: Server, behaviour: str
) -> None:
    server.will(BY_NAME[behaviour])
    got = make().post(server.url)
    assert (got.status, got.body) == (201, b'{"order": 1}')
    assert len(server.effects) == 1
    assert len(server.requests) == 2


@pytest.mark.parametrize("behaviour", BY_NAME)
def test_c05_and_nowhere_else(make: Make, server: Server, time: Time, behaviour: str) -> None:
    server.will(BY_NAME[behaviour])
    sender = make(hosts=[])
    with pytest.raises(FAILURES) as failed:
        sender.post(server.url, Idempotency_Key="k")
    assert len(server.requests) == 1
    assert time.slept == []
    assert "may have had its effect" in failed.value.__notes__[0]
    assert "unrepeatable" in failed.value.__notes__[0]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_c05_idempotent_methods_need_no_key(make: Make, server: Server, method: str) -> None:
    server.will(drops_answer, cuts_body)
    assert make(hosts=[]).send(method, server.url).status == 201
    assert [request.method for request in server.requests] == [method] * 3


def test_c05_whole_answers_are_kept_and_their_connection_is_used_again(make: Make, server: Server) -> None:
    sender = make()
    server.will(in_chunks, well, in_chunks)
    assert [sender.post(server.url).body for _ in range(3)] == [b'{"order": %d}' % number for number in (1, 2, 3)]
    assert server.connections == 1


def test_c05_a_server_that_says_nothing(make: Make, server: Server) -> None:
    server.will(stalls)
    assert make(timeout=0.2).post(server.url).status == 201
    assert len(server.effects) == 1


def test_c06_a_certificate_that_is_refused_is_not_tried_again(make: Make, untrusted: Any, time: Time) -> None:
    with running(untrusted) as server:
        with pytest.raises(FAILURES):
            make(hosts=[Host(server.origin)]).post(server.url)
        assert server.connections == 1
    assert time.slept == []


def test_c06_a_bad_url_is_not_tried_again(make: Make, time: Time) -> None:
    with pytest.raises(Exception, match=r"(?i)protocol|adapter|schema|scheme|invalid|empty host"):
        make().post("ftp://127.0.0.1/")
    assert time.slept == []


def test_c06_a_cancelled_request_is_not_tried_again(make: Make, server: Server) -> None:
    class Stop(BaseException):
        pass

    def stop(occurrence: Any) -> None:
        if occurrence.name == "request_retried":
            raise Stop

    server.will(drops_answer)
    with pytest.raises(Stop):
        make(observers=[stop]).post(server.url)
    assert len(server.requests) == 1


def test_c06_nothing_is_sent_after_the_deadline(make: Make, server: Server, time: Time) -> None:
    server.will(*[says(503, headers={"Retry-After": "20"})] * 9)
    assert make(max_attempts=9, deadline=50).post(server.url).status == 503
    assert time.slept == [20, 20]
    assert len(server.requests) == 3


def test_c06_a_server_that_drips_is_given_up_at_the_deadline(make: Make, server: Server) -> None:
    to_its_end: list[bool] = []

    def drips(at: Server, connection: Any, request: Any) -> bool:
        at.execute(request)
        connection.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 100000\r\n\r\n")
        for _ in range(3000):
            at.go_on.wait(0.02)
            connection.sendall(b"x")
        to_its_end.append(True)
        return False

    server.will(drips)
    with pytest.raises(FAILURES) as failed:
        make(environment=Environment(), deadline=2).post(server.url)
    assert "may have had its effect (1 sent; not sent again: deadline)" in failed.value.__notes__[0]
    assert to_its_end == []


@each_row("status", [408, 425, 429, 500, 502, 503, 504])
def test_c07_statuses_that_are_retried(make: Make, server: Server, status: int) -> None:
    server.will(says(status))
    assert make().post(server.url).status == 201
    server.will(says(status))
    assert make(hosts=[]).post(server.url).status == status, "C5 holds for them too"


def test_c07_a_conflict_is_retried_only_if_another_attempt_is_running(make: Make, server: Server) -> None:
    for running_, status in (
        *((problem(status, "in-progress"), 201) for status in (202, 409, 423, 425, 429)),
        (says(409, headers={"Retry-After": "1"}), 201),
        (says(409), 409),
        (problem(409, "result-unavailable", {"Retry-After": "1"}), 409),
    ):
        server.will(running_)
        assert make().post(server.url).status == status


@pytest.mark.parametrize("status", [400, 403, 404, 412, 422, 428])
def test_c08_refusals_are_final(make: Make, server: Server, status: int) -> None:
    server.will(says(status))
    assert make().post(server.url).status == status
    assert len(server.requests) == 1


def test_c08_a_compressed_refusal_is_read_too(make: Make, server: Server) -> None:
    headers = {"Content-Type": "application/problem+json", "Content-Encoding": "gzip"}
    server.will(says(422, gzip.compress(b'{"code": "key-reused"}'), headers))
    with pytest.raises(RequestKeyReused):
        make().post(server.url)


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("key-reused", 422, RequestKeyReused),
        ("key-expired", 409, RequestKeyExpired),
        ("outcome-unknown", 409, RequestOutcomeUnknown),
    ],
)
def test_c08_refusals_of_a_key_are_errors_of_their_own(
    make: Make, server: Server, code: str, status: int, kind: Any
) -> None:
    server.will(problem(status, code))
    with pytest.raises(kind) as refused:
        make().post(server.url)
    assert refused.value.response.status_code == status
    assert len(server.requests) == 1


def test_c08_credentials_are_refreshed_once_with_the_same_key(make: Make, server: Server) -> None:
    tokens = iter(["one", "two"])
    sender = make(refresh=lambda: {"Authorization": f"Bearer {next(tokens)}"})
    server.will(says(401), drops_answer)
    assert sender.post(server.url, Authorization="Bearer old").status == 201
    assert [request.header("authorization") for request in server.requests] == [
        "Bearer old",
        "Bearer one",
        "Bearer one",
    ]
    assert len(set(server.keys)) == 1
    server.will(says(401), says(401))
    assert sender.post(server.url).status == 401
    assert len(server.requests) == 5


def test_c08_repeats_by_the_librarys_authentication_have_the_same_key(server: Server, time: Time) -> None:
    import httpx
    from requests.auth import HTTPDigestAuth

    challenge = {"WWW-Authenticate": 'Digest realm="shop", nonce="n", qop="auth", algorithm=SHA-256'}
    for name, auth in (
        ("httpx", httpx.DigestAuth("user", "password")),
        ("httpx-async", httpx.DigestAuth("user", "password")),
        ("requests", HTTPDigestAuth("user", "password")),
    ):
        sender: Any = SENDERS[name](Retries([Host(server.origin)], environment=time.environment, observers=()))
        (sender.session if name == "requests" else sender.client).auth = auth
        server.will(says(401, headers=challenge), drops_answer)
        assert sender.post(server.url).status == 201
        first, *others = server.requests[-3:]
        assert [request.key for request in others] == [first.key] * 2
        assert first.header("authorization") is None
        assert all(request.header("authorization") for request in others)
        sender.close()
    assert len(server.effects) == 3


def test_c08_without_a_way_to_refresh_401_is_final(make: Make, server: Server) -> None:
    server.will(says(401))
    assert make().post(server.url).status == 401
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [500, 503])
def test_c09_an_error_that_is_replayed_is_final(make: Make, server: Server, status: int) -> None:
    server.will(says(status, headers={"Idempotent-Replayed": "true"}))
    assert make().post(server.url).status == status
    assert len(server.requests) == 1


def test_c10_the_server_may_say_whether_to_retry(make: Make, server: Server) -> None:
    stripe = [Host(server.origin, key_syntax="bare", should_retry="Stripe-Should-Retry")]
    server.will(says(503, headers={"Stripe-Should-Retry": "false"}))
    assert make(hosts=stripe).post(server.url).status == 503
    server.will(says(409, headers={"Stripe-Should-Retry": "true"}))
    assert make(hosts=stripe).post(server.url).status == 201
    server.will(says(409, headers={"Stripe-Should-Retry": "true"}))
    assert make().post(server.url).status == 409, "only where it is declared"


# ---------------------------------------------------------------- how long


def test_c11_full_jitter_grows_to_its_cap(make: Make, server: Server, time: Time) -> None:
    server.will(*[drops_answer] * 5)
    make(max_attempts=9, cap=0.5).post(server.url)
    assert time.slept == [0.1, 0.2, 0.4, 0.5, 0.5]
    time.slept.clear()
    time.chance = 0.25
    server.will(says(429), says(503), says(500))
    make(max_attempts=9).post(server.url)
    assert time.slept == [0.25, 0.5, 0.1]


def test_c11_three_attempts_are_the_default(make: Make, server: Server) -> None:
    server.will(*[says(503)] * 5)
    assert make().post(server.url).status == 503
    assert len(server.requests) == 3


def test_c12_a_retry_after_is_never_undercut(make: Make, server: Server, time: Time) -> None:
    served = 1_500_000_000
    date = {"Date": formatdate(served, usegmt=True), "Retry-After": formatdate(served + 7, usegmt=True)}
    past = {"Date": formatdate(served, usegmt=True), "Retry-After": formatdate(served - 7, usegmt=True)}
    server.will(says(503, headers={"Retry-After": "3"}), says(503, headers=date))
    assert make(max_attempts=9).post(server.url).status == 201
    assert time.slept == [3, 7], "a date is compared with the server's own clock"
    time.slept.clear()
    server.will(
        says(503, headers=past), says(500, headers={"Retry-After": "soon"}), says(503, headers={"Retry-After": "-9"})
    )
    assert make(max_attempts=9).post(server.url).status == 201
    assert time.slept == [1.0, 0.2, 4.0], "what cannot be read asks for nothing"


def test_c12_the_answer_of_an_attempt_that_is_running_is_asked_for_until_the_deadline(
    make: Make, server: Server, time: Time
) -> None:
    server.will(*[problem(409, "in-progress", {"Retry-After": "1"})] * 6)
    assert make(deadline=30).post(server.url).status == 201
    assert time.slept == [1, 1, 1, 1, 1.6, 3.2], "beyond the number of attempts, with growing pauses"
    time.slept.clear()
    server.will(problem(409, "in-progress", {"Retry-After": "40"}))
    assert make(deadline=30).post(server.url).status == 201
    assert time.slept == pytest.approx([29]), "once more, before the time is over"
    time.slept.clear()
    server.will(*[problem(409, "in-progress", {"Retry-After": "20"})] * 6)
    assert make(deadline=30).post(server.url).status == 409
    assert time.slept == pytest.approx([20, 9, 0.5, 0.25, 0.125])


def test_c12_beyond_the_deadline_the_answer_is_given_now(make: Make, server: Server, time: Time) -> None:
    server.will(says(503, headers={"Retry-After": "999999999999999999"}))
    assert make().post(server.url).status == 503
    assert time.slept == []


# ---------------------------------------------------------------- the budget


def test_c13_every_host_has_a_budget_of_its_own(make: Make, server: Server) -> None:
    budgets = Budgets()
    sender = make(budgets=budgets, max_attempts=2)
    server.will(*[says(503)] * 50)
    for _ in range(20):
        sender.post(server.url)
    assert len(server.requests) == 20 * 1.2 + 10
    assert budgets.left(server.origin) < 1
    with running() as other:
        other.will(says(503))
        make(budgets=budgets, hosts=[Host(other.origin)]).post(other.url)
        assert len(other.requests) == 2


def test_c14_an_empty_budget_gives_the_failure_at_once(make: Make, server: Server, time: Time, seen: Recorder) -> None:
    budgets = Budgets()
    while budgets.take(server.origin):
        pass
    server.will(drops_answer)
    with pytest.raises(FAILURES) as failed:
        make(budgets=budgets).post(server.url)
    assert "budget" in failed.value.__notes__[0]
    assert seen.fields("request_given_up")["limit"] == "budget"
    assert time.slept == []
    server.will(says(503, b"why"))
    assert make(budgets=budgets).post(server.url).body == b"why"


# ---------------------------------------------------------------- one layer, bodies that come once


def test_c15_one_shot_bodies_are_kept_for_the_retry(make: Make, server: Server) -> None:
    server.will(drops_answer)
    assert make().post(server.url, iter([b"one", b"two"])).status == 201
    assert [request.body for request in server.requests] == [b"onetwo", b"onetwo"]


def test_c15_a_multipart_body_is_not_encoded_again(server: Server, time: Time) -> None:
    for name in SENDERS:
        sender: Any = SENDERS[name](Retries([Host(server.origin)], environment=time.environment, observers=()))
        server.will(drops_answer)
        files = {"file": ("order.txt", io.BytesIO(b"one book"))}
        if name == "httpx-async":
            sender.runner.run(sender.client.post(server.url, files=files))
        else:
            (sender.session if name == "requests" else sender.client).post(server.url, files=files)
        first, second = server.requests[-2:]
        assert (first.body, first.header("content-type")) == (second.body, second.header("content-type"))
        assert b"one book" in first.body
        sender.close()


def test_c15_or_sent_once(make: Make, server: Server) -> None:
    server.will(drops_answer)
    with pytest.raises(FAILURES) as failed:
        make(body_limit=5).post(server.url, iter([b"one", b"two", b"three"]))
    assert [request.body for request in server.requests] == [b"onetwothree"]
    assert "unrepeatable" in failed.value.__notes__[0]


def test_c15_a_second_retry_layer_is_refused() -> None:
    import httpx
    import urllib3
    from requests.adapters import HTTPAdapter

    from retrysafe.http.client.httpx import AsyncRetryTransport, RetryTransport
    from retrysafe.http.client.requests import RetryAdapter

    retries = Retries()
    for make_twice in (
        lambda: RetryTransport(retries, RetryTransport(retries)),
        lambda: RetryTransport(retries, httpx.HTTPTransport(retries=1)),
        lambda: AsyncRetryTransport(retries, httpx.AsyncHTTPTransport(retries=1)),
        lambda: RetryAdapter(retries, RetryAdapter(retries)),
        lambda: RetryAdapter(retries, HTTPAdapter(max_retries=2)),
        lambda: RetryAdapter(retries, HTTPAdapter(max_retries=urllib3.Retry(total=None, connect=2))),
    ):
        with pytest.raises(ConfigurationError, match="retries by itself"):
            make_twice()


# ---------------------------------------------------------------- redirects


@pytest.mark.parametrize("status", [307, 308])
def test_c16_a_redirect_keeps_method_body_and_key(make: Make, server: Server, status: int) -> None:
    server.will(says(status, headers={"Location": "/moved"}), drops_answer)
    assert make().post(server.url, b"body", Authorization="secret").status == 201
    first, *others = server.requests
    assert [(request.method, request.target, request.body, request.key) for request in others] == [
        ("POST", "/moved", b"body", first.key)
    ] * 2
    assert others[0].header("authorization") == "secret"
    assert others[0].header("host") == f"127.0.0.1:{server.port}"


@each_row("status", [301, 302, 303])
def test_c16_a_see_other_is_fetched_without_the_key(make: Make, server: Server, status: int) -> None:
    server.will(says(status, headers={"Location": "/orders/1"}))
    assert make().post(server.url, b"body", content_type="text/plain").status == 201
    last = server.requests[-1]
    assert (last.method, last.target, last.body, last.key, last.header("content-type")) == (
        "GET",
        "/orders/1",
        b"",
        None,
        None,
    )


def test_c16_another_origin_sees_neither_key_nor_credentials(make: Make, server: Server) -> None:
    with running() as other:
        server.will(says(307, headers={"Location": other.url}))
        other.will(drops_answer)
        hosts = [Host(server.origin), Host(other.origin)]
        with pytest.raises(FAILURES):
            make(hosts=hosts).post(server.url, b"body", Authorization="secret", Cookie="secret=1")
        (seen,) = other.requests
        assert (seen.method, seen.body, seen.key) == ("POST", b"body", None)
        assert seen.header("authorization") is seen.header("cookie") is None
        assert seen.header("host") == f"127.0.0.1:{other.port}"


def test_c16_redirects_have_an_end(make: Make, server: Server) -> None:
    server.will(*[says(307, headers={"Location": "/again"})] * 9)
    assert make(redirects=2).post(server.url).status == 307
    assert len(server.requests) == 3


SECRETS = {
    "X_Internal_Auth": "s3cret",
    "X_User_Password": "s3cret",
    "X_Jwt_Assertion": "s3cret",
    "X_Api_Key": "s",
    "X_Vault_Token": "s",
    "Ocp_Apim_Subscription_Key": "s",
    "X_Client_Secret": "s",
    "X_Session_Id": "s",
    "X_Hub_Signature_256": "s",
    "Authorization": "s",
    "Idempotency_Key": "mine",
}


def seen_of(other: Server) -> list[list[str]]:
    names = [name.replace("_", "-") for name in SECRETS]
    return [[name for name in names if request.header(name.lower()) is not None] for request in other.requests]


@pytest.mark.parametrize("library", SENDERS)
@pytest.mark.parametrize("location", ["http://a@{}/", "/again"], ids=["a user", "one too many"])
def test_c16_a_redirect_that_is_declined_is_not_followed_by_the_library(
    server: Server, time: Time, library: str, location: str
) -> None:
    with running() as other:
        where = location.format(other.origin.removeprefix("http://"))
        last = says(307, headers={"Location": other.url})
        server.will(*[says(307, headers={"Location": where})] * (2 if where == "/again" else 1), last)
        retries = Retries([Host(server.origin)], redirects=2, environment=time.environment, observers=())
        follow = {} if library == "requests" else {"follow_redirects": True}
        sender = SENDERS[library](retries, **follow)
        got = sender.post(server.url, b"body", **SECRETS)
        sender.close()
        assert (got.status, other.requests) == (307, [])
        assert got.headers["location"] == (where if where != "/again" else other.url)


@pytest.mark.parametrize("library", SENDERS)
@pytest.mark.parametrize("keyed", [True, False])
def test_c16_a_redirect_that_a_library_follows_takes_no_secrets_along(
    server: Server, time: Time, library: str, keyed: bool
) -> None:
    with running() as other:
        for target in ("/here", other.url):
            server.will(says(307, headers={"Location": target}))
            retries = Retries(
                [Host(server.origin)] if keyed else [], redirects=0, environment=time.environment, observers=()
            )
            follow = {} if library == "requests" else {"follow_redirects": True}
            sender = SENDERS[library](retries, **follow)
            fields = SECRETS if keyed else {name: SECRETS[name] for name in SECRETS if name != "Idempotency_Key"}
            assert sender.post(server.url, b"body", X_Plain="1", **fields).status == 201
            sender.close()
        assert server.requests[1].header("x-api-key") == "s", "the same origin"
        assert other.requests[-1].header("x-plain") == "1"
        assert all(name not in seen_of(other)[-1] for name in ("X-Api-Key", "X-Vault-Token", "Idempotency-Key"))


def test_c16_another_origin_sees_no_header_whose_name_tells_of_a_secret(make: Make, server: Server) -> None:
    with running() as other:
        server.will(says(307, headers={"Location": other.url}))
        make().post(server.url, b"body", X_Plain="1", **SECRETS)
        assert seen_of(other) == [[]]
        assert other.requests[0].header("x-plain") == "1"


# ---------------------------------------------------------------- what a server may take


@each_row("encoding", ["gzip", "deflate", "raw deflate"])
def test_c19_a_problem_is_unpacked_as_far_as_it_may_be_long(encoding: str) -> None:
    window = {"gzip": 31, "deflate": 15, "raw deflate": -15}[encoding]
    name = encoding.removeprefix("raw ")

    def packed(size: int) -> bytes:
        packer = zlib.compressobj(9, zlib.DEFLATED, window)
        return packer.compress(b'{"code":"x","detail":"' + b" " * size + b'"}') + packer.flush()

    assert problem_code("application/problem+json", decode(name, packed(10), 100) or b"") == "x"
    asked: list[int] = []

    class Unpacking:
        def __init__(self, window: int) -> None:
            self.real = real(window)

        def decompress(self, data: bytes, most: int = 0) -> bytes:
            asked.append(most)
            return self.real.decompress(data, most)

    real = zlib.decompressobj
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(zlib, "decompressobj", Unpacking)
        assert decode(name, packed(1 << 20), 100) is None
    assert set(asked) == {101}, "no more is made than is wanted"


@each_row("encoding", ["br", "zstd", "gzip, gzip", "nonsense"])
def test_c19_unbounded_encodings_are_not_unpacked(encoding: str) -> None:
    assert decode(encoding, b"{}", 100) is None
    assert decode("", b"{}", 100) == b"{}"
    assert decode("identity", b"{}", 1) is None
    assert decode("gzip", b"no gzip", 100) is None


def test_c13_budgets_of_many_hosts_are_bounded_and_none_is_won_back() -> None:
    budgets = Budgets(most=4)
    for _ in range(10):
        assert budgets.take("spent")
    for number in range(100):
        budgets.deposit(f"new {number}")
    assert budgets.left("spent") == 0, "a flood of hosts brings nothing back"
    assert len(budgets._whole) <= 4
    for number in range(3):
        budgets.take(f"other {number}")
    taken = sum(budgets.take(f"flood {number}") for number in range(1000))
    assert taken == 10, "who is new shares one bucket"
    assert len(budgets._spent) <= 5
    assert not budgets.take("spent")


def test_c16_redirects_that_httpx_follows_carry_the_key_to_no_other_request(server: Server, time: Time) -> None:
    with running() as other:
        for name in ("httpx", "httpx-async"):
            retries = Retries([Host(server.origin)], redirects=0, environment=time.environment, observers=())
            sender = SENDERS[name](retries, follow_redirects=True)
            server.will(*(says(status, headers={"Location": "/here"}) for status in (307, 303)))
            server.will(says(307, headers={"Location": other.url}))
            assert sender.post(server.url, b"body").status == 201
            sender.close()
            first, same, got = server.requests[-3:]
            assert first.key == same.key is not None
            assert (same.method, got.method, got.key, other.requests[-1].key) == ("POST", "GET", None, None)


# ---------------------------------------------------------------- hedging, and the header


def test_c17_a_hedge_has_the_same_key_and_its_conflict_is_not_the_result(make: Make, server: Server) -> None:
    told: list[str] = []

    def lets_the_first_go_on(occurrence: Any) -> None:
        told.append(occurrence.fields.get("outcome", occurrence.name))
        if told[-1] == "409":
            server.go_on.set()

    server.will(delayed(well), says(409, headers={"Retry-After": "1"}))
    got = make(hedge_after=0.05, observers=[lets_the_first_go_on]).post(server.url)
    assert got.status == 201
    assert told == ["request_sent", "request_hedged", "409", "201"]
    assert len(server.requests) == 2
    assert len(set(server.keys)) == len(server.effects) == 1


def test_c17_the_first_answer_wins(make: Make, server: Server) -> None:
    server.will(stalls, well)
    got = make(hedge_after=0.05).post(server.url)
    assert (got.status, got.headers["idempotent-replayed"]) == (201, "true")
    assert len(server.effects) == 1


class Empty(Budgets):
    """A budget without a token; the server goes on once it was asked for one."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.server = server

    def take(self, origin: str) -> bool:
        self.server.go_on.set()
        return False


def test_c17_a_hedge_is_paid_for(make: Make, server: Server, seen: Recorder) -> None:
    server.will(delayed(well))
    assert make(hedge_after=0.05, budgets=Empty(server)).post(server.url).status == 201
    assert len(server.requests) == 1
    assert "request_hedged" not in seen.names


def test_c17_both_copies_fail(make: Make, server: Server) -> None:
    server.will(delayed(says(503)), delayed(says(502)))

    def go_on() -> None:
        server.wait_for(2)
        server.go_on.set()

    letting = threading.Thread(target=go_on)
    letting.start()
    assert make(hedge_after=0.05).post(server.url).status == 201
    letting.join()
    assert len(server.effects) == 1


def test_c18_the_key_is_quoted_or_bare_as_the_host_wants_it(make: Make, server: Server) -> None:
    make().post(server.url, Idempotency_Key="k")
    make(hosts=[Host(server.origin, key_syntax="bare")]).post(server.url, Idempotency_Key='"k"')
    make(hosts=[]).post(server.url, Idempotency_Key="as it is")
    assert [request.header("idempotency-key") for request in server.requests] == ['"k"', "k", "as it is"]


# ---------------------------------------------------------------- what is told


def test_every_attempt_is_told_with_the_redacted_key(make: Make, server: Server, seen: Recorder) -> None:
    server.will(drops_answer, says(503))
    make().post(server.url, Idempotency_Key="very-secret")
    assert seen.names == [
        *("request_sent", "request_ended", "request_retried"),
        *("request_sent", "request_ended", "request_retried"),
        *("request_sent", "request_ended"),
    ]
    assert len({(told.key, told.attempt, told.boundary, told.operation) for told in seen.told}) == 1
    told = seen.told[0]
    assert (told.boundary, told.operation, len(told.key)) == (server.origin, "POST", 8)
    assert "very-secret" not in json.dumps([str(one) for one in seen.told])
    assert [one.fields["outcome"] for one in seen.told if one.name == "request_ended"][1:] == ["503", "201"]
