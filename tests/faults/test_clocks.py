"""Wrong clocks and stopped workers: the store's time and the fencing token decide. FAULTS 60-64."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import Any

import pytest

from retrysafe import Boundary, InProgress, wait
from tests.faults.conftest import Making
from tests.faults.helpers import DEADLINE, Child, ask_sql, driven, records_of, unique

TEN_YEARS = 10 * 365 * 86400.0
STORES = ["sqlite", "postgresql", "mysql"]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> str:
    """A store whose clock is its own."""
    fixtures = {"sqlite": "sqlite_url", "postgresql": "migrated", "mysql": "mysql_migrated"}
    url: str = request.getfixturevalue(fixtures[request.param])
    return url


@pytest.mark.slow
@pytest.mark.fault(60, 62)
@pytest.mark.parametrize("skew", [TEN_YEARS, -TEN_YEARS])
def test_a_workers_wall_clock_does_not_matter(skew: float, store: str, make: Making) -> None:
    """60-63: neither a skew nor a jump takes over a live lease, forgets a result, or loses its own lease."""
    boundary = make(store, lease="60s", window="1h")
    with boundary.claim("finished elsewhere") as claim:
        claim.result = "here"
    with boundary.claim("held elsewhere"), Child("skewed", store, boundary.name, str(skew)) as worker:
        assert worker.hears() == "replayed True"
        assert worker.hears() == "holding"
        with pytest.raises(InProgress) as caught, boundary.claim("mine"):
            pytest.fail("its lease is alive")
        assert caught.value.retry_after <= 60
        worker.go_on()
        assert worker.hears() == "replayed True"
        assert worker.ends() == 0
    with boundary.claim("mine") as claim:
        assert (claim.replayed, claim.result) == (True, "from the skewed worker")
    now = {
        "sqlite": "CAST(strftime('%s', 'now') AS INTEGER)",
        "postgresql": "extract(epoch FROM clock_timestamp())",
        "mysql": "UNIX_TIMESTAMP()",
    }[store.partition(":")[0]]
    late = f"abs(updated / 1000000 - {now}) > 300 OR abs(expires / 1000000 - {now}) > 4000"
    sql = f"SELECT state FROM retrysafe_records WHERE boundary = '{boundary.name}' AND ({late})"
    assert ask_sql(store, sql)[0] == [], "an instant was not the store's"


@pytest.mark.slow
@pytest.mark.fault(15, 17, 64)
@pytest.mark.parametrize(
    ("store", "colour"),
    [*product(STORES, ("sync", "async")), ("postgresql", "asyncpg")],
    indirect=["store"],
)
def test_a_worker_stopped_beyond_its_lease_is_fenced(colour: str, store: str, make: Making) -> None:
    """64, and 15 and 17 with it."""
    boundary = make(store, lease="60s", concurrency=wait(DEADLINE))
    with Child("stopped", driven(store, "asyncpg") if colour == "asyncpg" else store, boundary.name, colour) as worker:
        assert worker.hears() == "holding"
        worker.process.send_signal(signal.SIGSTOP)
        with boundary.claim("key") as claim:  # waits until the lease has lapsed
            assert not claim.replayed
            claim.result = "second"
        worker.process.send_signal(signal.SIGCONT)
        worker.go_on()
        assert worker.hears() == "ensure_held: LeaseLost"
        assert worker.hears() == "LeaseLost"
        assert worker.ends() == 0
    with boundary.claim("key") as claim:
        assert (claim.replayed, claim.result) == (True, "second")
    assert records_of(store, boundary.name) == [("completed", 2)]


@pytest.mark.slow
@pytest.mark.fault(15, 17, 64)
def test_a_worker_stopped_while_the_second_runs_cannot_finish_for_it(store: str, make: Making) -> None:
    """The late completion comes while the new owner is still at work."""
    boundary = make(store, lease="60s", concurrency=wait(DEADLINE))
    with Child("stopped", store, boundary.name, "sync") as worker:
        assert worker.hears() == "holding"
        worker.process.send_signal(signal.SIGSTOP)
        with boundary.claim("key") as claim:
            worker.process.send_signal(signal.SIGCONT)
            worker.go_on()
            assert worker.hears() == "ensure_held: LeaseLost"
            assert worker.hears() == "LeaseLost"
            claim.ensure_held()
            claim.result = "second"
    with boundary.claim("key") as claim:
        assert (claim.replayed, claim.result) == (True, "second")


@pytest.mark.slow
@pytest.mark.fault(61, 64)
@pytest.mark.parametrize("back", [0.0, TEN_YEARS])
def test_a_worker_knows_by_itself_that_its_lease_is_over(back: float, store: str, make: Making) -> None:
    """Its renewals hang, so that nobody tells it; a wall clock that went back extends no lease."""
    boundary = make(store, lease="60s", concurrency=wait(DEADLINE))
    with Child("stopped", store, boundary.name, "sync", str(back)) as worker:
        assert worker.hears() == "holding"
        worker.process.send_signal(signal.SIGSTOP)
        with boundary.claim("key") as claim:
            claim.result = "second"
        worker.process.send_signal(signal.SIGCONT)
        worker.go_on()
        assert worker.hears() == "ensure_held: LeaseLost"
        assert worker.hears() == "LeaseLost"


@pytest.mark.fault(63)
def test_a_time_zone_that_changes_moves_no_instant(store: str, make: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the end of summer time, and further: of two workers, one is in a zone thirteen hours ahead."""
    name = unique()
    with ExitStack() as stack:

        def within(zone: str, hours: str) -> Boundary:
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            return make(stack.enter_context(_in_zone(store, hours)), name=name, lease="60s", window="1h")

        stack.callback(time.tzset)
        stack.callback(monkeypatch.undo)
        here = within("UTC-0", "+00:00")
        with here.claim("held"), here.claim("done") as claim:
            claim.result = "here"
            ahead = within("XXX-13", "+13:00")
            with pytest.raises(InProgress) as caught, ahead.claim("held"):
                pytest.fail("its lease is alive")
            assert caught.value.retry_after <= 60
        with ahead.claim("done") as claim:
            assert (claim.replayed, claim.result) == (True, "here")
        with ahead.claim("there") as claim:
            claim.ensure_held()
            claim.result = "ahead"
        here = within("UTC-0", "+00:00")
        with here.claim("there") as claim:
            assert (claim.replayed, claim.result) == (True, "ahead")
        rows = ask_sql(store, f"SELECT updated FROM retrysafe_records WHERE boundary = '{name}'")[0]
        assert all(abs(updated / 1e6 - time.time()) < 300 for (updated,) in rows)


@contextmanager
def _in_zone(store: str, hours: str) -> Iterator[Any]:
    """The store for sessions in another time zone; SQLite has that of its process."""
    if store.startswith("sqlite"):
        yield store
        return
    import sqlalchemy

    driver, setting = {
        "postgresql": ("psycopg", {"options": f"-c timezone=UTC{hours.translate(SIGNS)}"}),
        "mysql": ("pymysql", {"init_command": f"SET time_zone = '{hours}'"}),
    }[store.partition(":")[0]]
    engine = sqlalchemy.create_engine(driven(store, driver), connect_args=setting)
    yield engine
    engine.dispose()


SIGNS = str.maketrans("+-", "-+")
"""POSIX counts zones the other way round."""
