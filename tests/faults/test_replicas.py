"""A PostgreSQL server with a streaming replica: what a failover loses, and what is said of it. FAULTS 21, 22, 29."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool

import retrysafe.backends.sql.drivers.deadline as deadline
from retrysafe import ConfigurationError, StoreUnavailable
from retrysafe.admin.operator import Operator
from tests.faults.conftest import Making, own_primary
from tests.faults.helpers import DEADLINE, Bank, Told, driven, records_of, unique, until
from tests.faults.servers import Cluster, Replica

pytestmark = pytest.mark.slow

SYNCHRONOUS = {"synchronous_standby_names": "second"}


def _charged(server: Cluster) -> list[tuple[str]]:
    with server.admin() as admin:
        found: list[tuple[str]] = admin.execute("SELECT key FROM charges").fetchall()
    return found


def _open_shop(server: Cluster) -> None:
    with server.admin() as admin:
        admin.execute("CREATE TABLE IF NOT EXISTS charges (key text NOT NULL)")
        admin.execute("TRUNCATE charges")


@pytest.fixture(scope="module")
def first() -> Iterator[Cluster]:
    """A server that is killed, and started again for the next test."""
    with own_primary() as server:
        yield server


@pytest.fixture
def primary(first: Cluster) -> Iterator[Cluster]:
    """The same, up."""
    yield first
    if first.process.poll() is not None:
        first.start()
    first.set(synchronous_standby_names="")


@pytest.fixture
def replica(primary: Cluster) -> Iterator[Replica]:
    """A streaming replica of it, named "second"."""
    server = primary.replica("second")
    until(server.has_all)
    yield server
    server.close()


@pytest.mark.one_of("failovers to a replica", of=3)
@pytest.mark.fault(21)
def test_a_failover_to_an_asynchronous_replica_forgets_what_it_had_not_received(
    primary: Cluster, replica: Replica, make: Making, bank: Bank
) -> None:
    """Documented: the record runs again. In a transaction its effect was lost with it; a keyed one is recognised."""
    _open_shop(primary)
    rows, calls = make(primary.url, effects="transactional"), make(primary.url)

    def both(where: Cluster) -> list[bool]:
        replayed = []
        for made in (rows, calls):
            boundary = make(where.url, name=made.name, effects=made.effects)
            with boundary.claim("key") as claim:
                if not claim.replayed and claim.tx is not None:
                    claim.tx.execute("INSERT INTO charges VALUES ('key')")
                elif not claim.replayed:
                    bank.charge(claim.key_for("bank"))
            replayed.append(claim.replayed)
        return replayed

    for made in (rows, calls):
        with made.claim("before"):
            pass
    replica.hear_no_more()
    assert both(primary) == [False, False]
    primary.kill()
    replica.promote()
    assert both(replica) == [False, False]
    assert _charged(replica) == [("key",)]
    assert (len(bank.charges), sum(bank.requests.values())) == (1, 2)
    for made in (rows, calls):
        with make(replica.url, name=made.name, effects=made.effects).claim("before") as claim:
            assert claim.replayed


@pytest.mark.one_of("failovers to a replica", of=3)
@pytest.mark.fault(21)
def test_a_failover_to_a_synchronous_replica_forgets_nothing(
    primary: Cluster, replica: Replica, make: Making, bank: Bank
) -> None:
    primary.set(**SYNCHRONOUS)
    boundary = make(primary.url, effects="external")
    for number in range(10):
        with boundary.claim(f"key {number}") as claim:
            claim.result = bank.charge(claim.key_for("bank"))
    primary.kill()
    replica.promote()
    after = make(replica.url, name=boundary.name, effects="external")
    for number in range(10):
        with after.claim(f"key {number}") as claim:
            assert claim.replayed
    assert set(bank.requests.values()) == {1}


@pytest.mark.one_of("failovers to a replica", of=3)
@pytest.mark.fault(21)
def test_an_operator_is_told_whether_a_failover_may_lose_commits(primary: Cluster, replica: Replica) -> None:
    def facts() -> dict[str, str]:
        with closing(Operator(primary.url)) as operator:
            return {finding.name: finding.text for finding in operator.status().findings}

    assert facts()["synchronous_standby_names"] == "none: a failover may lose the last commits"
    primary.set(**SYNCHRONOUS)
    assert facts()["synchronous_standby_names"] == "second"


# ---------------------------------------------------------------- a wait for the replica that ends too soon


def _end_the_wait(server: Cluster, application: str) -> threading.Thread:
    """Cancel the wait of a commit for its replica, as soon as there is one."""
    waits = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = %s"

    def end() -> None:
        with server.admin() as admin:
            until(lambda: admin.execute(waits, (application,)).fetchall())

    ending = threading.Thread(target=end, daemon=True)
    ending.start()
    return ending


@pytest.fixture(scope="module")
def waiting() -> Iterator[Cluster]:
    """A server whose commits wait for a replica that will never come, unless somebody ends the wait."""
    with own_primary() as server:
        _open_shop(server)
        yield server


@pytest.mark.fault(22)
@pytest.mark.parametrize(
    ("effects", "step"), [("keyed", "claim"), ("keyed", "completion"), ("transactional", "completion")]
)
@pytest.mark.parametrize("driver", ["psycopg", "psycopg async", "asyncpg", "psycopg pool"])
def test_a_commit_whose_wait_for_a_replica_was_ended_is_told(
    driver: str, effects: str, step: str, waiting: Cluster, make: Making, told: Told
) -> None:
    """It is committed here and may be nowhere else: nothing is run again, and somebody must hear of it."""
    application = unique("app")
    url = f"{waiting.url}?application_name={application}"
    endings: list[threading.Thread] = []

    def await_replica() -> None:
        waiting.set(synchronous_standby_names="nobody")
        endings.append(_end_the_wait(waiting, application))

    def settled() -> None:
        waiting.set(synchronous_standby_names="")
        endings.pop().join(DEADLINE)
        warnings = [dict(one.fields) for one in told.occurrences if one.name == "store_warning"]
        assert [warning["setting"] for warning in warnings] == ["synchronous_replication"]
        assert "a failover may lose it" in warnings[0]["text"]
        assert told.names["completed"] == 2

    def sync(store: Any) -> None:
        boundary = make(store, effects=effects, lease="60s")
        with boundary.claim("warm"):
            pass
        claim = boundary.claim("key")
        if step == "claim":
            await_replica()
        with claim:
            waiting.set(synchronous_standby_names="") if step == "claim" else await_replica()
            claim.result = "once"
        settled()
        with boundary.claim("key") as again:
            assert (again.replayed, again.result) == (True, "once")

    async def asynchronous(store: Any) -> None:
        boundary = make(store, effects=effects, lease="60s")
        async with boundary.claim("warm"):
            pass
        claim = boundary.claim("key")
        if step == "claim":
            await_replica()
        async with claim:
            waiting.set(synchronous_standby_names="") if step == "claim" else await_replica()
            claim.result = "once"
        settled()
        async with boundary.claim("key") as again:
            assert (again.replayed, again.result) == (True, "once")
        await boundary.aclose()

    try:
        if driver == "psycopg":
            sync(url)
        elif driver == "psycopg pool":
            with ConnectionPool(url, min_size=1, max_size=1, open=True) as pool:
                sync(pool)
        else:
            asyncio.run(asynchronous(driven(url, driver.split()[0])))
    finally:
        waiting.set(synchronous_standby_names="")


@pytest.mark.fault(22)
def test_a_wait_for_a_replica_that_nobody_ends_is_an_unavailable_store(
    waiting: Cluster, make: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The effect may have happened, the caller is told; asked again, the record is there."""
    monkeypatch.setattr(deadline, "DEADLINE", 2.0)
    boundary = make(waiting.url, effects="transactional")
    waiting.set(synchronous_standby_names="nobody")
    try:
        with (
            pytest.raises(StoreUnavailable, match="from a commit, the effect may have happened"),
            boundary.claim("key") as claim,
        ):
            claim.tx.execute("INSERT INTO charges VALUES ('key')")
            claim.result = "once"
    finally:
        waiting.set(synchronous_standby_names="")
    until(partial(_is_idle, waiting))
    with boundary.claim("key") as claim:
        assert (claim.replayed, claim.result) == (True, "once")
    assert _charged(waiting) == [("key",)]


def _is_idle(server: Cluster) -> bool:
    """Tell whether nothing is under way: a backend goes on for a moment after its client has left it."""
    busy = "SELECT 1 FROM pg_stat_activity WHERE backend_type = 'client backend' AND state <> 'idle'"
    with server.admin() as admin:
        return not admin.execute(f"{busy} AND pid <> pg_backend_pid()".encode()).fetchall()


@pytest.mark.fault(29)
def test_claims_and_replays_on_a_replica_are_refused(primary: Cluster, replica: Replica, make: Making) -> None:
    """A replica that lags would answer that the key is free; this one has even applied the record."""
    with make(primary.url, name="shop").claim("key") as claim:
        claim.result = "done"
    until(replica.has_all)
    for effects in ("keyed", "transactional", "external"):
        boundary = make(replica.url, name="shop", effects=effects)
        with (
            pytest.raises(ConfigurationError, match="standby, where nothing can be claimed: use the primary"),
            boundary.claim("key"),
        ):
            pytest.fail("refused before the handler")
        boundary.close()
    transactional = make(replica.url, name="shop", effects="transactional")
    with (
        psycopg.connect(replica.url) as tx,
        pytest.raises(ConfigurationError, match="use the primary"),
        transactional.claim("key", tx=tx),
    ):
        pytest.fail("refused before the handler")
    assert records_of(primary.url, "shop") == [("completed", 1)]


@pytest.mark.fault(29)
def test_a_replica_that_lags_is_never_asked(primary: Cluster, replica: Replica, make: Making) -> None:
    """A URL with both servers, the replica first: what was done a moment ago is replayed, and runs on neither."""
    replica.hear_no_more()
    both = f"postgresql://retrysafe@127.0.0.1:{replica.port},127.0.0.1:{primary.port}/postgres"
    boundary = make(f"{both}?target_session_attrs=read-write")
    for replayed in (False, True):
        with boundary.claim("key") as claim:
            assert claim.replayed is replayed
    assert (records_of(primary.url, boundary.name), records_of(replica.url, boundary.name)) == ([("completed", 1)], [])
