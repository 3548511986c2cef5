"""Fuzzers against a guarded API behind uvicorn: no 5xx, and no effect twice.

``RETRYSAFE_FUZZ_SECONDS`` makes every test take so long; ``make fuzz`` sets it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings

from retrysafe.backends.registry import connect
from tests.http.apps import fuzzed, ledger
from tests.http.fleet import Fleet
from tests.http.fuzzing import Fuzzer

SECONDS = float(os.environ.get("RETRYSAFE_FUZZ_SECONDS", "0"))
LEAST = 60
"""Connections, and examples of each operation, that are tried however short the time is."""
AT_ONCE = 8


@dataclass
class Target:
    """A served API, and the file with its ledger."""

    address: tuple[str, int]
    ledger: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.address[1]}"

    def lines(self) -> list[int]:
        """Count the lines of each key in the ledger."""
        with closing(sqlite3.connect(self.ledger)) as file:
            return [count for (count,) in file.execute("SELECT count(*) FROM ledger GROUP BY order_id")]


@pytest_asyncio.fixture(params=["transactional", "keyed"])
async def target(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Target]:
    """One worker: memory has no second one."""
    path = tmp_path / "fuzzed.db"
    store = f"sqlite:///{path}" if request.param == "transactional" else "memory://"
    connect(f"sqlite:///{path}").migrate()
    with closing(sqlite3.connect(path)) as file:
        file.execute(ledger.TABLE)
    async with Fleet(1, fuzzed.guarded, store, str(path)) as fleet:
        yield Target(fleet.address, path)


@pytest.mark.one_of("requests of a fuzzer", of=3)
@pytest.mark.slow
async def test_any_bytes_on_the_wire_are_answered_below_500_and_have_their_effect_once(target: Target) -> None:
    number = int(os.environ.get("RETRYSAFE_FUZZ_SEED", secrets.randbits(32)))
    print(f"RETRYSAFE_FUZZ_SEED={number}")
    fuzzer = Fuzzer(random.Random(number))
    ends = time.monotonic() + SECONDS
    while fuzzer.connections < LEAST * AT_ONCE or time.monotonic() < ends:
        await asyncio.gather(*(fuzzer.attack(target.address) for _ in range(AT_ONCE)))
    print(fuzzer.connections, fuzzer.statuses, sum(target.lines()))
    assert set(target.lines()) == {1}
    assert {201, 200, 400, 413, 422} <= fuzzer.statuses.keys()


@pytest.mark.one_of("requests of a fuzzer", of=3)
@pytest.mark.slow
async def test_described_requests_are_answered_below_500_and_have_their_effect_once(target: Target) -> None:
    described = fuzzed.application("").openapi()
    await asyncio.to_thread(_by_description, target, described)
    assert set(target.lines()) == {1}


@pytest.mark.one_of("requests of a fuzzer", of=3)
@pytest.mark.slow
async def test_the_demos_api_charges_once_whatever_its_description_allows(tmp_path: Path) -> None:
    books = tmp_path / "ledger.jsonl"
    store = f"sqlite:///{tmp_path / 'keys.db'}"
    with _bank(books) as port:
        async with Fleet(4, fuzzed.demo, store, port) as fleet:
            paid = await asyncio.to_thread(_pay, Target(fleet.address, books))
    assert len(books.read_text(encoding="utf-8").splitlines()) == len(paid) > 0


@contextmanager
def _bank(books: Path) -> Iterator[int]:
    """The demo's bank, without keys."""
    command = [sys.executable, "-m", "retrysafe_demo.bank", "--ledger", str(books), "--without-keys"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


def _pay(target: Target) -> set[str]:
    """The keys under which something was charged."""
    described = json.loads(files("retrysafe_demo").joinpath("openapi.json").read_bytes())
    schema = schemathesis.openapi.from_dict(described)
    return _try(target, schema["/payments"]["POST"], SECONDS)


def _by_description(target: Target, described: dict[str, Any]) -> None:
    """Every request of schemathesis is sent twice: the second time there must be no further line."""
    schema = schemathesis.openapi.from_dict(described)
    operations = [operation.ok() for operation in schema.get_all_operations()]
    with httpx.Client(base_url=target.url) as client:
        assert client.post("/orders", json={"amount": 1}, headers={"Idempotency-Key": '"first"'}).status_code == 201
        for operation in operations:
            _try(target, operation, SECONDS / len(operations))


def _try(target: Target, operation: Any, seconds: float) -> set[str]:
    """Try one operation; return the keys that were answered with success."""
    ends = time.monotonic() + seconds
    done: set[str] = set()

    @seed(1)
    @settings(
        max_examples=LEAST if not seconds else 1_000_000,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(case=operation.as_strategy())
    def each(case: Any) -> None:
        if seconds and time.monotonic() > ends:
            return
        first, again = (case.call(base_url=target.url, timeout=30) for _ in range(2))
        assert first.status_code < 500, first.content
        assert again.status_code < 500, again.content
        if first.status_code in (200, 201):
            done.add(case.headers["Idempotency-Key"].strip('"'))
            assert again.headers.get("idempotent-replayed") == ["true"], (case, again.headers)
            assert (again.status_code, again.content) == (first.status_code, first.content)

    each()
    return done
