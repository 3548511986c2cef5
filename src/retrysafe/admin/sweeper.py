"""Removing forgotten records: in the background of an application, or from a scheduled job.

One pure schedule, a thread for sync code, a task for async code.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import tempfile
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, closing
from functools import partial
from typing import Any, BinaryIO, NamedTuple, cast

from retrysafe import runtime
from retrysafe.admin.archive import Archive
from retrysafe.admin.runs import NONE, FoundRuns, find_stranded
from retrysafe.backends import registry
from retrysafe.backends.backend import Backend
from retrysafe.backends.driver import AsyncPerformer, Performer, arun, rest, run, transact, work
from retrysafe.backends.steps import sweep_steps
from retrysafe.claims.observers import LoggingObserver, Observers
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.client import AsyncClient, Client
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.events import Observer
from retrysafe.protocol.partition_rewriting import Obstacle, rotate, worth_rotating
from retrysafe.protocol.procedures import forgotten, remove, sweep
from retrysafe.protocol.records import Duration, Partition, Record
from retrysafe.protocol.requests import Program, ask
from retrysafe.protocol.schedules import Sweeps
from retrysafe.protocol.store import RotatingStore
from retrysafe.stop_signal import Stops, StopSignal

LARGEST_BATCH = 10_000
ROUNDS = 5
"""The number of times that a rotation comes back to a partition that it could not lock."""
_IN_MEMORY = 32 << 20
"""Bytes of a partition that a rotation keeps in memory; more go to a temporary file."""


class Swept(NamedTuple):
    """The result of one run. ``skipped``: partitions that stayed locked by others; ``repaired``: records that had lost
    their expiry, on a store that has one, and got it back; ``too_large``: partitions that could not be copied in time,
    and were swept row by row.
    """

    removed: int
    archived: int
    seconds: float
    skipped: tuple[str, ...] = ()
    repaired: int = 0
    too_large: tuple[str, ...] = ()


class Sweeper:
    """Removes forgotten records (past their key memory) in batches; never a running or unknown one.

    Use it as a context manager (``with`` or ``async with``) around the life of an application, or call `run_once`
    or `arun_once` from a job. Any number of sweepers may work on one store: on PostgreSQL each skips records
    that another one has locked. A sweeper may be killed at any moment: nothing is lost, and the next one continues.

    Arguments:
        store: as for ``Boundary(store=…)``. For a URL the sweeper opens its own connections.
        every: the pause when nothing is left, with random jitter of a quarter.
        batch: records per batch, and per call of the archive.
        pause: the minimum pause after a full batch; the pause is also at least as long as the batch took.
        archive: called with the records of each batch, results included, before they are removed; it must return only
            when they are stored durably. Use `retrysafe.admin.archive.JsonLines` or your own function (for async
            code, it may
            be a coroutine function). If it raises, the records stay. It may get a record twice, with the same key and
            version.
        rotate: rewrite whole partitions (PostgreSQL, ``retrysafe migrate --partitions``) instead of deleting rows. One
            that cannot be copied in time is swept row by row, after the others.
        observers: receive "swept", "runs_stranded" and "sweep_failed"; by default a `LoggingObserver`.
    """

    _side = "records"
    """The name of the swept records in events."""
    _has_stranded = False
    """True if stranded runs were told of, so that their end is told of, too."""

    def __init__(
        self,
        store: Any,
        *,
        every: Duration = "1h",
        batch: int = 1000,
        pause: Duration = "10ms",
        archive: Archive | Callable[[Sequence[Record]], Awaitable[object]] | None = None,
        rotate: bool = False,
        observers: Iterable[Observer] | None = None,
    ) -> None:
        if not 1 <= batch <= LARGEST_BATCH:
            raise ConfigurationError(f"batch= is a number from 1 to {LARGEST_BATCH}.")
        if store == "memory://":
            raise ConfigurationError("store=: a memory:// store belongs to one boundary and cannot be swept.")
        self._backend = registry.connect(store)
        self._store = self._store_to_sweep(self._backend)
        self._archive = archive
        self._rotate = rotate
        self._schedule = Sweeps(batch, seconds_of(pause, "pause"), seconds_of(every, "every"))
        self._observers = Observers((LoggingObserver(),) if observers is None else observers)
        self._check_choices()
        self._count = _Count(None, batch)
        self._stops = Stops()
        self._stop_signal = StopSignal()
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None
        self._pid = runtime.pid

    def _store_to_sweep(self, backend: Backend) -> Any:
        """An object with a store's ``sweep``, ``forgotten`` and ``remove``."""
        return backend.store

    def _check_choices(self) -> None:
        if self._archive is not None and not self._store.forgotten(1):
            raise ConfigurationError(
                f"archive=: a {self._backend.kind} store removes expired records itself, so they cannot be archived "
                "first."
            )
        if self._rotate and not isinstance(self._store, RotatingStore):
            raise ConfigurationError(f"rotate=: a {self._backend.kind} store has no partitions to rotate.")
        if self._rotate and self._archive is not None:
            raise ConfigurationError("rotate= drops records without reading them: leave it out where archive= is set.")

    @property
    def serves_sync(self) -> bool:
        """True if sync code can sweep the store."""
        return self._backend.serves_sync

    @property
    def swept(self) -> Swept:
        """The removals of the latest run, so far."""
        return self._count.total()

    # ------------------------------------------------------------ one run

    def run_once(self, limit: int | None = None) -> Swept:
        """Sweep until nothing is left, ``limit`` records are gone or `stop` is called; raise if the store fails."""
        _check_limit(limit)
        with closing(self._backend.new_client()) as client, self._stops.run() as stop:
            return run(self._sweep(stop, limit), Performer(client, stop.wait))

    async def arun_once(self, limit: int | None = None) -> Swept:
        """`run_once` for async code."""
        _check_limit(limit)
        async with aclosing(self._backend.new_aclient()) as client:
            with self._stops.run() as stop:
                return await arun(self._sweep(stop, limit), AsyncPerformer(client, stop.await_for))

    def run_forever(self) -> None:
        """Sweep in this thread until `stop` is called; retry when the store fails.

        It heeds no signals, as the commands do: a program may let SIGTERM call `stop`.
        """
        with self._stops.run() as stop:
            self._background(self._backend.new_client(), stop)

    async def arun_forever(self) -> None:
        """`run_forever` for async code."""
        with self._stops.run() as stop:
            await self._abackground(self._backend.new_aclient(), stop)

    def stop(self) -> None:
        """Stop after the current batch; signal handlers may call it.

        It is for the runs that are under way, or else for the first one.
        """
        self._stops.stop()

    def _sweep(self, stop: StopSignal, limit: int | None = None) -> Program[Swept]:
        yield from work(
            lambda performer: self._backend.check(performer.client),
            lambda performer: self._backend.acheck(performer.client),
        )
        self._count = count = _Count(limit, self._schedule.batch, by_bytes=self._archive is not None)
        try:
            if self._rotate:
                yield from self._rotate_all(stop, count)
            else:
                while not stop.rung:
                    began = time.monotonic()
                    count.took((yield from self._batch(count.size, count)))
                    if not count.size:
                        break
                    yield from rest(self._rest_after(began))
            while self._side == "records" and not stop.rung:
                if not (yield from sweep_steps(self._backend, self._schedule.batch)):
                    break
            self._tell_stranded((yield from self._find_stranded()))
        finally:
            self._tell_swept(count)
        return count.total()

    def _find_stranded(self) -> Program[FoundRuns]:
        """Look for stranded runs, if an observer is told of them."""
        told = self._side == "records" and self._observers.is_enabled("runs_stranded")
        return (yield from find_stranded(self._backend)) if told else NONE

    def _rest_after(self, began: float) -> float:
        self._schedule, rest = self._schedule.goes_on(time.monotonic() - began)
        return rest

    # ------------------------------------------------------------ one batch

    def _batch(self, size: int, count: _Count) -> Program[int]:
        archive = self._archive
        if archive is None:
            repaired: list[int] = []
            return count.add((yield from sweep(self._store, size, repaired.append)), sum(repaired))
        gone = 0
        records = yield from forgotten(self._store, size)
        if records:
            yield from work(lambda _: archive(records), lambda _: self._akeep(records))
            count.archived += len(records)
            gone = yield from remove(self._store, records)
            count.removed += gone
        return len(records) if gone else 0

    async def _akeep(self, records: Sequence[Record]) -> None:
        """Call the archive; a sync one runs in a thread, so that it does not block the event loop."""
        assert self._archive is not None
        if inspect.iscoroutinefunction(self._archive):
            await self._archive(records)
        else:
            await asyncio.to_thread(self._archive, records)

    # ------------------------------------------------------------ partitions

    def _rotate_all(self, stop: StopSignal, count: _Count) -> Program[None]:
        store = cast("RotatingStore", self._store)
        waiting = yield from worth_rotating(store)
        for number in range(ROUNDS):
            for partition in list(waiting):
                if stop.rung:
                    return
                began = time.monotonic()
                with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as spool:
                    outcome = yield from transact(partial(rotate, store, partition, cast("BinaryIO", spool)))
                if outcome is not Obstacle.IN_USE:
                    waiting.remove(partition)
                    count.note(partition, outcome)
                yield from rest(self._rest_of_rotation(outcome, began, number))
        count.skipped = tuple(partition.name for partition in waiting)
        for partition in count.too_large:
            while not stop.rung:
                began = time.monotonic()
                gone = yield from ask(store.sweep_partition(partition, count.size))
                count.removed += gone
                if gone < count.size:
                    break
                yield from rest(self._rest_after(began))

    def _rest_of_rotation(self, outcome: int | Obstacle, began: float, number: int) -> float:
        if outcome is Obstacle.IN_USE:
            return self._schedule._replace(failures=number).after_failure(random.random())[1]
        return self._rest_after(began)

    # ------------------------------------------------------------ in the background

    def __enter__(self) -> Sweeper:
        self._start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stops.ring()
        if self._thread is not None and self._pid == runtime.pid:
            self._thread.join()

    async def __aenter__(self) -> Sweeper:
        stop = self._stops.begin(asyncio.get_running_loop())
        self._task = asyncio.create_task(self._abackground(self._backend.new_aclient(), stop), name="retrysafe-sweeper")
        self._task.add_done_callback(lambda _: self._stops.end(stop))
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._stops.ring()
        if self._task is not None:
            await self._task

    def _start(self, first: float = 0.0) -> None:
        self._stop_signal, self._pid = self._stops.begin(), runtime.pid
        arguments = (self._backend.new_client(), self._stop_signal, first)
        self._thread = threading.Thread(target=self._background, args=arguments, name="retrysafe-sweeper", daemon=True)
        _running.add(self)
        self._thread.start()

    def _background(self, client: Client, stop: StopSignal, first: float = 0.0) -> None:
        try:
            run(self._go_on(stop, first), Performer(client, stop.wait))
        finally:
            self._stops.end(stop)
            client.close()

    async def _abackground(self, client: AsyncClient, stop: StopSignal) -> None:
        async with aclosing(client):
            await arun(self._go_on(stop), AsyncPerformer(client, stop.await_for))

    def _go_on(self, stop: StopSignal, first: float = 0.0) -> Program[None]:
        yield from rest(first)
        while not stop.rung:
            try:
                yield from self._sweep(stop)
                pause = self._idle()
            except Exception as error:  # noqa: BLE001 - one failed batch must not end the sweeper
                pause = self._report_failure(error)
            yield from rest(pause)

    def _idle(self) -> float:
        self._schedule, rest = self._schedule.when_done(random.random())
        return rest

    def _report_failure(self, error: Exception) -> float:
        self._tell("sweep_failed", error=str(error) or type(error).__name__)
        self._schedule, rest = self._schedule.after_failure(random.random())
        return rest

    def _in_child(self) -> None:
        """Start a new thread after a fork: the child cannot use its parent's thread or connections."""
        if self._thread is not None and not self._stop_signal.rung:
            self._start(self._schedule.first(random.random()))

    # ------------------------------------------------------------ telling

    def _tell_swept(self, count: _Count) -> None:
        if count.removed or count.archived or count.repaired:
            told = {name: getattr(count, name) for name in ("removed", "archived", "repaired")}
            self._tell("swept", side=self._side, **told, seconds=round(count.total().seconds, 3))

    def _tell_stranded(self, found: FoundRuns) -> None:
        if found.runs or self._has_stranded:
            self._has_stranded = bool(found.runs)
            self._tell("runs_stranded", runs=len(found.runs))

    def _tell(self, name: str, **fields: Any) -> None:
        self._observers.emit(name, "", "", b"", "", fields)


class _Count:
    """Counts what one run has removed, and how much of its limit is left."""

    def __init__(self, limit: int | None, batch: int, *, by_bytes: bool = False) -> None:
        self._left, self._by_bytes = limit, by_bytes
        self.size = batch if limit is None else min(batch, limit)
        """Records of the next batch; 0 if the run is over."""
        self._began = time.monotonic()
        self.removed = 0
        self.archived = 0
        self.repaired = 0
        self.skipped: tuple[str, ...] = ()
        self.too_large: list[Partition] = []

    def add(self, removed: int, repaired: int) -> int:
        """Count a batch, and return its size."""
        self.removed += removed
        self.repaired += repaired
        return removed + repaired

    def note(self, partition: Partition, outcome: int | Obstacle) -> None:
        """Count a partition that was rewritten, or could not be copied in time."""
        if isinstance(outcome, int):
            self.removed += outcome
        else:
            self.too_large.append(partition)

    def took(self, seen: int) -> None:
        """Count a batch. One that is not full is the last; with batches bounded by bytes, only an empty one is."""
        if seen < (1 if self._by_bytes else self.size):
            self.size = 0
        elif self._left is not None:
            self._left -= seen
            self.size = min(self.size, max(self._left, 0))

    def total(self) -> Swept:
        too_large = tuple(partition.name for partition in self.too_large)
        seconds = time.monotonic() - self._began
        return Swept(self.removed, self.archived, seconds, self.skipped, self.repaired, too_large)


_running: weakref.WeakSet[Sweeper] = weakref.WeakSet()


def _restart_in_child() -> None:
    for sweeper in list(_running):
        sweeper._in_child()


runtime.in_child(_restart_in_child)


def _check_limit(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise ConfigurationError(f"limit={limit}: give a number of records from 1, or None for all.")
