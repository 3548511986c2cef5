"""Real workers on a real broker, which are killed, stopped and woken; and the ledger of what they did."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import redis

from tests.processes import ROOT, environment

PATIENCE = 60.0
NUDGE = 1.0
"""Seconds after which a further task is sent: on Redis, Dramatiq and Taskiq look for lost messages when others come."""
BIN = Path(sys.executable).parent
APP = "tests.tasks.app"
COMMANDS = {
    "celery": (BIN / "celery", "-A", APP, "worker", "-c", "2", "-l", "warning", "--without-gossip", "--without-mingle"),
    "dramatiq": (BIN / "dramatiq", APP, "-p", "1", "-t", "2"),
    "taskiq": (BIN / "taskiq", "worker", f"{APP}:broker", "--workers", "1", "--ack-type", "when_saved"),
}


class World:
    """A queue of its own, its workers, and the ledger."""

    def __init__(self, kind: str, folder: Path, *, guarded: bool = True, crashes: int = 100) -> None:
        self.kind, self.folder, self.queue = kind, folder, f"tasks-{uuid4().hex[:12]}"
        self.ledger = folder / "ledger.db"
        gates = os.environ["RETRYSAFE_TEST_REDIS"]
        broker = os.environ["RETRYSAFE_TEST_RABBITMQ"] if kind.endswith("rabbitmq") else _database(gates, 9)
        self.gates = redis.Redis.from_url(gates)
        self.environment = {
            "TASKS_KIND": kind,
            "TASKS_BROKER": broker,
            "TASKS_QUEUE": self.queue,
            "TASKS_GATES": gates,
            "TASKS_LEDGER": str(self.ledger),
            "TASKS_GUARDED": str(int(guarded)),
            "TASKS_STORE": f"sqlite:///{folder / 'keys.db'}",
            "TASKS_CRASHES": str(crashes),
        }
        self.workers: list[subprocess.Popen[bytes]] = []
        self._logs = itertools.count()
        self.lost = 0
        self._sender: subprocess.Popen[str] | None = None
        with closing(sqlite3.connect(self.ledger)) as made, made:
            made.execute("CREATE TABLE ledger (name TEXT, what TEXT, pid INTEGER, key TEXT)")

    def start(self) -> subprocess.Popen[bytes]:
        """Start a worker, in a process group of its own."""
        log = (self.folder / f"worker-{next(self._logs)}.log").open("wb")
        command = [str(word) for word in COMMANDS[self.kind.partition("-")[0]]]
        with log:
            worker = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**environment(), **self.environment},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.workers.append(worker)
        return worker

    def send(self, *orders: str) -> None:
        """Send tasks, from a process of its own."""
        if self._sender is None:
            code = f"import sys, {APP} as app; [app.send(line.strip()) for line in sys.stdin]"
            env = {**environment(), **self.environment}
            command = [sys.executable, "-c", code]
            self._sender = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE, text=True)
        assert self._sender.stdin is not None
        self._sender.stdin.write("".join(f"{order}\n" for order in orders))
        self._sender.stdin.flush()

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        """SIGKILL a worker, which is not started again."""
        kill(worker)
        self.workers.remove(worker)

    def stop(self, pid: int) -> None:
        """SIGSTOP a process outside of its transactions on SQLite files: everybody would wait for them to end."""
        _freeze(pid)
        while not (_is_free(self.ledger) and _is_free(self.folder / "keys.db")):
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.05)
            _freeze(pid)

    def open(self, *orders: str) -> None:
        """Open the gates of orders."""
        for order in orders:
            self.gates.xadd(f"{self.queue}:gate:{order}", {"open": 1})

    def rows(self, order: str, what: str) -> list[tuple[int, str]]:
        """The process and the bank's key of each such entry."""
        with closing(sqlite3.connect(self.ledger, timeout=30)) as read:
            found = read.execute("SELECT pid, key FROM ledger WHERE name = ? AND what = ?", (order, what))
            return found.fetchall()

    def entries(self, what: str) -> list[tuple[int, str]]:
        """The process and the order of all such entries, in their order."""
        with closing(sqlite3.connect(self.ledger, timeout=30)) as read:
            sql = "SELECT pid, name FROM ledger WHERE what = ? AND name != 'nudge' ORDER BY rowid"
            return read.execute(sql, (what,)).fetchall()

    def charges(self, order: str) -> int:
        """The number of charges: a key that the bank knows is the same charge."""
        return len({key for _, key in self.rows(order, "charged")})

    def until(self, found: Callable[[], Any], told: str) -> Any:
        """Wait until something is found; meanwhile workers that have ended are started again, as by a supervisor."""
        end = time.monotonic() + PATIENCE
        nudged = time.monotonic()
        while not (value := found()):
            assert time.monotonic() < end, f"{told}: not within {PATIENCE:g} s\n{self.logs()}"
            for worker in [one for one in self.workers if one.poll() is not None]:
                self.kill(worker)
                self.start()
            if not self.kind.startswith("celery") and time.monotonic() - nudged > NUDGE:
                nudged = time.monotonic()
                self.send("nudge")
            time.sleep(0.05)
        return value

    def logs(self) -> str:
        """The ends of the workers' logs."""
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(self.folder.glob("worker-*.log")))

    def begun(self, order: str, times: int = 1) -> int:
        """Wait until an order has begun so often; the process of the last one."""
        rows = self.until(lambda: (r := self.rows(order, "began")) and len(r) >= times and r, f"{order} begins")
        pid: int = rows[-1][0]
        return pid

    def done(self, *orders: str) -> None:
        """Wait until orders are done."""
        for order in orders:
            self.until(lambda order=order: self.rows(order, "done"), f"{order} is done")

    def dead_letters(self) -> list[tuple[str, str, object, str]]:
        """Consumer, key, arguments and error of the tasks that were given up."""
        with closing(sqlite3.connect(self.folder / "keys.db", timeout=30)) as read:
            sql = "SELECT consumer, message_key, CAST(payload AS TEXT), error FROM retrysafe_inbox_dead"
            return [(consumer, key, json.loads(sent), error) for consumer, key, sent, error in read.execute(sql)]

    def close(self) -> None:
        """Kill the workers, and remove the queue and gates."""
        if self._sender is not None:
            self._sender.kill()
            self._sender.communicate()
        for worker in self.workers:
            kill(worker)
        for url in (self.environment["TASKS_GATES"], self.environment["TASKS_BROKER"]):
            if url.startswith("redis"):
                with redis.Redis.from_url(url) as client:
                    for name in client.scan_iter(f"*{self.queue}*"):
                        client.delete(name)
        self.gates.close()


def kill(worker: subprocess.Popen[bytes]) -> None:
    """SIGKILL a worker and its children."""
    with suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


def _freeze(pid: int) -> None:
    """SIGSTOP, until each thread has stopped: one that waits for a disk goes on until it has its answer."""
    os.kill(pid, signal.SIGSTOP)
    while any(stat.read_text().rpartition(") ")[2][0] != "T" for stat in Path(f"/proc/{pid}/task").glob("*/stat")):
        time.sleep(0.001)


def _is_free(path: Path) -> bool:
    """Tell whether a transaction can write within a second: nobody writes, and nobody reads what has no WAL."""
    with closing(sqlite3.connect(path, timeout=1, isolation_level=None)) as asking, suppress(sqlite3.OperationalError):
        asking.execute("BEGIN EXCLUSIVE")
        asking.execute("ROLLBACK")
        return True
    return False


def _database(url: str, number: int) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{number}"))


@contextmanager
def world(kind: str, folder: Path, **options: Any) -> Iterator[World]:
    made = World(kind, folder, **options)
    try:
        yield made
    finally:
        made.close()
