"""Cosmos DB: races, lost replies, throttling, regions, workers and servers that die. FAULTS 2, 5, 13, 14, 44, 47."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trustme

from retrysafe import Boundary, ConfigurationError, InProgress, SchemaOutdated, StoreMisconfigured, StoreUnavailable
from retrysafe.backends.cosmos import store as cosmos_store
from retrysafe.backends.driver import run
from retrysafe.backends.registry import connect, forget
from retrysafe.messaging.inbox.inbox import Inbox
from retrysafe.messaging.outbox import Outbox
from retrysafe.protocol.procedures import examine, find, page, sweep
from retrysafe.protocol.records import Filter, Record
from tests.conftest import absent, require
from tests.faults.conftest import Making
from tests.faults.helpers import NOT_NOW, ROOT, again, unique, until
from tests.faults.servers import OwnServer
from tests.processes import Child
from tests.stores.ageing import age_at
from tests.stores.harnesses.base import migrated
from tests.stores.harnesses.cosmos import COSMOS_DATABASE, COSMOS_KEY, cosmos_endpoint, cosmos_library, cosmos_url
from tests.tables import each_row

pytestmark = [pytest.mark.fault(2, 5, 13, 14)]
Fates = Callable[[str], str]
"""Decides about a call by its name: "through", "request lost", "reply lost", "silent", or the status of a refusal."""
WAIT = 40
"""Milliseconds after which the proxy asks callers to come again."""


class CosmosProxy(ThreadingHTTPServer):
    """An HTTPS proxy before the stand-in: loses, refuses, and tells of other accounts than there are."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.calls: list[str] = []
        self.bodies: list[Any] = []
        self.fates: Fates = lambda call: "through"
        self.account: dict[str, Any] = {}
        self.dates = True
        self.closing = threading.Event()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def url(self, timeout: str = "10s") -> str:
        """The URL of this process's database by way of the proxy."""
        place = f"127.0.0.1:{self.server_address[1]}/{COSMOS_DATABASE}"
        return f"cosmos://:{COSMOS_KEY}@{place}?discovery=off&timeout={timeout}"

    def once(self, call: str, fate: str) -> None:
        """Let the next such call have that fate."""
        left = [fate]
        self.fates = lambda called: left.pop() if called == call and left else "through"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone away is what these tests are about."""

    def close(self) -> None:
        """Stop answering."""
        self.closing.set()
        self.shutdown()
        self.server_close()
        self._thread.join(60)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        proxy: Any = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        call = self._call()
        proxy.calls.append(call)
        proxy.bodies.append(json.loads(body) if body and call in ("create", "patch") else None)
        fate = proxy.fates(call)
        if fate.isdecimal():
            self._answer(int(fate), {"x-ms-retry-after-ms": str(WAIT)}, b'{"code": "Refused", "message": "Not now."}')
        elif fate in ("request lost", "silent"):
            proxy.closing.wait(60 if fate == "silent" else 0)
            self.close_connection = True
        else:
            status, headers, content = self._forward(body)
            if call == "account":
                content = json.dumps({**json.loads(content), **proxy.account}).encode()
            if not proxy.dates:
                headers.pop("Date")
            if fate == "reply lost":
                self.close_connection = True
            else:
                self._answer(status, headers, content)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _serve  # noqa: N815

    def _call(self) -> str:
        if self.path == "/":
            return "account"
        if "/docs" not in self.path:
            return "setting"
        if self.headers.get("x-ms-documentdb-isquery"):
            return "query"
        return {"POST": "create", "GET": "read"}.get(self.command, self.command.lower())

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        parts = urlsplit(cosmos_endpoint())
        trusting = ssl._create_unverified_context()
        upstream = http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=60, context=trusting)
        try:
            upstream.request(self.command, self.path, body, dict(self.headers))
            response = upstream.getresponse()
            return response.status, dict(response.headers), response.read()
        finally:
            upstream.close()

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""


class CosmosDBServer(OwnServer):
    """The stand-in for Cosmos DB, whose data ends with it."""

    def __init__(self, modules: Path) -> None:
        super().__init__()
        self._modules = modules
        self.start()

    @property
    def url(self) -> str:
        return f"cosmos://:{COSMOS_KEY}@127.0.0.1:{self.port}/shop?timeout=1s"

    def _command(self) -> list[str]:
        return ["node", str(ROOT / "scripts" / "cosmosdb-server.js"), str(self._modules), str(self.port)]

    def _answers(self) -> bool:
        context = ssl._create_unverified_context()
        with closing(http.client.HTTPSConnection("127.0.0.1", self.port, context=context)) as upstream:
            with suppress(OSError):
                upstream.request("GET", "/")
                return upstream.getresponse().read() != b""
            return False


@pytest.fixture
def url() -> str:
    """The URL of this process's database, with the container in it."""
    require("cosmos")
    return migrated(cosmos_url())


@pytest.fixture
def proxy(url: str) -> Iterator[CosmosProxy]:
    """A proxy before the stand-in."""
    made = CosmosProxy()
    yield made
    made.close()


@contextmanager
def warmed(make: Making, url: str, **settings: Any) -> Iterator[Boundary[Any]]:
    """A boundary whose client is open, and knows the container and the time."""
    boundary = make(url, **settings)
    with boundary.claim(unique("warm")):
        pass
    yield boundary
    boundary.close()
    forget(boundary.entrypoint.backend)


def records(boundary: Boundary[Any], url: str) -> list[Record]:
    """The records of a boundary."""
    backend = connect(url)
    found: list[Record] = backend.run(find(backend.store, Filter(boundary=boundary.name), 1000))
    return found


def items(boundary: Boundary[Any]) -> list[dict[str, Any]]:
    """The items of a boundary, as the library reads them."""
    with cosmos_library() as library:
        container = library.get_database_client(COSMOS_DATABASE).get_container_client("retrysafe_records")
        return [item for item in container.read_all_items() if item["record"]["boundary"] == boundary.name]


# ---------------------------------------------------------------- many at once, and the calls it takes


def test_one_of_sixteen_wins(url: str, make: Making) -> None:
    boundary, key, ran, start = make(url), unique("k"), list[str](), threading.Barrier(16)

    def caller(number: int) -> Any:
        start.wait(10)
        with suppress(InProgress), boundary.claim(key) as claim:
            if not claim.replayed:
                ran.append(key)
                claim.result = number
            return claim.result
        return None

    with ThreadPoolExecutor(16) as pool:
        answers = {answer for answer in pool.map(caller, range(16)) if answer is not None}
    assert (ran, len(answers)) == ([key], 1)


@pytest.mark.slow
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_fresh_key_takes_two_calls(colour: str, proxy: CosmosProxy, make: Making) -> None:
    """A replay is two as well: a refused creation does not answer with the item in the way."""

    async def play() -> dict[str, list[str]]:
        boundary, asked = make(proxy.url(), lease="60s"), dict[str, list[str]]()
        for name in ("warm", "fresh", "replay", "released", "takeover"):
            proxy.calls.clear()
            with suppress(ZeroDivisionError):
                key = {"replay": "fresh", "takeover": "released"}.get(name, name)
                if colour == "sync":
                    with boundary.claim(key) as claim:
                        _work(claim, name)
                else:
                    async with boundary.claim(key) as claim:
                        _work(claim, name)
            asked[name] = [*proxy.calls]
        await boundary.aclose()
        return asked

    asked = asyncio.run(play())
    assert asked["fresh"] == ["create", "patch"]
    assert asked["replay"] == ["create", "read"]
    assert asked["takeover"] == ["create", "read", "patch", "patch"]


def _work(claim: Any, name: str) -> None:
    if name == "released":
        raise ZeroDivisionError
    if not claim.replayed:
        claim.result = 1


# ---------------------------------------------------------------- replies that are lost


@pytest.mark.slow
@pytest.mark.fault(44)
@pytest.mark.parametrize("colour", ["sync", "async"])
@each_row(("call", "fate"), [(call, fate) for call in ("create", "patch") for fate in ("request lost", "reply lost")])
def test_a_lost_message_changes_nothing(call: str, fate: str, colour: str, proxy: CosmosProxy, make: Making) -> None:
    key = unique("k")

    async def place() -> Any:
        boundary = make(proxy.url(), lease="60s")
        async with boundary.claim(unique("warm")):
            pass
        proxy.once(call, fate)
        async with boundary.claim(key) as claim:
            claim.result = "done"
        async with boundary.claim(key) as claim:
            assert (claim.replayed, claim.result) == (True, "done")
        await boundary.aclose()

    if colour == "async":
        asyncio.run(place())
    else:
        with warmed(make, proxy.url(), lease="60s") as boundary:
            proxy.once(call, fate)
            with boundary.claim(key) as claim:
                claim.result = "done"
            with boundary.claim(key) as claim:
                assert (claim.replayed, claim.result) == (True, "done")
    assert proxy.calls.count(call) >= 2


@pytest.mark.slow
@each_row("fate", ["request lost", "reply lost"])
def test_a_lost_takeover_is_recognised_as_ones_own(fate: str, proxy: CosmosProxy, make: Making) -> None:
    with warmed(make, proxy.url(), lease="60s") as boundary:
        with pytest.raises(ZeroDivisionError), boundary.claim("key"):
            raise ZeroDivisionError
        proxy.once("patch", fate)
        with boundary.claim("key") as claim:
            claim.result = "done"
        found = {(one.state.value, one.attempts) for one in records(boundary, proxy.url())}
    assert ("completed", 2) in found


@pytest.mark.slow
@pytest.mark.fault(44)
@each_row("fate", ["request lost", "reply lost"])
def test_a_lost_renewal_is_tried_again(fate: str, proxy: CosmosProxy, make: Making) -> None:
    with warmed(make, proxy.url(), lease="6s") as boundary, boundary.claim("key") as claim:
        proxy.once("patch", fate)
        until(lambda: proxy.calls.count("patch") >= 3)  # the warm key's, the one that is lost, and another
        claim.ensure_held()
    assert {one.state.value for one in records(boundary, cosmos_url())} == {"completed"}


# ---------------------------------------------------------------- too many requests, and other refusals


@pytest.mark.slow
@pytest.mark.fault(47)
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_service_with_too_many_requests_is_asked_again_as_it_says(
    colour: str, proxy: CosmosProxy, make: Making
) -> None:
    async def play() -> None:
        boundary = make(proxy.url(), lease="60s")
        async with boundary.claim(unique("warm")):
            pass
        for call in ("create", "patch"):
            proxy.once(call, "429")
            async with boundary.claim(unique("k")) as claim:
                claim.result = 1
        await boundary.aclose()

    if colour == "async":
        return asyncio.run(play())
    with warmed(make, proxy.url(), lease="60s") as boundary:
        for call in ("create", "patch"):
            proxy.once(call, "429")
            with boundary.claim(unique("k")) as claim:
                claim.result = 1
    return None


@pytest.mark.slow
@each_row(
    ("status", "error", "match"),
    [
        ("429", StoreUnavailable, f"come again in {WAIT} ms"),
        ("503", StoreUnavailable, "503"),
        ("401", StoreMisconfigured, "Correct the account's key"),
        ("403", StoreMisconfigured, "Built-in Data Contributor"),
        ("404", SchemaOutdated, "retrysafe migrate"),
    ],
)
def test_a_refusal_of_every_claim_is_told(
    status: str, error: type[Exception], match: str, proxy: CosmosProxy, make: Making
) -> None:
    proxy.fates = lambda call: "through"
    with warmed(make, proxy.url()) as boundary:
        proxy.fates = lambda call: status if call == "create" else "through"
        with pytest.raises(error, match=match) as refused, boundary.claim("key"):
            pytest.fail("claimed")
        told: Any = refused.value
        assert (getattr(told, "transient", False), getattr(told, "unsent", True)) == (status == "429", status != "503")


@pytest.mark.slow
def test_a_silent_service_is_unavailable_within_its_timeout(proxy: CosmosProxy, make: Making) -> None:
    """A claim is put twice."""
    with warmed(make, proxy.url("300ms")) as boundary:
        proxy.fates = lambda call: "silent"
        before = time.monotonic()
        with pytest.raises(StoreUnavailable), boundary.claim("key"):
            pytest.fail("claimed")
        assert time.monotonic() - before < 5


# ---------------------------------------------------------------- the account and the container


@pytest.mark.slow
@each_row(
    ("account", "level", "match"),
    [
        ({"enableMultipleWriteLocations": True}, "refuse", "two of them can both win"),
        ({"userConsistencyPolicy": {"defaultConsistencyLevel": "Eventual"}}, "warn", "may not find what it has"),
        ({"userConsistencyPolicy": {"defaultConsistencyLevel": "Strong"}}, "fact", "Strong"),
    ],
)
def test_an_account_is_looked_at_before_the_first_claim(
    account: dict[str, Any], level: str, match: str, proxy: CosmosProxy, make: Making
) -> None:
    proxy.account = account
    boundary = make(proxy.url())
    if level == "refuse":
        with pytest.raises(ConfigurationError, match=match), boundary.claim("key"):
            pytest.fail("claimed")
    else:
        with boundary.claim("key"):
            pass
    backend = boundary.entrypoint.backend
    found = run(examine(backend.store), backend.client())
    assert [one.level for one in found if match in one.text] == [level]
    boundary.close()
    forget(backend)


@pytest.mark.slow
def test_without_a_date_the_clock_is_told_to_be_wrong(proxy: CosmosProxy, make: Making) -> None:
    proxy.dates = False
    backend = make(proxy.url()).entrypoint.backend
    found = run(examine(backend.store), backend.client())
    assert [one.level for one in found if one.name == "clock"] == ["warn"]
    forget(backend)


def test_a_database_without_the_container_says_how_it_is_made(make: Making) -> None:
    require("cosmos")
    with pytest.raises(SchemaOutdated, match="retrysafe migrate --store"), make(cosmos_url(unique("empty"))).claim("k"):
        pass


@each_row(
    "url",
    [
        "cosmos://account.documents.azure.com/shop",
        "cosmos://:a2V5@account.documents.azure.com",
        "cosmos://:no key@account.documents.azure.com/shop",
        "cosmos://:a2V5@account.documents.azure.com/shop/keys/more",
        "cosmos://:a2V5@account.documents.azure.com/shop?discovery=maybe",
    ],
)
def test_a_url_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="write cosmos://:KEY@ACCOUNT"):
        connect(url)


def test_only_what_is_settled_has_a_time_to_live(url: str, make: Making) -> None:
    boundary = make(url, window="1h", memory="2h")
    with boundary.claim("k"):
        (running,) = items(boundary)
    (settled,) = items(boundary)
    assert running["ttl"] == -1
    assert settled["_ts"] + settled["ttl"] >= settled["record"]["tombstone_until"] / 1e6
    assert 7200 <= settled["ttl"] <= 7203


def test_a_sweep_removes_what_is_forgotten(url: str, make: Making) -> None:
    boundary = make(url, window="1h", memory="2h")
    for key in ("old", "new"):
        with boundary.claim(key):
            pass
    old = next(one for one in records(boundary, url))
    age_at(url)(old.key, 3 * 3600 * 1_000_000)
    backend = connect(url)
    assert backend.run(sweep(backend.store, 1000)) is not None
    assert [item["id"] for item in items(boundary)] == [
        one.key.hex() for one in records(boundary, url) if one.key != old.key
    ]


def test_pages_go_on_where_they_stopped(url: str, make: Making) -> None:
    boundary = make(url)
    for _ in range(8):
        with boundary.claim(unique("k")):
            pass
    backend, found, cursor = boundary.entrypoint.backend, list[bytes](), None
    while True:
        here = backend.run(page(backend.store, Filter(boundary=boundary.name), cursor, 3))
        found += [record.key for record in here.records]
        cursor = here.cursor
        if cursor is None:
            break
    assert len(found) == len({*found}) == 8


@each_row("size", [0, 1])
def test_the_largest_result_fits_into_an_item(size: int) -> None:
    """One byte more than the largest is withheld by the claim; base64 makes four bytes of three."""
    largest = cosmos_store.CosmosStore.capabilities.largest_result or 0
    assert (largest + size + 2) // 3 * 4 + cosmos_store.RESERVED - 4 <= cosmos_store.LARGEST_ITEM


@each_row(
    ("refuses", "match"),
    [
        (lambda boundary: Outbox(boundary.entrypoint.backend, source="shop"), "no place for messages"),
        (lambda boundary: Inbox(boundary), "dead_letter_store="),
    ],
)
def test_work_that_needs_another_store_is_refused(
    refuses: Callable[[Any], Any], match: str, url: str, make: Making
) -> None:
    with pytest.raises(ConfigurationError, match=match):
        refuses(make(url))


def test_steps_are_refused(url: str, make: Making) -> None:
    with make(url).claim("k") as claim, pytest.raises(ConfigurationError, match="keeps no steps"):
        claim.step("charge", lambda: 1)


def test_sync_code_and_event_loops_share_a_url(url: str, make: Making) -> None:
    boundary = make(url)

    async def claimed(key: str) -> bool:
        async with boundary.claim(key) as claim:
            pass
        return bool(claim.replayed)

    key = unique("k")
    assert [asyncio.run(claimed(key)) for _ in range(2)] == [False, True]
    with boundary.claim(key) as claim:
        assert claim.replayed


# ---------------------------------------------------------------- workers and servers that die

WORKER = """
import sys
from retrysafe import Boundary, InProgress, current
url, name, path = sys.argv[1:]
boundary = Boundary(name, store=url, lease="1s", effects="keyed", observers=())
@boundary.once(key="order", operation="place")
def place(order):
    with open(path, "a") as ledger:
        ledger.write(f"{order} {current().token} {current().key_for('bank')}\\n")
    print(order, flush=True)
    return order
left = [f"o{i}" for i in range(12)]
while left:
    order = left.pop(0)
    try:
        place(order)
    except InProgress:
        left.append(order)
print("done", flush=True)
"""


@pytest.mark.slow
@pytest.mark.one_of("slow tests")
def test_every_order_is_placed_once_although_workers_are_killed(url: str, tmp_path: Path, make: Making) -> None:
    name, ledger, kills = unique("b"), tmp_path / "ledger", 4
    for kill in [True] * kills + [False]:
        with Child(sys.executable, "-W", "ignore", "-c", WORKER, url, name, str(ledger)) as worker:
            if kill:
                worker.hears()
                worker.kill()
            else:
                worker.until("done")
                worker.ends()
    placed: dict[str, list[tuple[int, str]]] = {}
    for line in ledger.read_text().splitlines():
        order, token, key = line.split()
        placed.setdefault(order, []).append((int(token), key))
    assert len(placed) == 12
    for attempts in placed.values():
        assert len({key for _, key in attempts}) == 1
        assert [token for token, _ in attempts] == sorted({token for token, _ in attempts})
    found = records(make(url, name=name), url)
    assert [one.state.value for one in found] == ["completed"] * 12


@pytest.mark.slow
def test_a_server_that_dies_is_unavailable_until_it_is_back(make: Making) -> None:
    """The stand-in keeps no data; Cosmos DB does."""
    modules = Path(os.environ.get("RETRYSAFE_SCRATCH") or ROOT / ".services").resolve() / "cosmos/server/node_modules"
    if not modules.is_dir():
        absent("no stand-in for Cosmos DB to start: run scripts/services install cosmos")
    server = CosmosDBServer(modules)
    try:
        migrated(server.url)
        with warmed(make, server.url) as boundary:
            server.kill()
            with pytest.raises(NOT_NOW), boundary.claim("k"):
                pytest.fail("claimed")
            server.start()
            migrated(server.url)
            assert again(lambda: _placed(boundary)) == "placed"
    finally:
        server.close()


def _placed(boundary: Boundary[Any]) -> str:
    with boundary.claim("k") as claim:
        claim.result = "placed"
    return "placed"
