"""Child processes of the fault tests: `python -m tests.faults.children ROLE STORE NAME [ARGUMENT]`.

They speak in lines: what they print is awaited by the test, and a line on standard input lets them go on.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from retrysafe import Boundary, InProgress, LeaseLost, StoreUnavailable
from retrysafe.admin.archive import JsonLines
from retrysafe.admin.sweeper import Sweeper
from retrysafe.backends.driver import run
from retrysafe.backends.registry import connect
from retrysafe.claims.observers import Observers
from retrysafe.protocol.partition_rewriting import rotate, worth_rotating
from retrysafe.protocol.records import Record
from tests.faults.helpers import DEADLINE, Bank, renewals_of, until


def say(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def go_on() -> None:
    assert sys.stdin.readline()


def skewed(store: str, name: str, seconds: str) -> None:
    """A worker whose wall clock is wrong by so many seconds, and jumps back by twice that in mid-work."""
    skew = float(seconds)
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + skew
    time.time_ns = lambda: real_ns() + round(skew * 1e9)
    boundary = Boundary(name, store=store, lease="60s", window="1h", observers=())
    with suppress(InProgress), boundary.claim("held elsewhere"):
        say("TOOK OVER A LIVE LEASE")
    with boundary.claim("finished elsewhere") as claim:
        say(f"replayed {claim.replayed}")
    with boundary.claim("mine") as claim:
        skew = -skew
        claim.ensure_held()
        claim.result = "from the skewed worker"
        say("holding")
        go_on()
    with boundary.claim("mine") as claim:
        say(f"replayed {claim.replayed}")
    boundary.close()


def stopped(store: str, name: str, colour: str, back: str = "") -> None:
    """A worker that is stopped in mid-work, for longer than its lease.

    With ``back`` its renewals hang, so that nobody tells it, and its wall clock has gone so much back.
    """
    boundary = Boundary(name, store=store, lease=3, observers=())

    if back:
        backend = boundary._settings.backend
        backend.access = backend.access._replace(heartbeat=threading.Event().wait)  # type: ignore[arg-type]

    def sync() -> None:
        with boundary.claim("key") as claim:
            _set_back(float(back or 0))
            say("holding")
            go_on()
            try:
                claim.ensure_held()
                say("still held")
            except LeaseLost:
                say("ensure_held: LeaseLost")
            claim.result = "first"

    async def asynchronous() -> None:
        try:
            await work()
        finally:
            await boundary.aclose()

    async def work() -> None:
        async with boundary.claim("key") as claim:
            say("holding")
            with suppress(asyncio.CancelledError):
                await asyncio.to_thread(go_on)
            try:
                claim.ensure_held()
                say("still held")
            except LeaseLost:
                say("ensure_held: LeaseLost")
            claim.result = "first"

    try:
        sync() if colour == "sync" else asyncio.run(asynchronous())
        say("stored")
    except LeaseLost:
        say("LeaseLost")


def older(store: str, name: str) -> None:
    """A worker of this version of the schema, which it makes where it is missing; it works over a migration."""
    connect(store).migrate()
    boundary = Boundary(name, store=store, lease="60s", observers=())
    served, over = list[int](), threading.Event()

    def serve() -> None:
        while not over.is_set():
            with boundary.claim(f"{os.getpid()} {len(served)}") as claim:
                claim.result = len(served)
            served.append(claim.result)

    traffic = threading.Thread(target=serve)
    with boundary.claim(f"across {os.getpid()}", payload="p") as claim:
        traffic.start()
        until(lambda: len(served) > 10)
        say("holding")
        say(os.getpid())
        go_on()
        claim.result = "the older"
    migrated_at = len(served)
    until(lambda: len(served) > migrated_at + 10 or not traffic.is_alive())
    over.set()
    say(f"served all: {traffic.is_alive()}")
    traffic.join()
    with boundary.claim("by the newer", payload="p") as claim:
        say(f"replayed {claim.replayed}: {claim.result}")
    with boundary.claim("by the older", payload="p") as claim:
        if not claim.replayed:
            claim.result = "the older"
    boundary.close()
    say("ended")


def _set_back(seconds: float) -> None:
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() - seconds
    time.time_ns = lambda: real_ns() - round(seconds * 1e9)


def restarting(store: str, name: str, effects: str) -> None:
    """A worker that dies right at the beginning of its work."""
    boundary = Boundary(name, store=store, effects=effects, lease="60s", observers=())  # type: ignore[arg-type]
    until(lambda: _claims(boundary))


def dying(store: str, name: str, effects: str, moment: str, ledger: str) -> None:
    """A worker that dies when its attempt is told of ``moment``, or when it has "charged"."""

    def die(reached: str) -> None:
        if reached == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    boundary = Boundary(name, store=store, effects=effects, lease="60s", observers=[lambda told: die(told.name)])  # type: ignore[arg-type]
    with boundary.claim("key") as claim:
        if effects == "transactional":
            claim.tx.execute(f"INSERT INTO {ledger} VALUES ('key', 'receipt')")
            claim.result = "receipt"
        else:
            claim.result = Bank(Path(ledger)).charge(claim.key_for("bank"))
        die("charged")
    die("answered")


def holding(store: str, name: str, lease: str) -> None:
    """A worker that holds a key for as long as it lives."""
    with Boundary(name, store=store, lease=lease, observers=()).claim("key"):
        say("holding")
        go_on()


def _claims(boundary: Boundary) -> bool:
    with suppress(InProgress), boundary.claim("key"):
        os.kill(os.getpid(), signal.SIGKILL)
    return False


def forking(store: str, name: str, effects: str) -> None:
    """A parent that uses a boundary, forks children that use it too, and goes on using it."""
    lease = "5s" if store.startswith("dynamodb") else "3s"  # a client of boto's takes a while to open
    boundary = Boundary(name, store=store, effects=effects, lease=lease, observers=())  # type: ignore[arg-type]
    parents = threading.active_count()
    parent, used = os.getpid(), list[Any]()

    def use(key: str) -> int:
        renewals_of(store, "nobody")
        with boundary.claim(key) as claim:
            if not claim.replayed:
                if claim.tx is not None:
                    assert os.getpid() == parent or claim.tx not in used, "the child uses the parent's connection"
                    used.append(claim.tx)
                if effects == "keyed":  # two renewals, by a heartbeat of this very process
                    until(lambda: renewals_of(store, claim.attempt_id) >= 2)
                claim.result = os.getpid()
        pid: int = claim.result
        return pid

    async def ause(key: str) -> int:
        renewals_of(store, "nobody")  # opens what it needs, which may take longer than a lease
        async with boundary.claim(key) as claim:
            if not claim.replayed:
                if effects == "keyed":
                    await asyncio.to_thread(until, lambda: renewals_of(store, claim.attempt_id) >= 2)
                claim.result = os.getpid()
        pid: int = claim.result
        return pid

    async def closing(work: Coroutine[Any, Any, int]) -> int:
        try:
            return await work
        finally:
            await boundary.aclose()

    def family() -> None:
        works: list[Callable[[], bool]] = [
            lambda: use("parent") == parent,
            lambda: use("child 0") == os.getpid(),
            lambda: asyncio.run(closing(ause("child 1"))) == os.getpid(),
        ]
        pids = [_fork(work) for work in works]
        say([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids])

    assert use("parent") == parent
    assert threading.active_count() > parents or effects == "transactional"
    family()
    say([use("parent") == parent, use("child 0") != parent, use("child 1") != parent, use("later") == parent])


def _fork(work: Callable[[], bool]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = 0 if work() else 2
    finally:
        os._exit(code)


def opening(directory: str, files: str) -> None:
    """Open new database files at the same moment as its siblings do, many times over."""
    for number in range(int(files)):
        say("ready")
        go_on()
        for _ in range(10):
            boundary = Boundary("opened", store=f"sqlite:///{directory}/{number}.db", observers=())
            with suppress(InProgress), boundary.claim("key"):
                pass
            boundary.close()
    say("opened all")


def sweeping(store: str, archive: str, suicidal: str) -> None:
    """A sweeper in tiny batches; a suicidal one dies before it archives any, or when it has archived a few.

    ``suicidal``: "before", "behind", or nothing. It has removed none of what it was archiving; without an archive it
    dies before it begins, or after three batches.
    """
    kept = JsonLines(archive) if archive else None
    batches = 0

    def keep(records: Sequence[Record]) -> None:
        nonlocal batches
        assert kept is not None
        if suicidal == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        kept(records)
        batches += 1
        if suicidal == "behind" and batches == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    sweeper = Sweeper(store, batch=10, pause="10ms", archive=keep if archive else None, observers=())
    if suicidal and not archive:
        if suicidal == "behind":
            sweeper.run_once(30)
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        with suppress(StoreUnavailable):
            sweeper.run_once()
            return


def forking_sweeper(store: str) -> None:
    """A sweeper whose process forks; the parent's is stopped then, and neither ends by anybody's hand.

    The fork waits for a rest: SQLite, like any C library, keeps for ever the locks that another thread held then.
    """
    rests = threading.Event()
    sweeper = Sweeper(store, every="2s", observers=(lambda occurrence: rests.set(),))
    sweeper.__enter__()
    assert rests.wait(DEADLINE)
    pid = os.fork()
    if pid:
        sweeper.__exit__()
        say("parent sweeps")
        os.waitpid(pid, 0)
        return
    told: list[str] = []
    sweeper._observers = Observers((lambda occurrence: told.append(occurrence.name),))
    until(lambda: "swept" in told)
    say("child swept")
    sys.stdout.flush()


class DeadlySpool(io.BytesIO):
    """The spool of a rotation; its process dies when it is written to, or read from."""

    def __init__(self, moment: str) -> None:
        super().__init__()
        self.moment = moment

    def write(self, data: Any, /) -> int:
        if self.moment == "write":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().write(data)

    def read(self, size: int | None = -1, /) -> bytes:
        if self.moment == "read":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(size)


def rotating(store: str, moment: str) -> None:
    """A rotation that dies with what it keeps in its own hands: before the table is emptied, or after."""
    backend = connect(store)
    store_: Any = backend.store
    (partition, *_) = run(worth_rotating(store_), backend.client())
    with backend.client().transaction() as opened:
        run(rotate(store_, partition, DeadlySpool(moment)), opened.execute)


ROLES = {
    "dying": dying,
    "rotating": rotating,
    "forking": forking,
    "forking_sweeper": forking_sweeper,
    "older": older,
    "holding": holding,
    "opening": opening,
    "restarting": restarting,
    "skewed": skewed,
    "stopped": stopped,
    "sweeping": sweeping,
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
