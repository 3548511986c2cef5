"""SQL Server, without a server to test on: its statements are parsed, and the errors of its drivers made by hand."""

from __future__ import annotations

import asyncio
import ctypes
import re
import secrets
from collections.abc import Iterator
from typing import Any

import mssql_python
import pymssql
import pytest
import sqlalchemy
from mssql_python.exceptions import sqlstate_to_exception
from sqlalchemy import exc
from sqlfluff.core import Linter

from retrysafe import Boundary, ConfigurationError, RetryTransaction, current
from retrysafe.admin.describe import describe
from retrysafe.backends import migrations
from retrysafe.backends.backend import Backend
from retrysafe.backends.registry import connect
from retrysafe.backends.spec import StoreAccess
from retrysafe.backends.sql import store_of, urls
from retrysafe.backends.sql.drivers import deadline
from retrysafe.backends.sql.drivers import sqlalchemy as engines
from retrysafe.backends.sql.drivers.base import (
    ABORTED,
    arguments,
    fail,
    follow_refusal,
    not_connected,
    sqlstate,
    wants_restart,
)
from retrysafe.backends.sql.drivers.mssql_python import MssqlPythonDriver
from retrysafe.backends.sql.drivers.pool import Size
from retrysafe.backends.sql.drivers.pymysql import PymysqlDriver
from retrysafe.backends.sql.drivers.sqlserver import AsyncThreads
from retrysafe.backends.sql.sqlserver import MOST_RENEWED, SqlserverStore
from retrysafe.backends.sql.table import REPORTED
from retrysafe.backends.steps import keeps_steps
from retrysafe.errors import SchemaOutdated, StoreMisconfigured, StoreUnavailable
from retrysafe.messaging import Outbox
from retrysafe.patterns import _On
from retrysafe.protocol.records import (
    Allowance,
    ClaimRequest,
    Clocks,
    EffectiveState,
    Filter,
    Ownership,
    Record,
    State,
    StoredResult,
)
from retrysafe.protocol.requests import Query, Rows
from retrysafe.protocol.transitions import Transition
from retrysafe.testing import AsyncHarness, age
from retrysafe.testing.conformance import CASES, Bench
from tests.conftest import require
from tests.ports import free_port
from tests.stores.harnesses.base import migrated
from tests.stores.harnesses.sql import mysql_url
from tests.tables import each_row

STORE: SqlserverStore = store_of("mssql")
KEY, ATTEMPT, CLOCKS = b"k" * 32, "a" * 32, Clocks(1, 2, 3)
WANT = ClaimRequest(KEY, "shop", "eu", "charge", b"p" * 32, ATTEMPT, "keyed", CLOCKS)
SEEN = Record(
    KEY, "shop", "eu", "charge", b"p", State.RUNNING, ATTEMPT, 5, 1, "keyed", 0, 0, 0, 0, 0, 7, None, 9
)  # fmt: skip
RESULT = StoredResult(b"{}", "application/json", 1)
QUOTAS = (None, Allowance(b"q" * 16, 5, 60, None), Allowance(b"q" * 16, None, 60, 5), Allowance(b"q" * 16, 5, 60, 5))


def of_chain(query: Query) -> Iterator[Query]:
    """A query and all that may follow it."""
    yield query
    for following in (query.otherwise, query.written, *query.refusals.values()):
        if following is not None:
            yield from of_chain(following)


def asks() -> Iterator[tuple[str, Any]]:
    """All requests of the store, each with the method that makes it."""
    for effects in ("keyed", "transactional"):
        for quota in QUOTAS:
            request = WANT._replace(effects=effects, quota=quota)  # type: ignore[arg-type]
            yield "claim", STORE.claim(request)
        yield "take", STORE.take(WANT._replace(effects=effects), SEEN)  # type: ignore[arg-type]
    for own in (False, True):
        ownership = Ownership(KEY, ATTEMPT, 5, CLOCKS, own)
        for event in (Transition.COMPLETE, Transition.FAIL, Transition.DOUBT, Transition.RELEASE):
            yield "settle", STORE.settle(ownership, event, RESULT)
    for event in STORE._resolve_sql:
        yield "resolve", STORE.resolve(SEEN, event, None, CLOCKS)
    yield from (
        ("renew", one) for one in STORE.renew([Ownership(bytes([n]) * 32, "a", n, CLOCKS, False) for n in (1, 2)])
    )
    yield from (("sweep", one) for one in STORE.sweep(100))
    yield from (("forgotten", one) for one in STORE.forgotten(100))
    yield from (("remove", one) for one in STORE.remove([SEEN, SEEN]))
    yield from (("tally", one) for one in STORE.tally())
    yield from (("examine", one) for one in STORE.examine())
    unknown = frozenset({EffectiveState.UNKNOWN})
    for wanted in (
        Filter(),
        Filter(own=False),
        Filter("shop", "charge", "eu", digits="ab", since=1, until=2, older_than=3),
        Filter(states=frozenset(REPORTED)),
        Filter(states=unknown, since=5, digits="ab"),
    ):
        for cursor in (
            (None, "ab" * 32) if wanted.states != unknown else (None, f"5-{'ab' * 32}", f"lapsed-{'ab' * 32}")
        ):
            yield "scan", STORE.scan(wanted, cursor, 50)
        yield from (("count_selected", one) for one in STORE.count_selected(wanted, 100))
    for one in (STORE.read(KEY), STORE.read_many([KEY]), STORE.whereabouts(), STORE.time()):
        yield "read", one
    for one in (STORE.begin(), STORE.savepoint(), STORE.rollback_to_savepoint(), STORE.commit(), STORE.rollback()):
        yield "transaction", one
    yield from (("schema_version", one) for one in STORE.schema_version())
    yield from (("age", one) for one in age(STORE, [KEY], 5))


def of_patterns() -> Iterator[tuple[str, Query]]:
    """The first statement, and the read of the winner's row, of each function of `retrysafe.patterns`."""
    on, nobody = _On(None, None, None, "mssql"), Rows([], 0)
    row = {"id": 1, "item": "lamp", "version": 3}
    once = on.insert_once("shop.orders", row, ("id",), ("made",))
    yield "insert_once", next(once).request
    yield "insert_once", once.send(nobody).request
    for newer in (None, "version"):
        yield "upsert", next(on.upsert("orders", row, ("id",), newer)).request
    yield "update_if", next(on.update_if("orders", {"a": 1}, {"id": 1}, ("b",), {"fence": 5})).request


def statements() -> dict[str, Query]:
    """Every statement that can be issued, by its text."""
    found = {query.sql: query for _, ask in asks() for query in of_chain(ask.request)}
    found |= {query.sql: query for _, query in of_patterns()}
    own = [one for one in (STORE.MIGRATION_LOCK, STORE.MIGRATION_BOUNDS, STORE.MIGRATION_UNLOCK) if one is not None]
    texts = [text for one in migrations.load("mssql") for text in one.statements]
    texts += [text for number in range(1, 10) for text in migrations.backward("mssql", number)]
    texts += ["SELECT @@TRANCOUNT", "IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION", "SET LOCK_TIMEOUT 10000"]
    own += [Query(text, {}) for text in texts]
    return found | {query.sql: query for query in own}


FOREIGN = re.compile(r"\b(?:LIMIT|RETURNING|CONFLICT|SAVEPOINT|FOR UPDATE|greatest|octet_length|true|false)\b(?!')")
"""The parser takes some of these: a LIMIT behind ORDER BY, say, for the alias of a column."""


def violations(sql: str) -> list[str]:
    """Complaints of the parser about a statement; a parameter is a variable to it."""
    text = re.sub(r"(?<!:):([a-z_]+\d*)", r"@\1", sql)
    found = [str(one.desc()) for one in Linter(dialect="tsql").parse_string(text).violations]
    return found + [f"a word of another dialect: {word}" for word in FOREIGN.findall(sql)]


@pytest.mark.one_of("seconds of a core", of=3)
def test_every_statement_is_one_of_transact_sql() -> None:
    """Those which no parser has seen are none: there is no other check."""
    bad = {sql: found for sql in statements() if (found := violations(sql))}
    assert not bad, bad


@each_row(
    "sql",
    [
        "UPDATE r SET a = 1 OUTPUT inserted.a WHERE x = 1 FROM r",
        "SELECT a FROM r ORDER BY a LIMIT 5",
        "INSERT INTO r (a) SELECT 1 WHERE true ON CONFLICT (a) DO NOTHING",
        "SELECT a FROM r FOR UPDATE",
    ],
)
def test_the_parser_refuses_what_is_none(sql: str) -> None:
    assert violations(sql)


@each_row("style", ["?", "%s"])
def test_placeholders_and_arguments_agree(style: str) -> None:
    for query in statements().values():
        sql, args = arguments(query, style)
        assert sql.count(style) == len(args), sql
        assert "%" not in sql.replace(style, ""), "pymssql replaces no doubled %"
        assert not any(isinstance(one, bytes) for one in args), "pymssql sends some bytes as text"


def test_an_index_has_neither_long_text_as_a_key_nor_a_condition_with_or() -> None:
    """The parser takes both, and the server neither."""
    made = [text for one in migrations.load("mssql") for text in one.statements if text.startswith("CREATE INDEX")]
    assert len(made) == 3
    assert not [text for text in made if " OR " in text or "boundary" in text.partition(" INCLUDE ")[0]]


def test_a_statement_takes_no_more_parameters_than_the_server() -> None:
    ownerships = [Ownership(bytes([n % 250]) * 32, str(n), n, CLOCKS, False) for n in range(MOST_RENEWED + 1)]
    renewals = [ask.request for ask in STORE.renew(ownerships)]
    assert [len(query.params) for query in renewals] == [6 * MOST_RENEWED, 6]
    removed = max(len(ask.request.params) for ask in STORE.remove([SEEN] * 1500))
    assert max(6 * MOST_RENEWED, removed) < 2100


def test_a_claim_of_a_key_that_another_has_just_taken_reads_the_record() -> None:
    for effects in ("keyed", "transactional"):
        chain = STORE.claim(WANT._replace(effects=effects)).request  # type: ignore[arg-type]
        insert = next(query for query in of_chain(chain) if query.sql.startswith("INSERT"))
        for error in (pymssql.IntegrityError(2627, b"Violation of PRIMARY KEY"), _odbc("23000", "duplicate key")):
            following = follow_refusal(insert, error)
            assert following is not None
            assert following.sql == STORE.read_sql


@each_row("got, answer", [(-1, None), (-3, StoreUnavailable), (-999, StoreUnavailable)])
def test_the_answer_of_a_gate(got: int, answer: type[Exception] | None) -> None:
    for quota in QUOTAS:
        ask = STORE.claim(WANT._replace(effects="transactional", quota=quota))
        assert "sp_getapplock" in ask.request.sql
        if answer is None:
            assert ask.parse(Rows([(got,)], 1)) is None
        else:
            with pytest.raises(answer, match=str(got)):
                ask.parse(Rows([(got,)], 1))


# ---------------------------------------------------------------- errors


def _odbc(state: str, text: str) -> Exception:
    made = sqlstate_to_exception(state, f"[Microsoft][ODBC Driver 18 for SQL Server][SQL Server]{text}")
    assert isinstance(made, mssql_python.Error)
    return made


def _dblib(number: int, text: str = "text", kind: type[Exception] = pymssql.OperationalError) -> Exception:
    return kind(number, text.encode())


_DEADLOCK = "Transaction (Process ID 52) was deadlocked on lock resources and has been chosen as the deadlock victim."
_SNAPSHOT = "Snapshot isolation transaction aborted due to update conflict. You cannot use snapshot isolation."
_NO_TABLE = "Invalid object name 'retrysafe_records'."
_DOOMED = "The current transaction cannot be committed and cannot support operations that write to the log file."


@each_row(
    "error, state, inside, alone",
    [
        (_dblib(1205, _DEADLOCK), "40001", RetryTransaction, StoreUnavailable),
        (_odbc("40001", _DEADLOCK), "40001", RetryTransaction, StoreUnavailable),
        (_dblib(3960, _SNAPSHOT), "40001", RetryTransaction, StoreUnavailable),
        (_odbc("42000", _SNAPSHOT), "40001", RetryTransaction, StoreUnavailable),
        (_dblib(2627, kind=pymssql.IntegrityError), "23505", pymssql.IntegrityError, pymssql.IntegrityError),
        (_dblib(2601, kind=pymssql.IntegrityError), "23505", pymssql.IntegrityError, pymssql.IntegrityError),
        (_odbc("23000", "Violation"), "23505", mssql_python.IntegrityError, mssql_python.IntegrityError),
        (_dblib(1222), "55P03", StoreUnavailable, StoreUnavailable),
        (_odbc("42000", "Lock request time out period exceeded."), "55P03", StoreUnavailable, StoreUnavailable),
        (_dblib(208, _NO_TABLE, pymssql.ProgrammingError), "42P01", SchemaOutdated, SchemaOutdated),
        (_odbc("42S02", _NO_TABLE), "42P01", SchemaOutdated, SchemaOutdated),
        (_dblib(3930, _DOOMED), "25P02", ConfigurationError, StoreUnavailable),
        (_odbc("42000", _DOOMED), "25P02", ConfigurationError, StoreUnavailable),
        (_odbc("HYT00", "Query timeout expired"), "57014", StoreUnavailable, StoreUnavailable),
        (_odbc("08S01", "Communication link failure"), "08S01", StoreUnavailable, StoreUnavailable),
        (_dblib(20047, "DBPROCESS is dead"), "08S01", StoreUnavailable, StoreUnavailable),
        (_dblib(229, "permission denied on retrysafe_records"), "42501", StoreMisconfigured, StoreMisconfigured),
        (_dblib(229, "permission denied on orders"), "42501", pymssql.OperationalError, StoreUnavailable),
        (_dblib(245, "Conversion failed"), "HY000", pymssql.OperationalError, StoreUnavailable),
        (_odbc("42000", "Incorrect syntax"), "HY000", mssql_python.ProgrammingError, StoreUnavailable),
    ],
    ids=lambda value: str(value)[:40],
)
def test_the_meaning_of_an_error(error: Exception, state: str, inside: type[Exception], alone: type[Exception]) -> None:
    wrapped = exc.DBAPIError("SELECT 1", (), error)
    assert sqlstate(error) == sqlstate(wrapped) == state
    assert wants_restart(error) == wants_restart(wrapped) == (inside is RetryTransaction)
    with pytest.raises(inside) as found:
        fail(error)
    with pytest.raises(alone) as found_alone:
        fail(error, alone=True)
    if inside is ConfigurationError:
        assert ABORTED in str(found.value)
    if inside is RetryTransaction:
        assert isinstance(found_alone.value, StoreUnavailable)
        assert found_alone.value.transient


@each_row(
    "error, remedy",
    [
        (pymssql.OperationalError((18456, b"Login failed for user 'sa'.")), "Correct the user and the password"),
        (_odbc("28000", "Login failed for user 'sa'."), "Correct the user and the password"),
        (pymssql.OperationalError((4060, b"Cannot open database")), "Create the database"),
        (_odbc("42000", 'Cannot open database "shop" requested by the login.'), "Create the database"),
        (mssql_python.OperationalError("Connection operation failed", "Failed to load the driver."), "libltdl7"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_connection_that_a_person_has_to_mend(error: Exception, remedy: str) -> None:
    made = not_connected(error)
    assert isinstance(made, StoreMisconfigured)
    assert remedy in str(made)


# ---------------------------------------------------------------- drivers, with nobody listening


def _cannot_load() -> bool:
    try:
        ctypes.CDLL("libltdl.so.7")
    except OSError:
        return True
    return False


@pytest.mark.slow
@each_row("scheme", ["mssql", "mssql+pymssql"])
def test_a_server_that_is_not_there(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Microsoft's driver tries again for as long as it may."""
    monkeypatch.setattr(deadline, "DEADLINE", 1.0)
    backend = connect(f"{scheme}://sa:hunter2@127.0.0.1:{free_port()}/shop?encrypt=no")
    expected = StoreMisconfigured if scheme != "mssql+pymssql" and _cannot_load() else StoreUnavailable

    async def ask() -> None:
        try:
            await backend.arun(_time())
        finally:
            await backend.aclose()

    def _time() -> Any:
        return (yield STORE.time())

    for perform in (lambda: backend.client()(STORE.time().request), lambda: asyncio.run(ask())):
        with pytest.raises(StoreUnavailable) as refused:
            perform()
        assert type(refused.value) is expected
        assert refused.value.unsent
        assert "hunter2" not in str(refused.value)
    backend.close()


@each_row(
    "url, said",
    [
        ("mssql://db/shop", "write mssql://user:password@host:1433/database"),
        ("mssql://sa:x@db", "write mssql://user:password@host:1433/database"),
        ("mssql://sa:x@db/shop?driver=ODBC+Driver+18", "has no option 'driver'"),
        ("mssql://sa:x@db/shop?pool=0", "pool='0'"),
    ],
)
def test_a_url_that_cannot_be_kept_is_refused(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        connect(url)


def test_a_password_with_every_character_is_quoted() -> None:
    backend = connect("mssql://sa:a%7Bb%7D%3B%3D%20c@db/shop")
    client: Any = backend.access.sync and backend.access.sync()
    assert isinstance(client, MssqlPythonDriver)
    assert "PWD={a{b}};= c}" in client._text


# ---------------------------------------------------------------- async code by threads, on a driver that has a server


def by_threads(most: int) -> Backend:
    """MySQL as async code would be served by PyMySQL."""
    require("mysql")
    options, size = urls._mysql_options(mysql_url()), Size(most)
    migrated(mysql_url())
    make = lambda: AsyncThreads(PymysqlDriver(options, size), size)  # noqa: E731
    return Backend(store_of("mysql"), StoreAccess("mysql by threads", asynchronous=make))


@pytest.mark.slow
@each_row("name", CASES)
def test_threads_serve_the_suite(name: str) -> None:
    harness = AsyncHarness(by_threads(10))
    CASES[name](Bench(harness, secrets.token_bytes(32)))
    harness.close()


@pytest.mark.slow
async def test_a_transaction_in_threads_is_kept_whole() -> None:
    orders = Boundary(f"threads {secrets.token_hex(4)}", store=by_threads(2), effects="transactional")
    ran: list[int] = []

    @orders.once(key="order", operation="place")
    async def place(order: str) -> int:
        ran.append(1)
        current().tx.cursor().execute("SELECT 41 + 1")
        if len(ran) == 1:
            raise ValueError(order)
        return 42

    with pytest.raises(ValueError, match="o-1"):
        await place("o-1")
    assert [await place("o-1"), await place("o-1")] == [42, 42]
    assert len(ran) == 2
    await orders.aclose()


@pytest.mark.slow
async def test_a_cancelled_task_gives_its_connection_back() -> None:
    """Wherever it is cancelled: while it waits for a connection or a thread, begins, or works."""
    backend = by_threads(2)
    client = await backend.ready_aclient()
    working = asyncio.Event()

    async def hold() -> None:
        async with client.transaction() as opened:
            await opened.execute(backend.store.begin().request)  # type: ignore[attr-defined]
            working.set()
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(hold()) for _ in range(6)]
    await working.wait()
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in ended)
    times = await asyncio.gather(*(client(backend.store.time().request) for _ in range(6)))  # type: ignore[attr-defined]
    assert len(times) == 6
    await backend.aclose()


# ---------------------------------------------------------------- what it says of itself


def test_it_says_that_it_was_never_run() -> None:
    assert STORE.capabilities.never_run
    assert STORE.capabilities.tested_on == "nothing: never run"
    boundary = Boundary("shop", store="mssql://sa:x@127.0.0.1/shop")
    assert "tested on nothing: never run" in describe(boundary)["state"]
    boundary.close()


def test_steps_and_messages_are_refused() -> None:
    backend = connect("mssql://sa:x@127.0.0.1/shop")
    assert not keeps_steps(backend)
    with pytest.raises(ConfigurationError, match="no place for messages"):
        Outbox(backend, source="/shop")


@each_row("name", ["mssql+pymssql", "mssql+mssqlpython"])
def test_an_engine_of_sqlalchemy_is_a_store(name: str) -> None:
    engine = sqlalchemy.create_engine(f"{name}://sa:x@127.0.0.1/shop")
    backend = connect(engine)
    assert backend.kind == "mssql"
    style = engines._style(engine.dialect)
    assert style == {"mssql+pymssql": "%s", "mssql+mssqlpython": "?"}[name]
    backend.close()
    engine.dispose()
