"""Sweeping: how quick it is beside a DELETE written by hand, and what it does to claims at the same time.

Every turn sweeps the same backlog. A meter tells the sweep and the filling before it apart: only what a side adds to
it counts.
"""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.postgresql import database
from benchmarks.rows import Row, Side, Sides, Unit
from retrysafe import Boundary
from retrysafe.admin.sweeper import Sweeper

BACKLOG = 40_000
CLIENTS = 8
PARTITIONS = 4
_CONDITION = "state IN ('completed', 'failed', 'released') AND forget <= {now}"
_BY_HAND = (
    "DELETE FROM retrysafe_records WHERE key_hash IN (SELECT key_hash FROM retrysafe_records "
    f"WHERE {_CONDITION} ORDER BY forget LIMIT 1000{{lock}})"
)
_FILL = (
    "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count}) "
    "INSERT INTO retrysafe_records (key_hash, boundary, scope, operation, fingerprint, state, attempt, token, "
    "attempts, effects, lease_until, created, updated, expires, forget, version, result, media_type, codec_version) "
    "SELECT {key}, 'bench', '', 'charge', {key}, 'completed', 'attempt', n, 1, 'keyed', n, n, n, n, n, n, {result}, "
    "'application/json', 1 FROM numbers"
)
_POSTGRESQL = {"key": "sha256(gen_random_uuid()::text::bytea)", "result": "'{{\"charged\": true}}'::bytea"}
_SQLITE = {"key": "randomblob(32)", "result": "CAST('{{\"charged\": true}}' AS BLOB)"}


class Meter:
    """Seconds that sides have added."""

    def __init__(self) -> None:
        self.total = 0.0

    def __call__(self) -> float:
        """The clock of a unit."""
        return self.total


def rows() -> Sequence[Row]:
    """Removing one record, and the 99th percentile of a claim's latency."""
    return [
        _quick("sweep sqlite/delete", _sqlite),
        _quick("sweep psycopg/delete", partial(_postgresql, rotating=False)),
        _quick("sweep psycopg/rotate", partial(_postgresql, rotating=True)),
        _beside("sweep psycopg/claims while deleting", rotating=False),
        _beside("sweep psycopg/claims while rotating", rotating=True),
    ]


def _quick(name: str, sides: Callable[[Meter], Any]) -> Row:
    meter = Meter()
    return Row(name, lambda: sides(meter), Unit("of floor", meter, lambda ours, floor: floor / ours, True))


def _beside(name: str, *, rotating: bool) -> Row:
    meter = Meter()
    unit = Unit("× p99 alone", meter, lambda ours, floor: ours / floor, False)
    return Row(name, lambda: _claims(meter, rotating=rotating), unit, aim=1.5)


# ---------------------------------------------------------------- records removed


def _measured(meter: Meter, fill: Callable[[int], object], work: Callable[[], object]) -> Side:
    def side(keys: Sequence[str]) -> None:
        fill(BACKLOG)
        began = time.perf_counter()
        work()
        meter.total += (time.perf_counter() - began) / BACKLOG * len(keys)

    return side


@contextmanager
def _sqlite(meter: Meter) -> Iterator[Sides]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.db"
        sweeper = Sweeper(f"sqlite:///{path}", pause="1ms", observers=())
        now = "CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)"
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            fill = _filling(lambda sql: connection.execute(sql).rowcount, _SQLITE)
            by_hand = _until_none(lambda: connection.execute(_BY_HAND.format(now=now, lock="")).rowcount)
            yield Sides(_measured(meter, fill, sweeper.run_once), _measured(meter, fill, by_hand))


@contextmanager
def _postgresql(meter: Meter, *, rotating: bool) -> Iterator[Sides]:
    with (
        database(PARTITIONS if rotating else None) as url,
        psycopg.connect(url, autocommit=True) as connection,
    ):
        sweeper = Sweeper(url, pause="1ms", rotate=rotating, observers=())

        def perform(sql: str) -> int:
            return connection.execute(sql.encode()).rowcount

        fill = _filling(perform, _POSTGRESQL)
        sql = _BY_HAND.format(now="extract(epoch FROM clock_timestamp()) * 1000000", lock=" FOR UPDATE SKIP LOCKED")
        yield Sides(_measured(meter, fill, sweeper.run_once), _measured(meter, fill, _until_none(lambda: perform(sql))))


def _filling(perform: Callable[[str], int], dialect: dict[str, str]) -> Callable[[int], object]:
    return lambda count: perform(_FILL.format(count=count, **dialect).replace("{{", "{").replace("}}", "}"))


def _until_none(delete: Callable[[], int]) -> Callable[[], object]:
    def work() -> None:
        while delete() == 1000:
            time.sleep(0.001)

    return work


# ---------------------------------------------------------------- claims meanwhile


@contextmanager
def _claims(meter: Meter, *, rotating: bool) -> Iterator[Sides]:
    with (
        database(PARTITIONS if rotating else None) as url,
        psycopg.connect(url, autocommit=True) as connection,
        _sweeping_process(url, rotating=rotating) as start,
        asyncio.Runner() as runner,
    ):
        boundary = Boundary("bench", store=url, observers=())
        fill = _filling(lambda sql: connection.execute(sql.encode()).rowcount, _POSTGRESQL)

        def alone(keys: Sequence[str]) -> None:
            meter.total += runner.run(_percentile(boundary, keys)) * len(keys)

        def beside(keys: Sequence[str]) -> None:
            fill(BACKLOG)
            end = start()
            alone(keys)
            end()

        yield Sides(beside, alone)
        runner.run(boundary.aclose())


async def _percentile(boundary: Boundary, keys: Sequence[str]) -> float:
    """The 99th percentile of the seconds that claim and completion take."""
    took: list[float] = []

    async def client(mine: Sequence[str]) -> None:
        for key in mine:
            began = time.perf_counter()
            async with boundary.claim(key) as claim:
                claim.result = 1
            took.append(time.perf_counter() - began)

    await asyncio.gather(*(client(keys[number::CLIENTS]) for number in range(CLIENTS)))
    return sorted(took)[int(len(took) * 0.99)]


@contextmanager
def _sweeping_process(url: str, *, rotating: bool) -> Iterator[Callable[[], Callable[[], object]]]:
    """A sweeper in a process of its own: call to start a run, and again to wait for its end."""
    command = [sys.executable, "-m", "benchmarks.on_sweeping", url, str(rotating)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def start() -> Callable[[], object]:
            stdin.write("sweep\n")
            stdin.flush()
            return stdout.readline

        yield start
        stdin.close()


def _sweep_on_command(url: str, rotating: str) -> None:
    sweeper = Sweeper(url, rotate=rotating == "True", observers=())
    for _ in sys.stdin:
        done = sweeper.run_once()
        sys.stdout.write(f"{done.removed / done.seconds:.0f}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _sweep_on_command(*sys.argv[1:])
