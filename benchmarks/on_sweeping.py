"""Sweeping: how quick it is beside a DELETE written by hand, and what it does to claims at the same time.

Every turn sweeps the same backlog; filling it up before doesn't count.
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

from benchmarks.filling import POSTGRESQL, SQLITE, filling
from benchmarks.rows import FLOOR, OURS, Row, Side, Stopwatch, Turn
from benchmarks.stores import database
from retrysafe import Boundary
from retrysafe.admin.sweeper import Sweeper

BACKLOG = 40_000
CLIENTS = 8
CLAIMS = 1500
PARTITIONS = 4
_CONDITION = "(state = 'completed' OR state = 'failed' OR state = 'released') AND tombstone_until <= {now}"
_BY_HAND = (
    "DELETE FROM retrysafe_records WHERE key_hash IN (SELECT key_hash FROM retrysafe_records "
    f"WHERE {_CONDITION} ORDER BY tombstone_until LIMIT 1000{{lock}})"
)


def rows() -> Sequence[Row]:
    """Removing one record, and the 99th percentile of a claim's latency."""
    on_postgresql: dict[str, Any] = {"operations": BACKLOG, "needs": ("postgresql",)}
    by_hand = partial(_postgresql, rotating=False, by_hand=True)
    rotated_by_hand = partial(_postgresql, rotating=True, by_hand=True)
    deleting, rotating = (partial(_postgresql, rotating=rotating, by_hand=False) for rotating in (False, True))
    delete = "a DELETE by hand"
    return [
        Row(
            "sweep sqlite/delete",
            delete,
            {OURS: partial(_sqlite, False), FLOOR: partial(_sqlite, True)},
            operations=BACKLOG,
        ),
        Row("sweep psycopg/delete", delete, {OURS: deleting, FLOOR: by_hand}, **on_postgresql),
        Row("sweep psycopg/rotate", delete, {OURS: rotating, FLOOR: rotated_by_hand}, **on_postgresql),
        _beside("sweep psycopg/claims while deleting", rotating=False),
        _beside("sweep psycopg/claims while rotating", rotating=True),
    ]


def _beside(name: str, *, rotating: bool) -> Row:
    sides = {
        OURS: partial(_claims, rotating=rotating, sweeping=True),
        FLOOR: partial(_claims, rotating=rotating, sweeping=False),
    }
    return Row(name, "the 99th percentile of claims alone", sides, needs=("postgresql",), operations=CLAIMS)


# ---------------------------------------------------------------- records removed


def _measured(fill: Callable[[int], object], work: Callable[[], object]) -> Side:
    def turn(keys: Sequence[str]) -> Turn:
        fill(len(keys))
        watch = Stopwatch()
        work()
        return watch.turn(len(keys))

    return Side(turn)


@contextmanager
def _sqlite(by_hand: bool) -> Iterator[Side]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.db"
        sweeper = Sweeper(f"sqlite:///{path}", pause="1ms", observers=())
        now = "CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)"
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            fill = filling(lambda sql: connection.execute(sql).rowcount, SQLITE, settled=True)
            delete = _until_none(lambda: connection.execute(_BY_HAND.format(now=now, lock="")).rowcount)
            yield _measured(fill, delete if by_hand else sweeper.run_once)


@contextmanager
def _postgresql(*, rotating: bool, by_hand: bool) -> Iterator[Side]:
    with (
        database(PARTITIONS if rotating else None) as url,
        psycopg.connect(url, autocommit=True) as connection,
    ):
        sweeper = Sweeper(url, pause="1ms", rotate=rotating, observers=())

        def perform(sql: str) -> int:
            return connection.execute(sql.encode()).rowcount

        fill = filling(perform, POSTGRESQL, settled=True)
        sql = _BY_HAND.format(now="extract(epoch FROM clock_timestamp()) * 1000000", lock=" FOR UPDATE SKIP LOCKED")
        yield _measured(fill, _until_none(lambda: perform(sql)) if by_hand else sweeper.run_once)


def _until_none(delete: Callable[[], int]) -> Callable[[], object]:
    def work() -> None:
        while delete() == 1000:
            time.sleep(0.001)

    return work


# ---------------------------------------------------------------- claims meanwhile


@contextmanager
def _claims(*, rotating: bool, sweeping: bool) -> Iterator[Side]:
    with (
        database(PARTITIONS if rotating else None) as url,
        psycopg.connect(url, autocommit=True) as connection,
        _sweeping_process(url, rotating=rotating) as start,
        asyncio.Runner() as runner,
    ):
        boundary = Boundary("bench", store=url, observers=())
        fill = filling(lambda sql: connection.execute(sql.encode()).rowcount, POSTGRESQL, settled=True)

        def alone(keys: Sequence[str]) -> Turn:
            return Turn(runner.run(_percentile(boundary, keys)), None)

        def beside(keys: Sequence[str]) -> Turn:
            fill(BACKLOG)
            end = start()
            found = alone(keys)
            end()
            return found

        yield Side(beside if sweeping else alone)
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
