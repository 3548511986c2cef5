"""Crash loops, forks and threads. FAULTS 85, 87, 88."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from retrysafe import Boundary, OutcomeUnknown, current
from tests.conftest import require
from tests.faults.conftest import Making, server_of
from tests.faults.helpers import DEADLINE, Child, business_table, driven, plain, records_of, rows_of
from tests.proving.effort import effort
from tests.stores.ageing import let_lapse
from tests.stores.harnesses.redis import redis_url

pytestmark = pytest.mark.slow

STORES = ["sqlite", "postgresql", "mysql"]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> str:
    """A store with real processes before it."""
    fixtures = {"sqlite": "sqlite_url", "postgresql": "migrated", "mysql": "mysql_migrated"}
    url: str = request.getfixturevalue(fixtures[request.param])
    return url


@pytest.mark.fault(85)
def test_a_crash_loop_counts_every_attempt_before_its_effect(store: str, make: Making) -> None:
    """85."""
    boundary = make(store)
    for attempts in range(1, 5):
        with Child("restarting", store, boundary.name, "keyed") as worker:
            assert worker.ends() == -signal.SIGKILL
        assert records_of(store, boundary.name) == [("running", attempts)]
        let_lapse(store, boundary.name)


@pytest.mark.fault(3)
def test_a_crash_loop_of_external_work_stops_at_the_first_doubt(store: str, make: Making) -> None:
    """3: the effect may have happened, so it is never run again by itself."""
    boundary = make(store, effects="external")
    with Child("restarting", store, boundary.name, "external") as worker:
        assert worker.ends() == -signal.SIGKILL
    let_lapse(store, boundary.name)
    with pytest.raises(OutcomeUnknown), boundary.claim("key"):
        pytest.fail("it was run again")
    assert records_of(store, boundary.name) == [("unknown", 1)]
    assert boundary.resolve("key", "completed", result="seen at the bank")
    with boundary.claim("key") as claim:
        assert (claim.replayed, claim.result) == (True, "seen at the bank")


@pytest.mark.fault(31)
def test_many_processes_open_a_new_file_at_once(tmp_path: Path) -> None:
    """31: SQLite refuses at once, whatever its timeout, while another connection switches to WAL or closes last."""
    files, processes = effort((4, 4), (10, 6))
    with ExitStack() as stack:
        children = [stack.enter_context(Child("opening", str(tmp_path), str(files))) for _ in range(processes)]
        for _ in range(files):
            assert {child.hears() for child in children} == {"ready"}
            for child in children:
                child.go_on()
        assert {child.hears() for child in children} == {"opened all"}


@pytest.mark.fault(4)
def test_a_crash_in_a_transaction_leaves_nothing(store: str, make: Making) -> None:
    """4."""
    boundary = make(store, effects="transactional")
    with Child("restarting", store, boundary.name, "transactional") as worker:
        assert worker.ends() == -signal.SIGKILL
    assert records_of(store, boundary.name) == []


@pytest.mark.fault(87)
@pytest.mark.parametrize("effects", ["keyed", "transactional"])
def test_a_fork_gets_connections_and_a_heartbeat_of_its_own(store: str, effects: str, make: Making) -> None:
    """87: the parent's connections still work afterwards."""
    with Child("forking", store, make(store).name, effects) as family:
        assert family.hears() == "[0, 0, 0]"
        assert family.hears() == "[True, True, True, True]"
        assert family.ends() == 0


@pytest.mark.fault(87)
@pytest.mark.parametrize("topology", ["", "_CLUSTER", "_SENTINEL"])
def test_a_fork_gets_a_redis_connection_and_a_heartbeat_of_its_own(topology: str, make: Making) -> None:
    """87."""
    require(f"redis{topology.replace('_', '-').lower()}")
    store = redis_url(topology)
    with Child("forking", store, make(store).name, "keyed") as family:
        assert family.hears() == "[0, 0, 0]"
        assert family.hears() == "[True, True, True, True]"
        assert family.ends() == 0


@pytest.mark.fault(88)
@pytest.mark.parametrize("effects", ["keyed", "transactional"])
@pytest.mark.parametrize("driver", ["psycopg", "pymysql"])
def test_threads_share_no_connection(driver: str, effects: str, make: Making, request: pytest.FixtureRequest) -> None:
    """88: many keys from many threads, more than there are connections, each in its own transaction."""
    url = server_of(driver, request)
    with business_table(plain(url)) as table:
        _charge_from_many_threads(url, make(url, effects=effects), effects, table)


def _charge_from_many_threads(url: str, boundary: Boundary, effects: str, table: str) -> None:
    start, seen = threading.Barrier(24), set[tuple[int, int]]()

    @boundary.once(key="key")
    def charge(key: str) -> str:
        if effects == "transactional":
            tx = current().tx
            sql = f"INSERT INTO {table} VALUES ('{key}', 'receipt')"
            if url.startswith("mysql"):
                tx.cursor().execute(sql)
            else:
                tx.execute(sql)
            seen.add((threading.get_ident(), id(tx)))
        return key

    def caller(number: int) -> list[str]:
        start.wait(DEADLINE)
        return [charge(f"{number}-{i}") for i in range(8)]

    with ThreadPoolExecutor(24) as pool:
        results = [result for got in pool.map(caller, range(24)) for result in got]
    assert sorted(results) == sorted(f"{number}-{i}" for number in range(24) for i in range(8))
    if effects == "transactional":
        assert sorted(rows_of(plain(url), table)) == sorted((key, "receipt") for key in results)
        assert len({connection for _, connection in seen}) > 1
    assert len(records_of(plain(url), boundary.name)) == 24 * 8


@pytest.mark.parametrize(
    "name",
    ["sqlite", "postgresql+psycopg", "postgresql+asyncpg", "mysql+asyncmy", "redis", "redis-cluster", "redis-sentinel"],
)
def test_a_loop_that_ended_without_closing_leaves_nothing_open_behind_close(
    name: str, request: pytest.FixtureRequest, make: Making
) -> None:
    kind, _, driver = name.partition("+")
    if kind.startswith("redis"):
        require(kind)
        url = redis_url(kind.removeprefix("redis").replace("-", "_").upper())
    else:
        fixtures = {"sqlite": "sqlite_url", "postgresql": "migrated", "mysql": "mysql_migrated"}
        url = request.getfixturevalue(fixtures[kind])

    def used() -> Boundary:
        boundary = make(driven(url, driver) if driver else url)

        async def use() -> None:
            async with boundary.claim("key"):
                pass

        asyncio.run(use())
        return boundary

    gc.collect()  # garbage of other tests
    with warnings.catch_warnings(record=True) as left:
        warnings.simplefilter("always", ResourceWarning)
        used().close()
        gc.collect()
    assert [str(one.message) for one in left] == []
