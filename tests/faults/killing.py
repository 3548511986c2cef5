"""A supervisor that kills its children: `python -m tests.faults.killing STORE EFFECTS COLOUR TABLE BANK SEED`.

It forks workers that charge the same keys, two at a time, sends SIGKILL at seeded moments, and starts
new ones until a worker has seen every key answered. It prints how many it killed. Single-threaded,
and without a connection of its own, so that forking is clean and cheap.
"""

from __future__ import annotations

import asyncio
import importlib
import mmap
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from retrysafe import Boundary, InProgress, RetryTransaction, StoreUnavailable, current
from retrysafe.backends.registry import stores
from tests.django.aliases import add_alias, set_up
from tests.faults.helpers import Bank, unique

KEYS = 30
KILLS = 12
LEASE = 0.4
_NOT_NOW = (InProgress, StoreUnavailable, RetryTransaction)


class Job:
    """The work of one worker."""

    def __init__(self, argv: list[str], chance: random.Random, died: mmap.mmap, *, suicidal: bool) -> None:
        self.store, self.effects, self.colour, self.table, bank, _ = argv
        if self.colour == "django":
            self.store = add_alias("postgresql", CONN_MAX_AGE=None)
        self.bank = Bank(Path(bank))
        self.chance = chance
        self.died = died
        self.suicidal = suicidal
        self.boundary = Boundary(self.table, store=self.store, effects=self.effects, lease=LEASE, observers=())  # type: ignore[arg-type]

    def maybe_die(self) -> None:
        """The moments that matter most, hit on purpose: between the effect and its record.

        The first attempt of all dies in any case: on a slow machine each of the supervisor's kills may come before its
        worker has claimed anything.
        """
        if not self.died[0] or (self.suicidal and self.chance.random() < 0.2):
            self.died[0] = 1
            os.kill(os.getpid(), signal.SIGKILL)

    def insert(self, key: str) -> tuple[str, str]:
        receipt = unique("receipt")
        return f"INSERT INTO {self.table} VALUES ('{key}', '{receipt}')", receipt

    def run(self) -> None:
        if self.colour == "async":
            asyncio.run(self._async())
        else:
            self._sync()

    def _sync(self) -> None:
        @self.boundary.once(key="key", operation="charge")
        def charge(key: str) -> str:
            self.maybe_die()
            if self.effects == "keyed":
                receipt = self.bank.charge(current().key_for("bank"))
            else:
                sql, receipt = self.insert(key)
                perform(current().tx, sql)
            self.maybe_die()
            return receipt

        self._shuffle()
        while self.left:
            key = self.left.pop(0)
            try:
                charge(key)
            except _NOT_NOW:
                self.left.append(key)

    async def _async(self) -> None:
        @self.boundary.once(key="key", operation="charge")
        async def charge(key: str) -> str:
            self.maybe_die()
            if self.effects == "keyed":
                receipt = await asyncio.to_thread(self.bank.charge, current().key_for("bank"))
            else:
                sql, receipt = self.insert(key)
                pending: Any = perform(current().tx, sql)
                if hasattr(pending, "__await__"):
                    await pending
            self.maybe_die()
            return receipt

        async def one(key: str) -> None:
            try:
                await charge(key)
            except _NOT_NOW:
                self.left.append(key)

        self._shuffle()
        while self.left:
            batch, self.left = self.left[:3], self.left[3:]
            await asyncio.gather(*map(one, batch))
        await self.boundary.aclose()

    left: list[str]

    def _shuffle(self) -> None:
        self.left = [f"order-{i}" for i in range(KEYS)]
        self.chance.shuffle(self.left)


def perform(tx: Any, sql: str) -> Any:
    """One statement, in the words of the connection's library."""
    if hasattr(tx, "in_atomic_block"):
        tx = tx.cursor()
    return tx.execute(sql) if hasattr(tx, "execute") else tx.query(sql)


def child(work: Callable[[], None]) -> int:
    """Fork a worker; it leaves with 0 when every key is answered."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - a worker's last words, whatever they are
        traceback.print_exc()
    finally:
        os._exit(code)


def supervise(argv: list[str]) -> None:
    """Kill and restart until the work is done."""
    chance = random.Random(argv[-1])
    libraries = [
        "sql.drivers.sqlite_async",
        "sql.drivers.psycopg",
        "sql.drivers.asyncpg",
        "sql.drivers.pymysql",
        "sql.drivers.asyncmy",
        "redis.listener",
        "dynamodb.client",
    ]
    if argv[2] == "django":
        set_up()
        libraries.append("sql.drivers.django")
        for module in ("backends.postgresql.base", "models.sql.compiler"):
            importlib.import_module(f"django.db.{module}")
    stores()
    for library in libraries:  # so that a worker begins to work at once
        importlib.import_module(f"retrysafe.backends.{library}")
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    died = mmap.mmap(-1, 1)  # shared with the workers: whether one has died within an attempt
    running: set[int] = set()
    kills = 0
    # A worker must come to work before it is killed: botocore takes a while to make a client, and a client of a
    # cluster first asks for its nodes.
    longest = {"dynamodb": 4.0, "redis+cluster": 1.0, "redis+sentinel": 1.0}.get(argv[0].partition("://")[0], 0.2)
    pauses = (1.0 if longest > 1 else 0.02, longest)
    while True:
        while len(running) < 2:
            seed, suicidal = random.Random(chance.random()), kills < KILLS
            running.add(child(lambda: Job(argv, seed, died, suicidal=suicidal).run()))  # noqa: B023
        signal.sigtimedwait([signal.SIGCHLD], chance.uniform(*pauses) if kills < KILLS else 5)
        if kills < KILLS:
            os.kill(chance.choice(sorted(running)), signal.SIGKILL)
        killed, finished = _reap(running)
        kills += killed
        if finished and kills >= KILLS:
            break
    while running:
        signal.sigtimedwait([signal.SIGCHLD], 5)
        kills += _reap(running)[0]
    sys.stdout.write(f"{kills}\n")


def _reap(running: set[int]) -> tuple[int, int]:
    """Count the children that were killed, and those that were done."""
    killed = finished = 0
    for pid in list(running):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            running.discard(pid)
            killed += os.WIFSIGNALED(status)
            finished += not os.WIFSIGNALED(status)
            if os.WIFEXITED(status) and os.WEXITSTATUS(status):
                raise SystemExit(1)
    return killed, finished


if __name__ == "__main__":
    supervise(sys.argv[1:])
