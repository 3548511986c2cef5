"""Keeping leases alive while work runs: one schedule, a thread for sync code, a timer for async code.

A `LeaseTerm` is a lease as its holder knows it. The holder may rely on it until ``until``: the time, on this machine's
own clock, at which the last successful claim or renewal was *asked for*, plus the length of the lease. The store counts
from a later instant, so the holder always stops relying on the lease before the store lets another attempt take over.

The life of a lease
    begin     the claim calls ``add`` of the heartbeat. This notes the lease in ``_Schedule.new``, a dictionary;
              for the shortest one so far it takes the lock too, so that the next look comes in time.
    look      `LOOKS_PER_LEASE` times (6) in the shortest lease, the heartbeat moves the noted leases to the schedule
              of renewals, `Beats`. Work that has ended by then was never scheduled, and cost no timer or lock.
    renew     `PER_LEASE` times (3) in a lease, those that are due are renewed, many in one request.
    drop      the claim calls ``drop`` when the work has ended.

The answers to a renewal
    kept      ``until`` moves on, and the lease falls due again after a third of it.
    missing   the store no longer has the lease: it is lost.
    failed    the store did not answer. The renewal is tried again after a twelfth of the lease (`RETRIES_PER_LEASE`).
              When a third of the lease is left, it counts as lost, so that the work can stop in time.

A lost lease is reported as ``lease_lost``, ``ensure_held()`` raises from then on, and the asyncio task that works under
it is cancelled if it has entered its claim by ``async with``. The later settlement is conditional on the fencing token,
so it is refused if the key was taken over. A lease that ends while its outcome is being stored is not reported: the
answer to that request decides.

One heartbeat serves all leases of a backend: `ThreadHeartbeat`, a daemon thread for each process, started at the first
look, after a fork and after an idle time; and `LoopHeartbeat`, a timer for each event loop, which exists only while
leases are held. Both renew through connections of their own, so that renewals do not queue behind the application's
requests. On a loop, renewals that get no answer within a third of the lease are cancelled together with their client.

The heartbeat also puts the outcomes again that the store did not take (`retrysafe.claims.deferred`): the thread one
between two renewals, the loop in a task that exists while there are any. Those that are left are tried once more when
the heartbeat is closed, its process ends, or its loop cancels all tasks, as `asyncio.run` does.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from retrysafe import lazy, runtime
from retrysafe.backends.backend import Backend
from retrysafe.backends.driver import arun, run
from retrysafe.claims import deferred
from retrysafe.claims.deferred import Deferred, DeferredQueue
from retrysafe.claims.observers import AttemptEvents
from retrysafe.errors import StoreUnavailable
from retrysafe.protocol.exception_groups import every
from retrysafe.protocol.procedures import renewals
from retrysafe.protocol.records import Ownership
from retrysafe.protocol.requests import Program
from retrysafe.protocol.schedules import LOOKS_PER_LEASE, PER_LEASE, RETRIES_PER_LEASE, Beats

if TYPE_CHECKING:
    import asyncio

    from retrysafe.protocol.client import AsyncClient, Client

_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)


def clock() -> float:
    """Seconds on a clock that never goes back and, where the system has one, runs on while it is suspended."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


class LeaseTerm:
    """A lease as its holder knows it: until when it is certainly held, on this machine's own clock."""

    settling = False
    """True if the work is over and its outcome is being stored: a lease that ends now is not reported."""
    lost = False
    """True if it ended before the work did, and that was reported."""
    _task: asyncio.Task[Any] | None = None

    def __init__(
        self, ownership: Ownership, claimed_at: float, events: AttemptEvents, holder: Callable[[], object] = object
    ) -> None:
        self.ownership = ownership
        self.holder = holder
        """Gives the owner of the lease; None once that was collected before its attempt ended. By default never."""
        self.seconds = ownership.clocks.lease / 1e6
        self.until = claimed_at + self.seconds
        self.events = events

    def is_held(self) -> bool:
        """Tell whether the lease is certainly still held."""
        return not self.lost and clock() < self.until

    def apply_renewal(self, kept: set[Ownership], asked_at: float) -> None:
        """Process the answer to a renewal that was asked for at ``asked_at``."""
        seconds = round(clock() - asked_at, 6)
        if self.ownership in kept:
            self.until = asked_at + self.seconds
        else:
            self.lose()
        self.events.emit("store_request", step="renew", seconds=seconds, answered=True)

    def not_renewed(self, error: Exception, asked_at: float) -> None:
        """Report that a renewal that was asked for at ``asked_at`` failed."""
        answered = not isinstance(error, StoreUnavailable)
        self.events.emit("store_request", step="renew", seconds=round(clock() - asked_at, 6), answered=answered)
        self.events.emit("renewal_failed", error=str(error).partition("\n")[0])

    def lose(self) -> None:
        """Report that the lease is lost, and cancel the task that works under it."""
        if self.settling:
            return
        self.lost = True
        self.events.emit("lease_lost")
        if self._task is not None:
            self._task.cancel("retrysafe: the lease was lost")

    def watch_task(self) -> None:
        """Have the running task cancelled if the lease is lost."""
        self._task = sys.modules["asyncio"].current_task()

    def end_work(self, error: BaseException | None) -> bool:
        """The work is over: tell whether by our cancellation, which is then taken back, as `asyncio.timeout` does."""
        self.settling = True
        task, self._task = self._task, None
        if not self.lost or task is None:
            return False
        return task.uncancel() == 0 and error is not None and every(error, lazy.asyncio.CancelledError)


_NEVER = float("inf")
_IDLE = 30.0
"""Seconds without a lease after which the thread ends, with its connection; the next lease starts another."""


class _Schedule:
    """The state of both heartbeats: the leases, when they are due, and how the answers to renewals are applied.

    The lease of a claim that was dropped without having been left is not renewed: it lapses in its time.

    A dictionary's items are set and removed in one step, so that `new` needs no lock.
    """

    def __init__(self) -> None:
        self.beats = Beats()
        self.leases: dict[Ownership, LeaseTerm] = {}
        self.new: dict[LeaseTerm, LeaseTerm] = {}
        self.shortest = _NEVER
        """The shortest lease, in seconds, for which a look is arranged; one that is shorter arranges its own."""
        self.looks_at = _NEVER

    def arrange_look(self, lease: LeaseTerm) -> None:
        """Arrange a look in time for ``lease``; `confirm_look` records it once the timer or thread is sure to run."""
        self.looks_at = min(self.looks_at, clock() + lease.seconds / LOOKS_PER_LEASE)

    def confirm_look(self, lease: LeaseTerm) -> None:
        """Record that a look is arranged for ``lease``, and so for every lease that is no shorter."""
        self.shortest = min(self.shortest, lease.seconds)

    def look(self, now: float) -> None:
        """Schedule the new leases. A lease that begins meanwhile is seen here, or arranges a look of its own."""
        if self.looks_at > now:
            return
        self.shortest = self.looks_at = _NEVER
        for lease in self.new.copy():
            if lease.holder() is None:
                self.drop(lease)
                continue
            self.leases[lease.ownership] = lease
            self.beats.add_new(lease.ownership, now)
            if self.new.pop(lease, None) is None:  # its work has ended just now
                self.drop(lease)

    def drop(self, lease: LeaseTerm) -> None:
        """Remove a lease from the schedule."""
        self.new.pop(lease, None)
        self.leases.pop(lease.ownership, None)
        self.beats.drop(lease.ownership)

    def due(self) -> list[Ownership]:
        """Those whose lease is to be renewed now, after a look if it is time for one."""
        now = clock()
        self.look(now)
        due = self.beats.due(now)
        gone = [lease for lease in self._still_wanted(due) if lease.holder() is None]
        for lease in gone:
            self.drop(lease)
        return [one for one in due if one in self.leases] if gone else due

    def next_due(self) -> float:
        """The time of the next renewal or look."""
        upcoming = self.beats.next_due()
        return self.looks_at if upcoming is None else min(upcoming, self.looks_at)

    def record_answers(
        self, due: list[Ownership], kept: set[Ownership], failure: Exception | None, asked_at: float
    ) -> None:
        """Apply the answers to a round of renewals.

        A lease that was not kept is lost, unless some renewals failed: its own may have been among them. A failed
        renewal is tried again soon; the lease counts as lost when a third of it is left.
        """
        for lease in self._still_wanted(due):
            if lease.ownership in kept or failure is None:
                lease.apply_renewal(kept, asked_at)
                if lease.ownership not in kept:
                    self.drop(lease)
                continue
            lease.not_renewed(failure, asked_at)
            if lease.until - clock() <= lease.seconds / 3:
                self._lose(lease)
            else:
                self.beats.retry(lease.ownership, clock())

    def close(self) -> None:
        """Stop renewing: every lease that is still held is reported as lost."""
        for lease in [*self.leases.values(), *self.new]:
            self._lose(lease)

    def _still_wanted(self, due: list[Ownership]) -> list[LeaseTerm]:
        return [self.leases[one] for one in due if one in self.leases]

    def _lose(self, lease: LeaseTerm) -> None:
        self.drop(lease)
        lease.lose()


Put = Callable[[Program[Any], float], Any]
"""Puts a program to the store, with the patience of the driver in seconds."""


class ThreadHeartbeat:
    """Renews in a daemon thread, through a client of its own."""

    def __init__(self, backend: Backend) -> None:
        self._store = backend.store
        self._connect = backend.heartbeat_client
        self._schedule = _Schedule()
        self._outcomes = DeferredQueue(lambda: clock())  # looked up each time, since tests replace it
        self._changed = threading.Condition()
        self._wakes = _NEVER
        self._thread: threading.Thread | None = None
        self._closed = False
        self._pid = runtime.pid

    def carry(self, outcome: Deferred) -> None:
        """Try to settle an outcome that the store has not taken, until the lease ends; after `close` it is given up."""
        with self._changed:
            if not self._closed:
                atexit.register(self._at_exit)
                self._outcomes.add(outcome)
                self._wake()
                return
        outcome.concluded(None)

    def add(self, lease: LeaseTerm) -> None:
        """Keep ``lease`` alive until it is dropped or lost."""
        schedule = self._schedule
        schedule.new[lease] = lease
        if lease.seconds < schedule.shortest:
            with self._changed:
                schedule.arrange_look(lease)
                self._wake()
                schedule.confirm_look(lease)

    def drop(self, lease: LeaseTerm) -> None:
        """Stop renewing ``lease``."""
        if self._schedule.new.pop(lease, None) is None:
            with self._changed:
                self._schedule.drop(lease)

    def drain(self) -> None:
        """Wait until each outcome is stored, or its lease has ended."""
        with self._changed:
            while len(self._outcomes):
                self._changed.wait()

    def close(self) -> None:
        """Stop the thread and close its connections, after trying deferred outcomes once more."""
        with self._changed:
            self._schedule.close()
        self._end()

    def _at_exit(self) -> None:
        if self._pid == runtime.pid:
            self._end()

    def _end(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        atexit.unregister(self._at_exit)

    def _wake(self) -> None:
        """Have the thread see that something is due earlier, or start it."""
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._run, name="retrysafe-heartbeat", daemon=True)
            thread.start()
            self._thread = thread
        elif self._next() < self._wakes:
            self._changed.notify()

    def _next(self) -> float:
        return min(self._schedule.next_due(), self._outcomes.due())

    def _run(self) -> None:
        client: Client | None = None

        def put(program: Program[Any], patience: float) -> Any:
            nonlocal client
            client = client or self._connect()
            return run(program, client, patience=patience)

        while (due := self._wait()) is not None:
            if due:
                self._renew(due, put)
            outcome = self._outcomes.turn()
            if outcome is not None:
                self._try(outcome, put)
        if self._closed:
            self._try_last(put)
        if client is not None:
            client.close()

    def _wait(self) -> list[Ownership] | None:
        """Wait until renewals or outcomes are due; None when this is closed, or there was nothing to do for long."""
        with self._changed:
            self._changed.notify_all()  # a thread may wait in drain()
            while not self._closed:
                due = self._schedule.due()
                if due or self._outcomes.due() <= clock():
                    return due
                self._wakes = self._next()
                is_idle = self._wakes == _NEVER
                woken = self._changed.wait(_IDLE if is_idle else max(0.0, self._wakes - clock()))
                if is_idle and not woken and self._next() == _NEVER:
                    break
            self._thread = None
        return None

    def _renew(self, due: list[Ownership], put: Put) -> None:
        asked_at = clock()
        kept: set[Ownership] = set()
        failure: Exception | None = None
        for renewal in renewals(self._store, due):
            try:
                kept |= put(renewal, _patience(due))
            except Exception as error:  # noqa: BLE001 - one lease must not end by what happens to another
                failure = error
        with self._changed:
            self._schedule.record_answers(due, kept, failure, asked_at)

    def _try(self, outcome: Deferred, put: Put) -> bool:
        """Put the outcome once more; whether the store answered."""
        try:
            done = put(outcome.settle(), 0)
        except Exception:  # noqa: BLE001 - whatever the trouble is, it may pass
            self._outcomes.postpone()
            return False
        self._outcomes.conclude(done)
        return True

    def _try_last(self, put: Put) -> None:
        give_up_at = time.monotonic() + deferred.LAST_TRY
        for outcome in self._outcomes.last_turns():
            if time.monotonic() > give_up_at or not self._try(outcome, put):
                break
        self._outcomes.give_up()


class LoopHeartbeat:
    """Renews on an event loop, by a timer that runs only while something is held."""

    def __init__(self, backend: Backend) -> None:
        self._store = backend.store
        self._connect = backend.heartbeat_aclient
        self._loop = weakref.ref(lazy.asyncio.get_running_loop())
        self._client: AsyncClient | None = None
        self._schedule = _Schedule()
        self._timer: asyncio.Handle | None = None
        self._due = 0.0
        """The due time of the timer, on `clock`. Not every loop's handle says so: uvloop's does not when that is at
        once.
        """
        self._beating: asyncio.Task[None] | None = None
        self._endings: set[asyncio.Task[None]] = set()
        self._outcomes = DeferredQueue(lambda: clock())  # looked up each time, since tests replace it
        self._settling: asyncio.Task[None] | None = None

    def carry(self, outcome: Deferred) -> None:
        """Try to settle an outcome that the store has not taken, until the lease ends."""
        self._outcomes.add(outcome)
        if self._settling is None or self._settling.done():
            self._settling = lazy.asyncio.get_running_loop().create_task(self._settle(), name="retrysafe-settler")
            # an outcome that is put off when asyncio.run has cancelled all tasks is given up with the loop
            self._settling._log_destroy_pending = False  # type: ignore[attr-defined]

    def add(self, lease: LeaseTerm) -> None:
        """Keep ``lease`` alive until it is dropped or lost."""
        schedule = self._schedule
        schedule.new[lease] = lease
        if lease.seconds < schedule.shortest:
            schedule.arrange_look(lease)
            self._set_timer()
            schedule.confirm_look(lease)

    def drop(self, lease: LeaseTerm) -> None:
        """Stop renewing ``lease``."""
        if self._schedule.new.pop(lease, None) is None:
            self._schedule.drop(lease)

    async def aclose(self) -> None:
        """Stop the timer and close its connections, after trying deferred outcomes once more."""
        if self._settling is not None:
            self._settling.cancel()
            await lazy.asyncio.wait((self._settling,))
        await self._try_last()  # a task that was cancelled before it began has tried nothing
        self._schedule.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._beating is not None:
            await lazy.asyncio.wait((self._beating,))
        await self._close_client()

    def abandon(self) -> None:
        """Give up the outcomes and drop the connections without the loop, which is closed."""
        self._outcomes.give_up()
        if self._client is not None:
            self._client.abandon()

    def _set_timer(self) -> None:
        loop, upcoming = self._loop(), self._schedule.next_due()
        if loop is None or upcoming == _NEVER or self._beating is not None:
            return
        if self._timer is not None:
            if self._due <= upcoming:
                return
            self._timer.cancel()
        self._due = upcoming
        self._timer = loop.call_later(max(0.0, upcoming - clock()), self._fire)

    def _fire(self) -> None:
        self._timer = None
        loop = self._loop()
        due = self._schedule.due()
        if due and loop is not None:
            self._beating = loop.create_task(self._beat(due))
            self._beating.add_done_callback(self._end_beat)
        else:
            self._set_timer()

    async def _beat(self, due: list[Ownership]) -> None:
        asked_at = clock()
        kept: set[Ownership] = set()
        failure: Exception | None = StoreUnavailable("the renewal was cancelled")
        try:
            kept, failure = await self._renewal(due)
        except Exception as error:  # noqa: BLE001 - a heartbeat must not end by what happens to one beat
            failure = error
        finally:
            self._schedule.record_answers(due, kept, failure, asked_at)

    def _end_beat(self, beat: asyncio.Task[None]) -> None:
        """Go on after a beat, also after one that was cancelled, maybe before it began, with all tasks of the loop."""
        self._beating = None
        self._set_timer()

    async def _renewal(self, due: list[Ownership]) -> tuple[set[Ownership], Exception | None]:
        """The leases that were kept, and why others may not have been; all are asked for at once."""
        client = self._client = self._client or self._connect()
        asked = [
            lazy.asyncio.ensure_future(arun(program, client, patience=_patience(due)))
            for program in renewals(self._store, due)
        ]
        done, late = await lazy.asyncio.wait(asked, timeout=min(one.clocks.lease for one in due) / 1e6 / PER_LEASE)
        kept: set[Ownership] = set()
        failure: Exception | None = None
        for renewal in done:
            try:
                kept |= renewal.result()
            except Exception as error:  # noqa: BLE001 - one lease must not end by what happens to another
                failure = error
        if late:
            self._abandon(late, client)
            failure = StoreUnavailable("the renewal got no answer")
        return kept, failure

    def _abandon(self, late: set[asyncio.Task[set[Ownership]]], client: AsyncClient) -> None:
        """Cancel renewals that hang, and close their client, in the background: other leases must not wait for them."""
        self._client = None

        async def end() -> None:
            for renewal in late:
                renewal.cancel()
            await lazy.asyncio.gather(*late, return_exceptions=True)
            with suppress(Exception):
                await client.aclose()

        ending = lazy.asyncio.get_running_loop().create_task(end())
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    async def _settle(self) -> None:
        try:
            while self._outcomes:
                await lazy.asyncio.sleep(max(0.0, self._outcomes.due() - clock()))
                outcome = self._outcomes.turn()
                if outcome is not None:
                    await self._try(outcome)
        except lazy.asyncio.CancelledError:
            await self._try_last()
            if self._beating is None:
                await self._close_client()
            raise

    async def _try(self, outcome: Deferred) -> bool:
        """Put the outcome once more; whether the store answered."""
        try:
            self._client = self._client or self._connect()
            done = await arun(outcome.settle(), self._client, patience=0)
        except Exception:  # noqa: BLE001 - whatever the trouble is, it may pass
            self._outcomes.postpone()
            return False
        self._outcomes.conclude(done)
        return True

    async def _try_last(self) -> None:
        with suppress(TimeoutError):
            async with lazy.asyncio.timeout(deferred.LAST_TRY):
                for outcome in self._outcomes.last_turns():
                    if not await self._try(outcome):
                        break
        self._outcomes.give_up()

    async def _close_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def _patience(due: list[Ownership]) -> float:
    """Seconds for which the driver repeats a renewal that the store refuses for the moment; other leases wait."""
    return min(one.clocks.lease for one in due) / 1e6 / RETRIES_PER_LEASE


def for_thread(backend: Backend) -> ThreadHeartbeat:
    """The heartbeat of this process for sync code."""
    companions = backend.companions()
    found = companions.get(ThreadHeartbeat) or companions.setdefault(ThreadHeartbeat, ThreadHeartbeat(backend))
    assert isinstance(found, ThreadHeartbeat)
    return found


def for_loop(backend: Backend) -> LoopHeartbeat:
    """The heartbeat of the running loop."""
    companions = backend.acompanions()
    found = companions.get(LoopHeartbeat) or companions.setdefault(LoopHeartbeat, LoopHeartbeat(backend))
    assert isinstance(found, LoopHeartbeat)
    return found
