"""A fast store that tests may flush, stop and bring back, and layered boundaries over it."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis

from retrysafe import Boundary, StoreUnavailable, layered
from retrysafe.backends.cache import ReadThroughCache
from retrysafe.backends.driver import run
from retrysafe.backends.redis.cache import RedisCache
from retrysafe.protocol import keys
from retrysafe.protocol.procedures import expire, read
from retrysafe.protocol.records import Record
from retrysafe.protocol.requests import Ask, Program, ask
from retrysafe.testing.time_travel import elapse_all
from tests.conftest import require
from tests.faults.helpers import Told, unique, until
from tests.ports import free_port

NAME = "the truth of this test"


class Entry(NamedTuple):
    """One key of the fast store as it was."""

    name: bytes
    dumped: bytes
    expires: int


class Fast:
    """A Redis server of the test's own, without persistence."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.directory = directory
        self.client = redis.Redis.from_url(self.url)
        self.process: subprocess.Popen[bytes] | None = None
        self.cut = False
        self.start()

    def start(self) -> None:
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.process = subprocess.Popen(command, cwd=self.directory, stdout=subprocess.DEVNULL)
        until(self.answers)

    def answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.ConnectionError:
            return False

    def kill(self) -> None:
        """A partition, and a flush."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)

    def cut_off(self) -> None:
        """A partition: it answers nobody, and keeps what it has."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        self.cut = True

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
        self.cut = False

    def flush(self) -> None:
        self.client.flushall()

    def entries(self) -> list[Entry]:
        """Everything that is there."""
        names = list(self.client.scan_iter())
        return [Entry(name, self.client.dump(name), self.client.pexpiretime(name)) for name in names]

    def restore(self, entries: list[Entry]) -> None:
        """As after a failover to a replica that is behind."""
        self.flush()
        for name, dumped, expires in entries:
            self.client.restore(name, expires, dumped, absttl=True)

    def close(self) -> None:
        self.client.close()
        assert self.process is not None
        self.process.kill()
        self.process.wait(60)


class Layers:
    """A boundary on a SQLite truth behind a fast store, with hands on both."""

    def __init__(self, fast: Fast, path: Path, **options: Any) -> None:
        self.fast = fast
        self.path = path / "truth.db"
        self.told = Told()
        self.runs: list[str] = []
        options = {"window": "1h", "memory": "2h", **options}
        self.boundary = Boundary(
            unique(),
            store=layered(
                fast.url,
                f"sqlite:///{self.path}",
                name=NAME,
                at_most=options.pop("at_most", "30m"),
            ),
            observers=[self.told],
            **options,
        )
        self.backend = self.boundary._settings.backend
        cache = self.backend.cache
        assert cache is not None
        self.cache: ReadThroughCache = cache
        self.now = 0.0
        self.cache._clock = lambda: self.now

    def do(self, key: str, payload: str = "p") -> Any:
        """A guarded operation whose result names its run."""
        with self.boundary.claim(key, payload=payload) as claim:
            if not claim.replayed:
                self.runs.append(key)
                claim.result = f"{key} run {len(self.runs)}"
        return claim.result

    async def ado(self, key: str, payload: str = "p") -> Any:
        async with self.boundary.claim(key, payload=payload) as claim:
            if not claim.replayed:
                self.runs.append(key)
                claim.result = f"{key} run {len(self.runs)}"
        return claim.result

    def hash_of(self, key: str) -> bytes:
        return keys.lookup(None, self.boundary.name, "", self.boundary.name, key)

    def truth(self, key: str) -> Record | None:
        record: Record | None = run(read(self.backend.store, self.hash_of(key)), self.backend.client())
        return record

    def expire(self, key: str) -> bool:
        """An operator ends the key's window; False when the fast store did not hear of it."""
        record = self.truth(key)
        assert record is not None
        assert run(expire(self.backend.store, record), self.backend.client())
        try:
            self.cache.drop(record)
        except StoreUnavailable:
            return False
        return True

    def plant(self, record: Record) -> None:
        """Put any record into the fast store."""
        request = RedisCache(NAME).keep(record._replace(version=record.version + 9), 2**52)
        run(_put(request), self.cache._clients.client())

    def lose(self, key: str) -> None:
        """The truth forgets a record, as no truth should: what is answered now can only come from the fast store."""
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute("DELETE FROM retrysafe_records WHERE key_hash = ?", (self.hash_of(key),))

    def age(self, seconds: float, entries: list[Entry] = []) -> list[Entry]:  # noqa: B006
        """Let time pass in both stores, and for what was kept aside of the fast one."""
        micros = round(seconds * 1e6)
        run(elapse_all(self.backend.store, micros), self.backend.client())
        cut = self.fast.cut
        if cut:
            self.fast.resume()
        for name, _, expires in self.fast.entries():
            self.fast.client.pexpireat(name, max(expires - micros // 1000, 1))
        if cut:
            self.fast.cut_off()
        return [entry._replace(expires=entry.expires - micros // 1000) for entry in entries]

    def reconnected(self) -> None:
        """The rest after a failed attempt is over."""
        self.now += 60

    def close(self) -> None:
        self.boundary.close()


def _put(request: Ask[None]) -> Program[None]:
    yield from ask(request)


@pytest.fixture
def fast(tmp_path: Path) -> Iterator[Fast]:
    """A fast store of the test's own."""
    if shutil.which("redis-server") is None:
        require("redis")
    made = Fast(tmp_path)
    yield made
    made.close()


@pytest.fixture
def layers(fast: Fast, tmp_path: Path) -> Iterator[Layers]:
    """A layered boundary with keyed effects."""
    made = Layers(fast, tmp_path)
    yield made
    made.close()
