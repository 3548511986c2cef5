"""MongoDB: races, lost replies, sessions that end too early, a server that is killed, settings. FAULTS 2-6, 13-18."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from retrysafe import (
    Boundary,
    ConfigurationError,
    InProgress,
    OutcomeUnknown,
    RetryTransaction,
    SchemaOutdated,
    StoredFailure,
    StoreUnavailable,
    current,
)
from retrysafe.backends.mongodb import store as mongodb_store
from retrysafe.backends.mongodb.requests import Call
from retrysafe.backends.registry import connect
from retrysafe.messaging.inbox.inbox import Inbox
from retrysafe.messaging.outbox import Outbox
from retrysafe.patterns import insert_once
from retrysafe.protocol.procedures import find, page
from retrysafe.protocol.records import Filter, Record
from tests.conftest import absent, require
from tests.faults.conftest import Making
from tests.faults.helpers import NOT_NOW, ROOT, again, unique, until
from tests.faults.proxies.framing import Direction
from tests.faults.proxies.proxy import Proxy
from tests.faults.servers import OwnServer
from tests.stores.harnesses.base import migrated
from tests.stores.harnesses.mongodb import MONGODB_DATABASE, mongodb_url
from tests.tables import each_row

pytestmark = [pytest.mark.fault(2, 5, 13, 14, 28)]

Collection = Any


class MongodbFraming:
    """One connection: each message begins with its length, and nothing but messages is ever sent."""

    def size(self, direction: Direction, buffer: bytes) -> int | None:
        """The length of the first message."""
        size = int.from_bytes(buffer[:4], "little")
        return size if len(buffer) >= max(size, 4) else None

    def passed(self, direction: Direction, message: bytes) -> bool:
        """Tell whether it was part of establishing the connection, or of watching the server."""
        return b"hello" in message


class SecantusDB(OwnServer):
    """The stand-in for MongoDB, with its data in a directory, which outlives it."""

    def __init__(self, program: Path) -> None:
        super().__init__()
        self._program = program
        self._environment = {"PYTHONPATH": str(program)}
        self.start()

    @property
    def url(self) -> str:
        return f"mongodb://127.0.0.1:{self.port}/shop"

    def _command(self) -> list[str]:
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--storage-path", str(self.home)]
        python = (self._program / "python").resolve()
        return [str(python), str(self._program / "bin" / "secantusd-py"), *where, "--sync-on-commit"]

    def _answers(self) -> bool:
        from pymongo import MongoClient
        from pymongo.errors import PyMongoError

        try:
            client: MongoClient[Any]
            with MongoClient(self.url, serverSelectionTimeoutMS=500) as client:
                client.admin.command("ping")
        except PyMongoError:
            return False
        return True


def secantusdb_program() -> Path | None:
    """The place of SecantusDB, if it is installed."""
    home = Path(os.environ.get("RETRYSAFE_SCRATCH") or ROOT / ".services").resolve() / "mongodb" / "server"
    return home if home.is_dir() else None


@pytest.fixture
def url() -> str:
    """The URL of this process's database, with the collection in it."""
    require("mongodb")
    return migrated(mongodb_url())


@pytest.fixture
def client(url: str) -> Iterator[MongoClient[Any]]:
    """A client of the test's own."""
    made: MongoClient[Any] = MongoClient(url)
    with made:
        yield made


@pytest.fixture
def orders(client: MongoClient[Any]) -> Iterator[Collection]:
    """A collection of data."""
    made = client[MONGODB_DATABASE].create_collection(unique("orders"))
    yield made
    made.drop()


def placing(boundary: Boundary[Any], orders: Collection) -> Callable[[str], str]:
    """A function that writes an order in the transaction of its claim, or beside it."""

    @boundary.once(key="order", operation="place")
    def place(order: str) -> str:
        receipt, tx = unique("receipt"), current().tx
        home = orders if tx is None else tx.client[orders.database.name][orders.name]
        home.insert_one({"order": order, "receipt": receipt}, session=tx)
        return receipt

    return place


def records(boundary: Boundary[Any]) -> list[Record]:
    """The records of a boundary."""
    backend = boundary.entrypoint.backend
    found: list[Record] = backend.run(find(backend.store, Filter(boundary=boundary.name), 1000))
    return found


# ---------------------------------------------------------------- many at once


@each_row("effects", ["keyed", "transactional"])
def test_one_of_sixteen_wins(effects: Any, url: str, orders: Collection, make: Making) -> None:
    place, order, start = placing(make(url, effects=effects), orders), unique("o"), threading.Barrier(16)

    def caller(_number: int) -> str | None:
        start.wait(10)
        with suppress(InProgress, RetryTransaction):
            return place(order)
        return None

    with ThreadPoolExecutor(16) as pool:
        answers = {answer for answer in pool.map(caller, range(16)) if answer is not None}
    assert answers == {place(order)}
    assert orders.count_documents({"order": order}) == 1


def test_more_callers_than_connections_are_all_served(url: str, orders: Collection, make: Making) -> None:
    place = placing(make(f"{url}&maxPoolSize=4"), orders)
    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(place, [unique("o") for _ in range(48)]))
    assert len({*answers}) == 48


def test_a_claim_that_meets_a_record_and_finds_none_is_put_again(url: str) -> None:
    backend, nobody = connect(url), {"_id": unique("nobody").encode()}
    look = Call("collection.aggregate", ([{"$match": nobody}],))
    with pytest.raises(StoreUnavailable) as met:
        backend.client()(Call("collection.find_one", (nobody,), follow=lambda _: look))
    assert (met.value.transient, met.value.unsent) == (True, True)


# ---------------------------------------------------------------- the caller's transactions


def test_with_transaction_runs_a_duplicate_again_until_it_has_its_answer(
    url: str, client: MongoClient[Any], orders: Collection, make: Making
) -> None:
    boundary, order = make(url, effects="transactional"), unique("o")

    def place(session: Any) -> Any:
        with boundary.claim(order, tx=session) as claim:
            if not claim.replayed:
                claim.result = unique("receipt")
                orders.insert_one({"order": order, "receipt": claim.result}, session=session)
            return claim.result

    def caller(_number: int) -> Any:
        with client.start_session() as session:
            return session.with_transaction(place)

    with ThreadPoolExecutor(8) as pool:
        (receipt,) = {*pool.map(caller, range(8))}
    assert [one["receipt"] for one in orders.find({"order": order})] == [receipt]


def test_a_duplicate_of_an_open_transaction_is_told_at_once(url: str, client: MongoClient[Any], make: Making) -> None:
    boundary, order = make(url, effects="transactional"), unique("o")
    with client.start_session() as first, client.start_session() as second:
        first.start_transaction()
        second.start_transaction()
        with boundary.claim(order, tx=first) as claim:
            claim.result = 1
        with pytest.raises(RetryTransaction), boundary.claim(order, tx=second):
            pass
        first.commit_transaction()
        second.abort_transaction()
        with second.start_transaction(), boundary.claim(order, tx=second) as claim:
            assert (claim.replayed, claim.result) == (True, 1)


async def test_async_code_joins_its_own_sessions(url: str, make: Making) -> None:
    boundary, order = make(url, effects="transactional"), unique("o")
    async with AsyncMongoClient[Any](url) as client, client.start_session() as session:

        async def place(session: Any) -> None:
            async with boundary.claim(order, tx=session) as claim:
                claim.result = 1

        await session.with_transaction(place)
        async with boundary.claim(order) as claim:
            assert (claim.replayed, claim.result) == (True, 1)
        with pytest.raises(ConfigurationError, match="belongs to async code"), boundary.claim(order, tx=session):
            pass
    await boundary.aclose()


def test_a_session_that_cannot_be_joined_is_refused(
    url: str, client: MongoClient[Any], make: Making, tmp_path: Path
) -> None:
    with client.start_session() as session:
        for store, match in (
            (url, "without an open transaction"),
            (f"sqlite:///{tmp_path}/shop.db", "tx= is a mongodb transaction"),
        ):
            boundary = make(store, effects="transactional")
            with pytest.raises(ConfigurationError, match=match), boundary.claim("k", tx=session):
                pass
        with pytest.raises(ConfigurationError, match="this writes SQL"):
            insert_once(session, "orders", {"id": 1}, key=("id",))


# ---------------------------------------------------------------- the boundary's own transactions


def test_a_permanent_failure_undoes_the_work_and_is_stored(url: str, orders: Collection, make: Making) -> None:
    boundary, order = make(url, effects="transactional", permanent=LookupError), unique("o")
    ran: list[str] = []

    @boundary.once(key="order", operation="place")
    def place(order: str) -> None:
        tx = current().tx
        tx.client[orders.database.name][orders.name].insert_one({"order": order}, session=tx)
        ran.append(order)
        raise LookupError("sold out")

    for expected in (LookupError, StoredFailure, StoredFailure):
        with pytest.raises(expected, match="sold out"):
            place(order)
    assert (ran, orders.count_documents({"order": order})) == ([order], 0)


@each_row(
    ("ends", "error", "left"),
    [("commit_transaction", OutcomeUnknown, ["unknown"]), ("abort_transaction", ConfigurationError, [])],
)
def test_a_handler_that_ends_the_transaction_is_told(
    ends: str, error: type[Exception], left: list[str], url: str, make: Making
) -> None:
    boundary = make(url, effects="transactional")
    with pytest.raises(error), boundary.claim("k") as claim:
        getattr(claim.tx, ends)()
    assert [record.state.value for record in records(boundary)] == left


def test_a_conflict_of_the_work_asks_for_the_whole_again(url: str, orders: Collection, make: Making) -> None:
    boundary, order = make(url, effects="transactional"), unique("o")
    orders.insert_one({"_id": "stock", "left": 5})
    client: Any = orders.database.client

    def take(session: Any) -> None:
        session.client[orders.database.name][orders.name].update_one(
            {"_id": "stock"}, {"$inc": {"left": -1}}, session=session
        )

    with client.start_session() as other:
        other.start_transaction()
        take(other)
        with pytest.raises(RetryTransaction) as refused, boundary.claim(order) as claim:
            take(claim.tx)
        assert isinstance(refused.value.__cause__, OperationFailure)
        other.abort_transaction()
    with boundary.claim(order) as claim:
        take(claim.tx)
    assert orders.find_one({"_id": "stock"})["left"] == 4


# ---------------------------------------------------------------- replies that are lost


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    """A proxy before the server."""
    parts = urlsplit(url)
    made = Proxy((parts.hostname or "", parts.port or 0), MongodbFraming)
    yield made
    made.close()


@pytest.mark.slow
@each_row(
    ("effects", "command", "kind"),
    [
        (effects, command, kind)
        for effects, commands in (
            ("keyed", ("findAndModify", "update")),
            ("transactional", ("findAndModify", "update", "commitTransaction")),
        )
        for command in commands
        for kind in ("before", "after")
    ],
)
@pytest.mark.parametrize("repeats", ["true", "false"], ids=["retryWrites", "alone"])
def test_a_lost_message_changes_nothing(
    repeats: str, effects: Any, command: str, kind: Any, proxy: Proxy, url: str, orders: Collection, make: Making
) -> None:
    """With ``retryWrites`` PyMongo puts a write again by itself; without it, it is ours to do."""
    through = f"mongodb://127.0.0.1:{proxy.port}/{MONGODB_DATABASE}?directConnection=true&retryWrites={repeats}"
    boundary, order = make(through, effects=effects, lease="2s"), unique("o")
    place = placing(boundary, orders)
    place(unique("warm"))
    proxy.arm_on(kind, ">", lambda message: is_about_a_record(command, message))
    answer = again(lambda: _placed(place, order))
    assert proxy.hits
    assert answer == place(order)
    found = [one["receipt"] for one in orders.find({"order": order})]
    assert found == [answer] if effects == "transactional" else answer in found
    assert {record.state.value for record in records(boundary)} == {"completed"}


def is_about_a_record(command: str, message: bytes) -> bool:
    """Tell whether the message is about a record of ours; a commit says nothing of what it commits."""
    return command.encode() in message and (command == "commitTransaction" or b"retrysafe_records" in message)


def _placed(place: Callable[[str], str], order: str) -> str:
    try:
        return place(order)
    except RetryTransaction as error:
        raise StoreUnavailable from error


# ---------------------------------------------------------------- a server that dies


@pytest.mark.slow
@pytest.mark.parametrize("effects", ["keyed", "transactional"])
def test_the_orders_are_exact_after_kills(effects: Any, make: Making) -> None:
    program = secantusdb_program()
    if program is None:
        absent("no SecantusDB to start: run scripts/services install mongodb")
    server = SecantusDB(program)
    try:
        client: MongoClient[Any] = MongoClient(server.url)
        with client:
            orders = client.shop.create_collection("orders")
            connect(server.url).migrate()
            place = placing(make(f"{server.url}?timeoutMS=500", effects=effects, lease="20s"), orders)
            answers: dict[str, str] = {}

            def work() -> None:
                left = [unique("o") for _ in range(40)]
                while left:
                    order = left.pop(0)
                    try:
                        answers[order] = place(order)
                    except (*NOT_NOW, RetryTransaction, PyMongoError):
                        left.append(order)

            workers = [threading.Thread(target=work) for _ in range(2)]
            for worker in workers:
                worker.start()
            for goal in (10, 40):
                until(lambda goal=goal: len(answers) >= goal)  # type: ignore[misc]
                server.kill()
                server.start()
            for worker in workers:
                worker.join(120)
            assert {order: again(lambda order=order: place(order)) for order in answers} == answers  # type: ignore[misc]
            written = Counter(one["order"] for one in orders.find())
            assert written.keys() == answers.keys()
            assert effects == "keyed" or set(written.values()) == {1}
    finally:
        server.close()


# ---------------------------------------------------------------- settings, and what is refused


def test_a_database_without_the_collection_says_how_it_is_made(make: Making) -> None:
    require("mongodb")
    boundary = make(mongodb_url(unique("empty")))
    with pytest.raises(SchemaOutdated, match="retrysafe migrate --store 'mongodb://"), boundary.claim("k"):
        pass


def test_an_index_of_another_age_is_not_changed(url: str, client: MongoClient[Any]) -> None:
    name = unique("shop")
    client[name].retrysafe_records.create_index("purge_at", expireAfterSeconds=60)
    with pytest.raises(ConfigurationError, match="expires after 60 seconds"):
        connect(mongodb_url(name)).migrate()
    client.drop_database(name)


def test_a_settled_record_goes_when_it_is_forgotten_and_a_running_one_stays(
    url: str, client: MongoClient[Any], make: Making
) -> None:
    boundary = make(url, window="1h", memory="2h")
    with boundary.claim("k"):
        (running,) = client[MONGODB_DATABASE].retrysafe_records.find({"boundary": boundary.name})
    (settled,) = client[MONGODB_DATABASE].retrysafe_records.find({"boundary": boundary.name})
    assert "purge_at" not in running
    removed = round(settled["purge_at"].replace(tzinfo=UTC).timestamp() * 1e6)
    assert settled["tombstone_until"] <= removed <= settled["tombstone_until"] + 2000
    assert settled["tombstone_until"] - settled["updated"] == 7200 * 1_000_000


def test_pages_go_on_where_they_stopped(url: str, make: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mongodb_store, "_LOOKED_AT", 3)
    boundary = make(url)
    keys = [unique("k") for _ in range(8)]
    for key in keys:
        with boundary.claim(key):
            pass
    backend, found, cursor = boundary.entrypoint.backend, list[bytes](), None
    while True:
        here = backend.run(page(backend.store, Filter(boundary=boundary.name), cursor, 3))
        found += [record.key for record in here.records]
        cursor = here.cursor
        if cursor is None:
            break
    assert len(found) == len({*found}) == 8


@each_row(
    ("refuses", "match"),
    [
        (lambda boundary, _: boundary.claim("k", tx="mongodb://elsewhere"), "tx= is a URL"),
        (
            lambda boundary, _: Outbox(boundary.entrypoint.backend, source="shop"),
            "no place for messages that share a transaction",
        ),
        (lambda boundary, _: Inbox(boundary), "dead_letter_store="),
        (
            lambda boundary, folder: Inbox(boundary, dead_letter_store=f"sqlite:///{folder}/dead.db").batch_handler(
                "stock"
            )(print),
            "claimed in one statement",
        ),
    ],
)
def test_work_that_needs_another_store_is_refused(
    refuses: Callable[[Any, Path], Any], match: str, url: str, make: Making, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=match), refuses(make(url, effects="transactional"), tmp_path):
        pass


def test_steps_are_refused(url: str, make: Making) -> None:
    with make(url).claim("k") as claim, pytest.raises(ConfigurationError, match="keeps no steps"):
        claim.step("charge", lambda: 1)


@pytest.mark.slow
def test_a_connection_that_falls_silent_is_given_up(proxy: Proxy, url: str, make: Making) -> None:
    through = f"mongodb://127.0.0.1:{proxy.port}/{MONGODB_DATABASE}?directConnection=true&timeoutMS=300"
    boundary = make(through)
    with boundary.claim("warm"):
        pass
    proxy.arm_on("half-open", ">", lambda message: b"retrysafe_records" in message)
    with boundary.claim("k") as claim:
        assert not claim.replayed
    assert proxy.hits


@pytest.mark.slow
@pytest.mark.parametrize("away", ["cut off", "silent"])
def test_closing_waits_a_second_for_a_server_that_is_away(away: str, proxy: Proxy, url: str) -> None:
    """PyMongo ends its sessions first, for which it would look for a server for half a minute."""
    through = f"mongodb://127.0.0.1:{proxy.port}/{MONGODB_DATABASE}?directConnection=true"
    one, other = (Boundary(unique("b"), store=through, effects="keyed", observers=[]) for _ in range(2))

    async def closed() -> float:
        async with other.claim("k"):
            pass
        proxy.stall()
        if away == "cut off":
            proxy.drop()
        began = time.monotonic()
        one.close()
        await other.aclose()
        return time.monotonic() - began

    with one.claim("k"):
        pass
    assert asyncio.run(closed()) < 10


def test_sync_code_and_event_loops_share_a_url(url: str, make: Making) -> None:
    boundary = make(url)

    async def claimed(key: str) -> bool:
        async with boundary.claim(key) as claim:
            pass
        await boundary.entrypoint.backend.aclose()
        return bool(claim.replayed)

    key = unique("k")
    assert [asyncio.run(claimed(key)) for _ in range(2)] == [False, True]
    with boundary.claim(key) as claim:
        assert claim.replayed
