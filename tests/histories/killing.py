"""A supervisor of workers that are killed: `python -m tests.histories.killing KIND STORE DIRECTORY SEED KILLS KEY…`.

It forks workers, two at a time, that do at random what a store lets them; each writes its history to a file of its own.
SIGKILL hits them at random moments. Then two workers come to their end, and it prints how many were killed.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path
from random import Random

from retrysafe.backends.registry import connect
from tests.faults.killing import _reap, child
from tests.histories.workers import Stage, work
from tests.laboratory.histories import HistoryFile, Recorder

LIBRARIES = {
    "sqlite": "retrysafe.backends.sql.drivers.sqlite",
    "postgresql": "retrysafe.backends.sql.drivers.psycopg",
    "mysql": "retrysafe.backends.sql.drivers.pymysql",
    "redis": "retrysafe.backends.redis.client",
    "dynamodb": "retrysafe.backends.dynamodb.client",
}


def live(store: str, directory: str, keys: list[bytes], chance: Random, acts: int) -> None:
    """One worker, from its first connection to its end."""
    backend = connect(store)
    client = backend.client()
    backend.check(client)
    stage = Stage(keys, backend.store)
    history = HistoryFile(Path(directory) / f"{os.getpid()}.history")
    work(stage, Recorder(history, f"p{os.getpid()}"), client, client, chance, acts)


def supervise(kind: str, store: str, directory: str, seed: str, kills: int, keys: list[bytes]) -> int:
    """Kill so many; return how many were."""
    chance = Random(seed)
    importlib.import_module(LIBRARIES[kind])
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    running: set[int] = set()
    killed = 0
    soon, late = (0.3, 1.5) if kind == "dynamodb" else (0.02, 0.25)
    while killed < kills:
        while len(running) < 2:
            own = Random(chance.random())
            running.add(child(lambda: live(store, directory, keys, own, 100_000)))  # noqa: B023
        signal.sigtimedwait([signal.SIGCHLD], chance.uniform(soon, late))
        victim = chance.choice(sorted(running))
        history = Path(directory) / f"{victim}.history"
        while not (history.exists() and history.stat().st_size):  # not before it asks for something
            signal.sigtimedwait([signal.SIGCHLD], 0.01)
        os.kill(victim, signal.SIGKILL)
        signal.sigtimedwait([signal.SIGCHLD], 5)
        killed += _reap(running)[0]
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    while running:
        signal.sigtimedwait([signal.SIGCHLD], 5)
        killed += _reap(running)[0]
    live(store, directory, keys, Random(chance.random()), 30)
    return killed


if __name__ == "__main__":
    _, kind, store, directory, seed, kills, *keys = sys.argv
    sys.stdout.write(f"{supervise(kind, store, directory, seed, int(kills), [bytes.fromhex(key) for key in keys])}\n")
