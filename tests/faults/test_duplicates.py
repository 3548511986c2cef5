"""Many at once, two hundred in `make prove`: one runs, the others are told so or get its result."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Boundary, InProgress, reject, wait
from tests.faults.conftest import Making, server_of
from tests.faults.helpers import DEADLINE, Told, auntil
from tests.proving.effort import effort

CALLERS = effort(60, 200)
EFFECTS = ("keyed", "transactional")
LEASED = tuple((kind, "keyed") for kind in ("redis", "redis-cluster", "redis-sentinel", "dynamodb"))
THREADS = [*product(("sqlite", "psycopg", "pymysql"), EFFECTS), *LEASED]
TASKS = [*product(("sqlite", "psycopg", "asyncpg", "asyncmy"), EFFECTS), *LEASED]


def _store(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    if kind == "sqlite":
        return f"sqlite:///{tmp_path}/records.db"
    return server_of(kind, request)


def _meets(kind: str, effects: str) -> bool:
    """Tell whether duplicates meet the running attempt: SQLite's writers queue up behind its transaction instead."""
    return not (kind == "sqlite" and effects == "transactional")


class Race:
    """The answers to the callers of one race."""

    def __init__(self) -> None:
        self.runs = 0
        self.got: Counter[str] = Counter()
        self.lock = threading.Lock()

    def enter(self, replayed: bool, result: Any) -> None:
        with self.lock:
            self.got[f"replayed {result}" if replayed else "ran"] += 1

    def refused(self) -> None:
        with self.lock:
            self.got["in progress"] += 1


def _threads(boundary: Boundary, race: Race, meeting: Any) -> None:
    start = threading.Barrier(CALLERS)

    def caller(_: int) -> None:
        start.wait(DEADLINE)
        try:
            with boundary.claim("order", payload={"amount": 7}) as claim:
                if not claim.replayed:
                    race.runs += 1
                    meeting()
                    claim.result = {"receipt": race.runs}
            race.enter(claim.replayed, claim.result)
        except InProgress:
            race.refused()

    with ThreadPoolExecutor(CALLERS) as pool:
        list(pool.map(caller, range(CALLERS)))


async def _tasks(boundary: Boundary, race: Race, meeting: Any) -> None:
    async def caller() -> None:
        try:
            async with boundary.claim("order", payload={"amount": 7}) as claim:
                if not claim.replayed:
                    race.runs += 1
                    await meeting()
                    claim.result = {"receipt": race.runs}
            race.enter(claim.replayed, claim.result)
        except InProgress:
            race.refused()

    await asyncio.gather(*(caller() for _ in range(CALLERS)))


def _judge_rejected(race: Race, meets: bool) -> None:
    assert race.runs == 1
    assert race.got == (
        {"ran": 1, "in progress": CALLERS - 1} if meets else {"ran": 1, "replayed {'receipt': 1}": CALLERS - 1}
    )


def _judge_waited(race: Race) -> None:
    assert race.runs == 1
    assert race.got == {"ran": 1, "replayed {'receipt': 1}": CALLERS - 1}


@pytest.mark.slow
@pytest.mark.fault(16, 77)
@pytest.mark.parametrize(("kind", "effects"), THREADS)
def test_threads_are_told_that_the_first_is_running(
    kind: str, effects: str, make: Making, told: Told, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    boundary = make(_store(kind, tmp_path, request), effects=effects, concurrency=reject())
    meets, race = _meets(kind, effects), Race()
    _threads(boundary, race, (lambda: told.wait_for("conflict", CALLERS - 1)) if meets else (lambda: None))
    _judge_rejected(race, meets)
    with boundary.claim("order", payload={"amount": 7}) as claim:
        assert (claim.replayed, claim.result) == (True, {"receipt": 1})


@pytest.mark.slow
@pytest.mark.fault(16, 77)
@pytest.mark.parametrize(("kind", "effects"), THREADS)
def test_threads_that_wait_get_the_first_result(
    kind: str, effects: str, make: Making, told: Told, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    boundary = make(_store(kind, tmp_path, request), effects=effects, concurrency=wait(DEADLINE))
    race = Race()
    _threads(
        boundary, race, (lambda: told.wait_for("waiting", CALLERS - 1)) if _meets(kind, effects) else (lambda: None)
    )
    _judge_waited(race)


@pytest.mark.slow
@pytest.mark.fault(16)
@pytest.mark.parametrize(("kind", "effects"), TASKS)
async def test_tasks_are_told_that_the_first_is_running(
    kind: str, effects: str, make: Making, told: Told, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    boundary = make(_store(kind, tmp_path, request), effects=effects, concurrency=reject())
    meets, race = _meets(kind, effects), Race()

    async def meeting() -> None:
        await auntil(lambda: not meets or told.attempts("conflict") == CALLERS - 1)

    await _tasks(boundary, race, meeting)
    _judge_rejected(race, meets)
    async with boundary.claim("order", payload={"amount": 7}) as claim:
        assert (claim.replayed, claim.result) == (True, {"receipt": 1})
    await boundary.aclose()


@pytest.mark.slow
@pytest.mark.fault(16)
@pytest.mark.parametrize(("kind", "effects"), TASKS)
async def test_tasks_that_wait_get_the_first_result(
    kind: str, effects: str, make: Making, told: Told, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    boundary = make(_store(kind, tmp_path, request), effects=effects, concurrency=wait(DEADLINE))
    meets, race = _meets(kind, effects), Race()

    async def meeting() -> None:
        await auntil(lambda: not meets or told.attempts("waiting") == CALLERS - 1)

    await _tasks(boundary, race, meeting)
    _judge_waited(race)
    await boundary.aclose()
