"""The layer's own answers: problem details whose type leads to a page."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from pathlib import Path
from typing import Any

import httpx
import pytest

from retrysafe import Boundary, errors
from retrysafe.backends.registry import connect
from retrysafe.http.asgi import IdempotencyMiddleware
from retrysafe.http.problems import BASE, PROBLEMS, Refusal, refusal_of, render
from retrysafe.protocol import keys
from tests.conftest import require
from tests.stores.harnesses import URLS
from tests.tables import each_row

ROOT = Path(__file__).parents[2]
SITE = "https://retrysafe.readthedocs.io/en/latest/"


@each_row("code", PROBLEMS)
def test_r3_every_type_is_the_address_of_a_page(code: str) -> None:
    response = render(Refusal(code))
    problem = json.loads(response.body or b"")
    assert f"site_url: {SITE}\n" in (ROOT / "mkdocs.yml").read_text()
    page = ROOT / "docs" / (problem["type"].removeprefix(SITE).rstrip("/") + ".md")
    assert page.read_text().startswith(f"# `{code}`\n")
    assert dict(response.headers)[b"link"].decode() == f'<{problem["type"]}>; rel="describedby"'


@each_row("code", PROBLEMS)
def test_r3_contents_of_a_problem(code: str) -> None:
    response = render(Refusal(code, "because"))
    assert json.loads(response.body or b"") == {
        "type": f"{BASE}{code}/",
        "title": PROBLEMS[code].title,
        "status": response.status,
        "detail": "because",
        "code": code,
        "safe_new_key": PROBLEMS[code].safe_new_key,
    }
    headers = dict(response.headers)
    assert headers[b"content-type"] == b"application/problem+json"
    assert headers[b"content-length"] == str(len(response.body or b"")).encode()


@each_row(("seconds", "shown"), [(0.0, b"1"), (0.2, b"1"), (1.0, b"1"), (1.01, b"2"), (29.5, b"30")])
def test_r1_retry_after_is_whole_seconds_and_never_zero(seconds: float, shown: bytes) -> None:
    response = render(Refusal("in-progress", retry_after=seconds))
    assert dict(response.headers)[b"retry-after"] == shown


NOT_ANSWERED = {errors.ConfigurationError, errors.IllegalTransition}


@each_row(
    "kind",
    [
        found
        for name, found in vars(errors).items()
        if isinstance(found, type) and issubclass(found, errors.RetrysafeError) and found is not errors.RetrysafeError
        if not name.startswith("_")
    ],
)
def test_every_error_of_a_claim_has_an_answer_but_those_for_developers(kind: type[errors.RetrysafeError]) -> None:
    error = kind("type", "message") if kind is errors.StoredFailure else kind("host db-17 is down")  # type: ignore[call-arg]
    refusal = refusal_of(error)
    if kind in NOT_ANSWERED:
        assert refusal is None
        return
    assert refusal is not None
    if PROBLEMS[refusal.code].safe_new_key:
        assert kind.safe_new_key, "what is promised to a client must hold for the error"
    if kind not in (errors.InvalidKey, errors.KeyReused):
        assert "db-17" not in refusal.detail, "what concerns the server stays there"


@each_row(
    ("differing", "safe"),
    [
        (("path",), False),
        (("query",), False),
        (("path", "query"), False),
        (("method", "path"), True),
        (("body", "path"), True),
        (("body",), True),
        ((), True),
    ],
)
def test_a_new_key_is_not_safe_for_what_may_be_the_request_before_a_redirect(
    differing: tuple[str, ...], safe: bool
) -> None:
    refusal = refusal_of(errors.KeyReused(f"It differs in: {', '.join(differing)}.", differing=differing))
    assert refusal is not None
    told = json.loads(render(refusal).body or b"")
    assert (told["safe_new_key"], "before a redirect" not in told["detail"]) == (safe, safe)
    assert told["detail"].startswith("It differs in: ")


def test_a_conflict_says_when_to_come_back() -> None:
    refusal = refusal_of(errors.InProgress(retry_after=7.2))
    assert refusal is not None
    assert dict(render(refusal).headers)[b"retry-after"] == b"8"


def test_a_mismatch_names_what_differs_and_not_its_value() -> None:
    refusal = refusal_of(errors.KeyReused("The payload differs in: path.", differing=("path",)))
    assert refusal is not None
    assert "path" in refusal.detail


def test_an_exhausted_pool_is_named_with_its_option() -> None:
    error = errors.StoreUnavailable("All 20 connections are in use.", more_connections="make it larger (max_size=)")
    refusal = refusal_of(error)
    assert refusal is not None
    assert refusal.code == "store-unavailable"
    assert refusal.detail.endswith("Its operator can have more: make it larger (max_size=).")
    assert "20" not in refusal.detail


# ---------------------------------------------------------------- the key of a refusal, for the operator


class Service:
    """An application behind the middleware: its handler waits, fails or answers as the test says."""

    def __init__(self, store: str, **terms: Any) -> None:
        self.boundary = Boundary(f"service-{secrets.token_hex(6)}", store=store, observers=(), **terms)
        self.entered, self.go, self.fails = asyncio.Event(), asyncio.Event(), False
        self.go.set()
        app = IdempotencyMiddleware(
            self._app, self.boundary, principal=lambda scope: dict(scope["headers"])[b"x-user"].decode()
        )
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://service")

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.entered.set()
        await self.go.wait()
        if self.fails:
            raise TimeoutError
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    async def post(self, body: str = "one", user: str = "alice", key: str = "K-1") -> httpx.Response:
        return await self.client.post("/", content=body, headers={"idempotency-key": key, "x-user": user})

    def digits(self, user: str = "alice") -> str:
        return keys.lookup(None, self.boundary.name, user, "http", "K-1").hex()

    async def close(self) -> None:
        await self.client.aclose()
        await self.boundary.aclose()


@pytest.fixture(params=["sqlite", "postgresql", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    service, url_of = URLS[request.param]
    if service is not None:
        require(service)
    url = url_of(tmp_path)
    if service != "redis":
        connect(url).migrate()
    return url


def shows(answer: httpx.Response, status: int, code: str, digits: str) -> None:
    """The refusal names the key as the log does, and the command, and nothing that leads further."""
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (status, code)
    assert problem["key_hash"] == digits[:8]
    assert problem["operator_command"] == f"retrysafe keys show --hash {digits[:8]}"
    everything = answer.text + str(answer.headers)
    for secret in (digits[:10], "K-1", "alice", "--store", "sqlite", "postgresql", "redis", os.uname().nodename + ":"):
        assert secret not in everything.replace("readthedocs", ""), secret


async def test_r3_a_problem_of_a_key_shows_its_first_digits_and_no_more(store: str) -> None:
    service = Service(store, effects="external")
    service.go.clear()
    first = asyncio.create_task(service.post())
    await service.entered.wait()
    shows(await service.post(), 409, "in-progress", service.digits())
    shows(await service.post("other"), 422, "key-reused", service.digits())
    service.fails = True
    service.go.set()
    assert (await first).status_code == 500
    shows(await service.post(), 409, "outcome-unknown", service.digits())
    await service.close()


async def test_r3_a_store_that_is_away_leaves_the_operator_the_keys_digits() -> None:
    service = Service("postgresql://nobody@127.0.0.1:1/x?connect_timeout=2")
    shows(await service.post(), 503, "store-unavailable", service.digits())
    await service.close()


async def test_r3_one_tenants_key_says_nothing_of_anothers(store: str) -> None:
    """The same key is another's key: it runs, and its digits are others; who asks learns only of the own one."""
    service = Service(store, effects="external")
    service.fails = True
    assert [(await service.post(user=user)).status_code for user in ("alice", "bob")] == [500, 500]
    mine, theirs = [(await service.post(user=user)).json()["key_hash"] for user in ("alice", "bob")]
    assert (mine, theirs) == (service.digits("alice")[:8], service.digits("bob")[:8])
    assert mine != theirs
    service.fails = False
    unused = await service.post(user="carol")
    assert (unused.status_code, unused.text) == (200, "done")
    await service.close()


@each_row("code", ["key-missing", "key-invalid", "principal-missing", "request-invalid", "quota-exceeded"])
def test_r3_a_problem_without_a_record_names_no_key(code: str) -> None:
    assert "key_hash" not in json.loads(render(Refusal(code, key="1a2b3c4d")).body or b"")
