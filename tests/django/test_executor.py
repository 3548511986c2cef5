"""The promises of Boundary on a Django alias: its refusals, the faults that it survives, its use of connections."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import django
import pytest

from retrysafe import Boundary, ConfigurationError, InProgress, RetryTransaction, SchemaOutdated, StoreUnavailable, wait
from retrysafe.backends.registry import connect
from tests.conftest import require
from tests.django.aliases import add_alias, opened, remove_alias, set_up
from tests.faults.helpers import ROOT, Told, environment, unique, until

set_up()

from django.db import IntegrityError, OperationalError, connection, connections, transaction  # noqa: E402
from django.db.backends.signals import connection_created  # noqa: E402
from django.db.transaction import TransactionManagementError  # noqa: E402

from retrysafe.messaging import Inbox, InboxMessage  # noqa: E402
from tests.messaging.inboxes import delivery, envelope  # noqa: E402
from tests.tables import each_row  # noqa: E402

Make = Callable[..., Boundary]


def test_hooks_run_when_the_reply_to_a_commit_is_lost(postgresql_alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """28: the record shows that the commit came to pass, so its hooks run, and once."""
    boundary = Boundary(unique(), store=postgresql_alias, effects="transactional")
    ran: list[str] = []
    wrapper: Any = connections[postgresql_alias]
    commit = wrapper._commit

    def lost() -> None:
        monkeypatch.undo()
        commit()
        wrapper.connection.close()
        raise OperationalError("the reply to the commit was lost")

    @boundary.once(key="order", operation="place")
    def place(order: str) -> str:
        transaction.on_commit(lambda: ran.append(order), using=postgresql_alias)
        return "placed"

    monkeypatch.setattr(wrapper, "_commit", lost)
    assert [place("o"), place("o")] == ["placed", "placed"]
    assert ran == ["o"]
    boundary.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def alias(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A migrated alias on each kind of database."""
    if request.param == "postgresql":
        require("postgresql")
    name = add_alias(request.param, **({"NAME": str(tmp_path / "a.db")} if request.param == "sqlite" else {}))
    connect(name).migrate()
    with connections[name].cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS goods (value text PRIMARY KEY)")
        cursor.execute("DELETE FROM goods")
    yield name
    remove_alias(name)


@pytest.fixture
def postgresql_alias() -> Iterator[str]:
    """A migrated alias on PostgreSQL that keeps its connections."""
    require("postgresql")
    name = add_alias("postgresql", CONN_MAX_AGE=None)
    connect(name).migrate()
    yield name
    remove_alias(name)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def make(told: Told) -> Iterator[Make]:
    """Makes boundaries, and closes them."""
    made: list[Boundary] = []

    def one(store: Any, **terms: Any) -> Boundary:
        terms.setdefault("effects", "transactional")
        made.append(Boundary(unique(), store=store, observers=[told], **terms))
        return made[-1]

    yield one
    for boundary in made:
        boundary.close()


def insert(alias: str, value: str) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute("INSERT INTO goods VALUES (%s)", [value])


def goods(alias: str) -> list[str]:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT value FROM goods ORDER BY value")
        return [row[0] for row in cursor.fetchall()]


def states(alias: str, boundary: Boundary) -> list[str]:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT state FROM retrysafe_records WHERE boundary = %s", [boundary.name])
        return [row[0] for row in cursor.fetchall()]


# ---------------------------------------------------------------- store=

BUILDING = """
import retrysafe
try:
    retrysafe.Boundary("b", store="default")
except retrysafe.ConfigurationError as error:
    print(error)
"""


def test_alias_and_connection_are_the_same_store(alias: str) -> None:
    assert connect(alias) is connect(connections[alias])
    assert connect("default") is connect(connection)


@each_row(
    ("store", "named"),
    [
        ("nowhere", r"neither a URL nor an alias .*'default'.* A file is sqlite:///"),
        ("", r"neither a URL nor an alias .*'default'.* A file is sqlite:///"),
        ("shop.db", "write store='sqlite:///shop.db'"),
        ("host=db password=hunter2", r"'host=db password=\*\*\*' is neither"),
    ],
)
def test_string_that_is_nothing(store: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        Boundary("b", store=store)


def test_database_that_is_not_supported() -> None:
    name = add_alias("sqlite", ENGINE="django.db.backends.dummy")
    with pytest.raises(ConfigurationError, match="'unknown' database is not supported"):
        Boundary("b", store=name)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"DJANGO_SETTINGS_MODULE": "no.such.module"}])
def test_django_that_is_not_configured(settings: dict[str, str]) -> None:
    program = BUILDING
    variables = {k: v for k, v in environment().items() if k != "DJANGO_SETTINGS_MODULE"} | settings
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=variables, check=False)
    assert "Django is not configured" in done.stdout, done.stderr


@pytest.mark.slow
def test_django_that_is_not_installed() -> None:
    program = "import sys; sys.modules['django'] = None" + BUILDING
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(), check=False
    )
    assert "only with Django, which is missing" in done.stdout, done.stderr


def test_building_connects_to_nothing(make: Make) -> None:
    require("postgresql")
    name = add_alias("postgresql", HOST="127.0.0.1", PORT="1")
    boundary = make(name, effects="keyed")
    with pytest.raises(StoreUnavailable) as caught, boundary.claim("k"):
        pytest.fail("not claimed")
    assert caught.value.unsent
    remove_alias(name)


def test_schema_is_missing(tmp_path: Path, make: Make) -> None:
    name = add_alias("sqlite", NAME=str(tmp_path / "empty.db"))
    with pytest.raises(SchemaOutdated, match=f"manage.py migrate retrysafe --database={name}"), make(name).claim("k"):
        pytest.fail("not claimed")
    remove_alias(name)


def test_private_memory_is_refused(make: Make) -> None:
    name = add_alias("sqlite", NAME=":memory:")
    with pytest.raises(ConfigurationError, match="another database for every thread"), make(name).claim("k"):
        pytest.fail("not claimed")


@pytest.mark.parametrize("effects", ["keyed", "transactional"])
def test_async_claims_are_refused(alias: str, make: Make, effects: str) -> None:
    boundary = make(alias, effects=effects)

    async def claims() -> None:
        with pytest.raises(ConfigurationError, match="sync_to_async"):
            async with boundary.claim("k"):
                pytest.fail("not claimed")
        with pytest.raises(ConfigurationError, match="sync_to_async"), boundary.claim("k"):
            pytest.fail("not claimed")

    asyncio.run(claims())


def test_sync_to_async_carries_the_claim(alias: str, make: Make) -> None:
    from asgiref.sync import sync_to_async

    boundary = make(alias)

    @boundary.once(key="key", operation="add")
    def add(key: str) -> str:
        insert(alias, key)
        return key

    def and_close() -> tuple[str, str]:
        both = add("k"), add("k")
        connections.close_all()
        return both

    assert asyncio.run(sync_to_async(and_close)()) == ("k", "k")
    assert goods(alias) == ["k"]


# ---------------------------------------------------------------- tx=


def test_tx_by_alias_gives_the_connection(alias: str, make: Make) -> None:
    with transaction.atomic(using=alias), make(alias).claim("k", tx=alias) as claim:
        assert claim.tx is connections[alias]


def test_proxy_is_this_threads_connection(make: Make) -> None:
    claim = make("default").claim("k", tx=connection)
    with pytest.raises(ConfigurationError, match=r"no atomic block .* `with transaction.atomic\(\):`"), claim:
        pytest.fail("not claimed")


@pytest.mark.parametrize("as_alias", [True, False])
def test_tx_outside_an_atomic_block(alias: str, make: Make, as_alias: bool) -> None:
    claim = make(alias).claim("k", tx=alias if as_alias else connections[alias])
    with pytest.raises(ConfigurationError, match=rf"`with transaction.atomic\('{alias}'\):`"), claim:
        pytest.fail("not claimed")


def test_tx_of_no_alias(alias: str, make: Make) -> None:
    with pytest.raises(ConfigurationError, match="tx='nowhere' is no alias"), make(alias).claim("k", tx="nowhere"):
        pytest.fail("not claimed")


def test_tx_of_another_kind(alias: str, make: Make, tmp_path: Path) -> None:
    sqlite = connections[alias].vendor == "sqlite"
    claim = make("postgresql://nowhere/" if sqlite else f"sqlite:///{tmp_path}/other.db").claim("k", tx=alias)
    with transaction.atomic(using=alias), pytest.raises(ConfigurationError, match="cannot commit together"), claim:
        pytest.fail("not claimed")


def test_tx_of_another_thread(alias: str, make: Make) -> None:
    boundary = make(alias)

    def elsewhere(tx: Any) -> None:
        with pytest.raises(ConfigurationError, match="of another thread"), boundary.claim("k", tx=tx):
            pytest.fail("not claimed")

    with transaction.atomic(using=alias), ThreadPoolExecutor(1) as pool:
        pool.submit(elsewhere, connections[alias]).result()


def test_marked_for_rollback(alias: str, make: Make) -> None:
    boundary = make(alias)
    with pytest.raises(ConfigurationError, match="marked it for rollback"), transaction.atomic(using=alias):
        transaction.set_rollback(True, using=alias)
        with boundary.claim("k", tx=alias):
            pytest.fail("not claimed")


def test_marked_for_rollback_inside_the_claim(alias: str, make: Make) -> None:
    boundary = make(alias)
    joined = boundary.claim("k", tx=alias)
    with pytest.raises(ConfigurationError, match="marked it for rollback"), transaction.atomic(using=alias), joined:
        insert(alias, "a")
        transaction.set_rollback(True, using=alias)
    with pytest.raises(ConfigurationError, match="marked it for rollback"), boundary.claim("k"):
        insert(alias, "a")
        transaction.set_rollback(True, using=alias)
    assert (goods(alias), states(alias, boundary)) == ([], [])


def test_commit_of_what_is_marked_is_refused(alias: str) -> None:
    """Django would roll back without a word."""
    backend = connect(alias)
    store: Any = backend.store
    with backend.client().transaction() as opened:
        opened.execute(store.begin().request)
        insert(alias, "a")
        transaction.set_rollback(True, using=alias)
        with pytest.raises(ConfigurationError, match="marked it for rollback"):
            opened.execute(store.commit().request)
    assert goods(alias) == []


def test_aborted_by_raw_sql(alias: str, make: Make) -> None:
    if connections[alias].vendor == "sqlite":
        return  # a failed statement aborts nothing there
    boundary = make(alias)
    with pytest.raises(ConfigurationError, match="has aborted it"), transaction.atomic(using=alias):
        with pytest.raises(Exception, match="no_such_table"), connections[alias].cursor() as cursor:
            cursor.execute("SELECT * FROM no_such_table")
        with boundary.claim("k", tx=alias):
            pytest.fail("not claimed")
    assert not connections[alias].in_atomic_block


def test_statement_of_ours_that_failed_marks_the_block(alias: str, make: Make) -> None:
    boundary = make(alias)
    with boundary.claim("k") as claim:
        claim.result = 1
    with connections[alias].cursor() as cursor:
        cursor.execute("ALTER TABLE retrysafe_records RENAME TO gone")
    with transaction.atomic(using=alias):
        with pytest.raises(SchemaOutdated), transaction.atomic(using=alias), boundary.claim("k", tx=alias):
            pytest.fail("not claimed")
        insert(alias, "outer")
    with transaction.atomic(using=alias):
        with pytest.raises(SchemaOutdated), boundary.claim("k", tx=alias):
            pytest.fail("not claimed")
        with pytest.raises(TransactionManagementError):
            insert(alias, "lost")
    with connections[alias].cursor() as cursor:
        cursor.execute("ALTER TABLE gone RENAME TO retrysafe_records")
    assert goods(alias) == ["outer"]


def test_savepoint_lets_the_claim_go_on(alias: str, make: Make) -> None:
    boundary = make(alias)
    insert(alias, "taken")
    with boundary.claim("k") as claim:
        with pytest.raises(IntegrityError), transaction.atomic(using=alias):
            insert(alias, "taken")
        insert(alias, "free")
        claim.result = 1
    assert (goods(alias), states(alias, boundary)) == (["free", "taken"], ["completed"])


def test_inner_block_takes_its_claim_along(alias: str, make: Make) -> None:
    boundary = make(alias)
    with transaction.atomic(using=alias):
        with pytest.raises(ZeroDivisionError), transaction.atomic(using=alias):
            with boundary.claim("k", tx=alias) as claim:
                claim.result = 1
            raise ZeroDivisionError
        with boundary.claim("k", tx=alias) as claim:
            assert not claim.replayed
            claim.result = 2
    with boundary.claim("k") as claim:
        assert claim.result == 2


# ---------------------------------------------------------------- own transactions


def test_own_inside_an_atomic_block_is_refused(alias: str, make: Make) -> None:
    claim = make(alias).claim("k")
    with transaction.atomic(using=alias), pytest.raises(ConfigurationError, match=f"Pass tx='{alias}'"), claim:
        pytest.fail("not claimed")


def test_autocommit_switched_off_is_refused(alias: str, make: Make) -> None:
    boundary = make(alias)
    transaction.set_autocommit(False, using=alias)
    with pytest.raises(ConfigurationError, match="AUTOCOMMIT switched off"), boundary.claim("k"):
        pytest.fail("not claimed")
    transaction.rollback(using=alias)
    transaction.set_autocommit(True, using=alias)
    with boundary.claim("k") as claim:
        assert not claim.replayed


def test_hooks_run_once_after_all_is_recorded(alias: str, make: Make, told: Told) -> None:
    boundary = make(alias)
    seen: list[Any] = []
    for _ in range(2):
        with boundary.claim("k") as claim:
            if not claim.replayed:
                transaction.on_commit(
                    lambda: seen.append((states(alias, boundary), told.names["completed"])), using=alias
                )
                claim.result = 1
                assert seen == []
    assert seen == [(["completed"], 1)]


def test_hooks_of_a_batch_run_after_its_commit(alias: str, make: Make) -> None:
    boundary = make(alias)
    seen: list[Any] = []

    @Inbox(boundary).batch_handler("stock")
    def handle(message: InboxMessage[Any]) -> None:
        transaction.on_commit(lambda: seen.append(states(alias, boundary)), using=alias)

    handle.handle_many([delivery(1), delivery(2)])
    assert seen == [["completed"] * 2] * 2


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_a_message_that_loses_its_connection_spends_its_attempts(alias: str, make: Make) -> None:
    """As behind a pooler that hangs up: the error has no SQLSTATE, and reads as an outage of the database."""

    @Inbox(make(alias)).handler("stock", max_attempts=2)
    def handle(message: InboxMessage[Any]) -> None:
        with connections[alias].cursor() as cursor:
            with socket.socket(fileno=os.dup(connections[alias].connection.fileno())) as cut:
                cut.shutdown(socket.SHUT_RDWR)
            cursor.execute("SELECT 1")

    assert [handle.handle(envelope(1)).became.value for _ in range(2)] == ["failed", "dead"]


@pytest.mark.parametrize("error", [ZeroDivisionError, OperationalError, StoreUnavailable, InProgress])
def test_error_of_a_hook_reaches_the_caller_and_changes_nothing(
    alias: str, make: Make, told: Told, error: type[Exception]
) -> None:
    boundary = make(alias)

    def hook() -> None:
        raise error("in the hook")

    with pytest.raises(error, match="in the hook"), boundary.claim("k") as claim:
        transaction.on_commit(hook, using=alias)
        claim.result = 1
    assert states(alias, boundary) == ["completed"]
    assert (told.names["completed"], told.names["rolled_back"]) == (1, 0)
    with boundary.claim("k") as claim:
        assert claim.result == 1


def test_hooks_of_work_that_was_undone_do_not_run(alias: str, make: Make) -> None:
    boundary = make(alias, permanent=ValueError)
    for error in (ZeroDivisionError, ValueError):
        with pytest.raises(error), boundary.claim("k"):
            transaction.on_commit(lambda: pytest.fail("the work was undone"), using=alias)
            raise error
    assert states(alias, boundary) == ["failed"]
    with transaction.atomic(using=alias):
        pass


def test_deferred_constraint_fails_at_commit(postgresql_alias: str, make: Make) -> None:
    table = unique("deferred")
    with connections[postgresql_alias].cursor() as cursor:
        cursor.execute(f"CREATE TABLE {table} (v int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    boundary = make(postgresql_alias)
    with pytest.raises(IntegrityError), boundary.claim("k") as claim, connections[postgresql_alias].cursor() as cursor:
        cursor.execute(f"INSERT INTO {table} VALUES (1), (1)")
        claim.result = 1
    assert states(postgresql_alias, boundary) == []
    assert not connections[postgresql_alias].in_atomic_block


def test_once_restarts_what_the_database_wants_again(postgresql_alias: str, make: Make) -> None:
    runs: list[str] = []

    @make(postgresql_alias).once(key="key", operation="add")
    def add(key: str) -> int:
        runs.append(key)
        if len(runs) == 1:
            with connections[postgresql_alias].cursor() as cursor:
                cursor.execute("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")
        return len(runs)

    assert add("k") == 2

    claim = make(postgresql_alias).claim("k")
    with pytest.raises(RetryTransaction), claim, connections[postgresql_alias].cursor() as cursor:
        cursor.execute("DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$")


# ---------------------------------------------------------------- leased, on connections of our own


def test_leased_record_survives_the_block_around_it(postgresql_alias: str, make: Make) -> None:
    boundary = make(postgresql_alias, effects="keyed")
    with pytest.raises(ZeroDivisionError), transaction.atomic(using=postgresql_alias):
        with boundary.claim("k") as claim:
            claim.result = 1
        raise ZeroDivisionError
    assert states(postgresql_alias, boundary) == ["completed"]


def test_leased_inside_an_atomic_block_on_sqlite_is_refused_at_once(tmp_path: Path, make: Make) -> None:
    name = add_alias("sqlite", NAME=str(tmp_path / "a.db"))
    connect(name).migrate()
    claim = make(name, effects="keyed").claim("k")
    with transaction.atomic(using=name), pytest.raises(ConfigurationError, match="has one writer"), claim:
        pytest.fail("not claimed")
    remove_alias(name)


def test_leased_records_commit_although_autocommit_is_switched_off(postgresql_alias: str, make: Make) -> None:
    name = add_alias("postgresql", AUTOCOMMIT=False)
    boundary = make(name, effects="keyed")
    with boundary.claim("k") as claim:
        assert states(postgresql_alias, boundary) == ["running"]
        claim.result = 1
    assert states(postgresql_alias, boundary) == ["completed"]
    remove_alias(name)


@pytest.mark.parametrize(("age", "opened"), [(None, 1), (0, 2)])
def test_connections_live_as_long_as_conn_max_age_says(make: Make, age: int | None, opened: int) -> None:
    require("postgresql")
    name = add_alias("postgresql", CONN_MAX_AGE=age)
    boundary = make(name, effects="keyed")
    connect(name).migrate()
    with boundary.claim("warm"):
        pass
    seen: list[Any] = []

    def count(connection: Any, **_: Any) -> None:
        seen.append(connection)

    connection_created.connect(count)
    with boundary.claim("k"):
        pass
    connection_created.disconnect(count)
    assert len(seen) == (0 if opened == 1 else opened)
    remove_alias(name)


@pytest.mark.skipif(django.VERSION < (5, 1), reason="Django 5.1 brought the pool")
def test_djangos_pool(make: Make) -> None:
    require("postgresql")
    name = add_alias("postgresql", OPTIONS={"pool": {"min_size": 0, "max_size": 1, "timeout": 1}})
    connect(name).migrate()
    boundary = make(name, effects="keyed")
    connections[name].ensure_connection()  # the pool's only one, as a request holds it that has read
    with boundary.claim("k") as claim:
        claim.result = 1
    with transaction.atomic(using=name), boundary.claim("l") as claim:
        claim.result = 1
    assert states(name, boundary) == ["completed", "completed"]
    assert "keepalives_idle" not in connections[name].pool.kwargs, "the pool is the user's"
    connections[name].close()
    connections[name].close_pool()
    remove_alias(name)


def test_close_closes_our_connections(postgresql_alias: str, make: Make) -> None:
    boundary = make(postgresql_alias, effects="keyed")
    with boundary.claim("k"):
        pass
    ours = [one.connection for one in opened(postgresql_alias) if one is not connections[postgresql_alias]]
    assert False in [driver.closed for driver in ours]
    boundary.close()
    assert {driver.closed for driver in ours} == {True}


def _end_sessions_of_others(alias: str) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )


def test_connections_that_the_server_ended_are_replaced(postgresql_alias: str, make: Make) -> None:
    boundary = make(postgresql_alias, effects="keyed")
    for key in ("k", "l"):
        with boundary.claim(key) as claim:
            claim.result = key
        _end_sessions_of_others(postgresql_alias)
    with boundary.claim("k") as claim:
        assert claim.result == "k"


def test_all_connections_that_the_server_ended_are_replaced_at_once(postgresql_alias: str, make: Make) -> None:
    boundary = make(postgresql_alias, effects="keyed")
    client: Any = connect(postgresql_alias).client()
    with boundary.claim("warm"):
        pass
    with client._own.borrow(), client._own.borrow(), client._own.borrow():
        pass
    _end_sessions_of_others(postgresql_alias)
    with boundary.claim("k") as claim:
        claim.result = 1
    assert states(postgresql_alias, boundary) == ["completed", "completed"]


def test_threads_connection_that_the_server_ended_is_replaced(postgresql_alias: str, make: Make) -> None:
    boundary = make(postgresql_alias)
    other = add_alias("postgresql")
    with boundary.claim("k") as claim:
        claim.result = 1
    _end_sessions_of_others(other)
    with pytest.raises(StoreUnavailable), boundary.claim("k"):
        pytest.fail("not claimed")
    with boundary.claim("k") as claim:
        assert claim.result == 1
    remove_alias(other)


def test_server_ends_the_session_inside_the_claim(postgresql_alias: str, make: Make) -> None:
    boundary = make(postgresql_alias)
    other = add_alias("postgresql")
    with pytest.raises(StoreUnavailable), boundary.claim("k") as claim:
        _end_sessions_of_others(other)
        claim.result = 1
    with boundary.claim("k") as claim:
        assert not claim.replayed
    remove_alias(other)


def test_settings_are_read_when_used(alias: str, make: Make, tmp_path: Path) -> None:
    """As a test runner moves an alias to another database."""
    if connections[alias].vendor != "sqlite":
        return
    boundary = make(alias, effects="keyed")
    with boundary.claim("k") as claim:
        claim.result = "first place"
    connections[alias].close()
    connections.settings[alias]["NAME"] = str(tmp_path / "moved.db")
    connections.settings[alias]["CONN_MAX_AGE"] = None
    connect(alias).migrate()
    with boundary.claim("k") as claim:
        assert not claim.replayed
    connections.settings[alias]["NAME"] = str(tmp_path / "a.db")
    with boundary.claim("k") as claim:
        assert claim.result == "first place"


def test_lease_is_renewed(alias: str, make: Make) -> None:
    boundary = make(alias, effects="keyed", lease="6s")

    def renewals() -> int:
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT version FROM retrysafe_records WHERE boundary = %s", [boundary.name])
            return int(cursor.fetchone()[0])

    with boundary.claim("k") as claim:
        before = renewals()
        until(lambda: renewals() > before)
        claim.ensure_held()


@pytest.mark.parametrize("effects", ["keyed", "transactional"])
@pytest.mark.parametrize("concurrency", [None, wait(20)])
def test_concurrent_duplicates_in_threads(postgresql_alias: str, make: Make, effects: str, concurrency: Any) -> None:
    boundary = make(postgresql_alias, effects=effects, **({} if concurrency is None else {"concurrency": concurrency}))
    runs: list[str] = []

    @boundary.once(key="key", operation="add")
    def add(key: str) -> str:
        runs.append(key)
        return f"{key} {len(runs)}"

    start = threading.Barrier(8)

    def one(n: int) -> dict[str, str]:
        start.wait(60)
        found: dict[str, str] = {}
        keys = [f"key {(n + i) % 5}" for i in range(5)]
        while keys:
            try:
                found[keys[0]] = add(keys[0])
                keys.pop(0)
            except InProgress:
                assert concurrency is None
                keys.append(keys.pop(0))
        connections.close_all()
        return found

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(one, range(8)))
    assert len(runs) == 5
    assert all(answer == answers[0] for answer in answers)


FORKING = """
import os, sys
from tests.django.aliases import add_alias
from retrysafe import Boundary
from retrysafe.backends.registry import connect
alias = add_alias("postgresql", CONN_MAX_AGE=None)
boundary = Boundary(sys.argv[1], store=alias, observers=())
def claim(key):
    with boundary.claim(key) as claim:
        claim.result = key
claim("before")
child = os.fork()
for i in range(20):
    claim(f"{child == 0} {i}")
if child == 0:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.slow
def test_fork(postgresql_alias: str) -> None:
    name = unique()
    done = subprocess.run(
        [sys.executable, "-c", FORKING, name], capture_output=True, text=True, env=environment(), cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    with connections[postgresql_alias].cursor() as cursor:
        cursor.execute("SELECT state, count(*) FROM retrysafe_records WHERE boundary = %s GROUP BY state", [name])
        assert cursor.fetchall() == [("completed", 41)]
