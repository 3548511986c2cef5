"""The coordinator of the pipeline: starts the processes, and starts them anew when they are killed."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from multiprocessing.connection import wait
from pathlib import Path

from retrysafe_demo.pipeline import audit, shop
from retrysafe_demo.pipeline.audit import PipelineCount
from retrysafe_demo.pipeline.mishaps import SIZES, Death, Role, Schedule, schedule
from retrysafe_demo.pipeline.shop import Places, path_of
from retrysafe_demo.processes import Child, DemoError
from retrysafe_demo.talk import Lines, Say

TICK = 0.1
MOST_UNSCHEDULED = 3
"""The number of times that a process may end by itself before the demo is given up."""


class Seat:
    """One place of the pipeline, and the process that has it now."""

    def __init__(self, role: Role, number: int, deaths: Sequence[Death]) -> None:
        self.role, self.number = role, number
        self.lives = self.unscheduled = 0
        self.is_dying = False
        self.child: Child | None = None
        self.lines = Lines()
        self._deaths = list(deaths)

    @property
    def name(self) -> str:
        return f"{self.role} {self.number}" if SIZES[self.role] > 1 else str(self.role)

    def start(self, arguments: Sequence[str], log: Path) -> None:
        """Begin another life; one that ended by itself dies where it was to die."""
        self.lives += 1
        self.is_dying = False
        self.lines = Lines()
        death = self._deaths[0] if self._deaths else None
        fate = [] if death is None else ["--dies-at", death.point.name, "--after", str(death.after)]
        life = ["--life", f"{self.name} {self.lives}"]
        self.child = Child("pipeline.worker", str(self.role), *arguments, *life, *fate, log=log)

    def dies(self) -> None:
        """It has said that it is about to be killed, as scheduled."""
        self.is_dying = True
        self._deaths.pop(0)

    def remove(self) -> None:
        """Leave nothing of it."""
        if self.child is not None:
            self.child.remove()
            self.child = None


class Pipeline:
    """The whole shop, from the first order to the audit.

    Arguments:
        seed: of the orders, of what comes twice, and of the deaths.
        orders: how many.
        folder: where everything is kept; it must not be there yet.
        deaths: of whom, where and when; by default as the seed has it.
    """

    def __init__(self, seed: int, orders: int, folder: Path, deaths: Schedule | None = None) -> None:
        folder.mkdir(parents=True)
        self.intents = shop.intents(seed, orders)
        self.places = Places(folder)
        self.kills = self.duplicates = 0
        self.complaints: list[str] = []
        self._arguments = ["--folder", str(folder), "--seed", str(seed), "--orders", str(orders)]
        self._log = folder / "workers.log"
        planned = schedule(seed) if deaths is None else deaths
        self._seats = [Seat(role, number, fates) for (role, number), fates in planned.items()]

    @property
    def processes(self) -> list[int]:
        """The processes that run now."""
        return [seat.child.process.pid for seat in self._seats if seat.child is not None]

    @property
    def deadline(self) -> float:
        """Seconds after which the pipeline is given up; it needs far fewer."""
        return 90.0 + 0.5 * len(self.intents)

    def open(self) -> None:
        """Make what the services keep, and start them."""
        shop.furnish(self.places, self.intents)
        for seat in self._seats:
            seat.start(self._arguments, self._log)

    def turn(self) -> None:
        """Hear what the processes say, and replace those that have ended."""
        pipes = {seat.child.pipe: seat for seat in self._seats if seat.child is not None}
        for pipe in wait(list(pipes), TICK):
            assert isinstance(pipe, int)
            self._hear(pipes[pipe], os.read(pipe, 65536))

    def _hear(self, seat: Seat, data: bytes) -> None:
        for message in seat.lines.feed(data):
            match message["say"]:
                case Say.DYING:
                    seat.dies()
                case Say.COPIED:
                    self.duplicates += message["number"]
        if not data:
            self._ended(seat)

    def _ended(self, seat: Seat) -> None:
        child = seat.child
        assert child is not None
        seat.remove()
        if seat.is_dying:
            self.kills += 1
        else:
            seat.unscheduled += 1
            self.complaints.append(f"pipeline, {seat.name}: ended by itself: {child.last_words()}")
            if seat.unscheduled == MOST_UNSCHEDULED:
                raise DemoError(f"{seat.name} of the pipeline does not stay: {child.last_words()}")
        seat.start(self._arguments, self._log)

    def progress(self) -> tuple[int, int, int]:
        """Count the orders that were taken, taken from the stock, and mailed."""
        taken = _count(path_of(self.places.orders), "SELECT count(*) FROM orders")
        applied = _count(path_of(self.places.inventory), "SELECT count(DISTINCT order_id) FROM applied")
        return taken, applied, self.places.mailbox.read_bytes().count(b"\n")

    def is_over(self) -> bool:
        """Tell whether every order has gone all the way, and nothing is left in outbox and queues, not even a copy."""
        return (
            min(self.progress()) >= len(self.intents)
            and not _count(path_of(self.places.orders), "SELECT count(*) FROM retrysafe_outbox")
            and not _count(str(self.places.broker), "SELECT count(*) FROM deliveries")
        )

    def close(self) -> None:
        """Let the processes end by themselves, when they have finished what they have begun."""
        children = [(seat, seat.child) for seat in self._seats if seat.child is not None]
        for _, child in children:
            child.hang_up()
        for seat, child in children:
            if not child.finish():
                self.complaints.append(f"pipeline, {seat.name}: did not end when told to: {child.last_words()}")

    def remove(self) -> None:
        """Leave no process behind, whatever has happened."""
        for seat in self._seats:
            with suppress(OSError):
                seat.remove()

    def audited(self) -> PipelineCount:
        """Audit the books."""
        count = audit.audit(self.intents, audit.read(self.places))
        return count._replace(kills=self.kills, duplicates=self.duplicates)


def _count(path: str, sql: str) -> int:
    with closing(sqlite3.connect(path, timeout=10.0)) as file:
        return int(file.execute(sql).fetchone()[0])


def run(pipeline: Pipeline, tell: Callable[[Pipeline], None]) -> PipelineCount:
    """Run the pipeline to its end and audit it. Whatever happens, no process is left behind.

    One that does not come to its end is audited all the same: what it has not done by now is lost.
    """
    try:
        pipeline.open()
        deadline = time.monotonic() + pipeline.deadline
        while not pipeline.is_over():
            pipeline.turn()
            tell(pipeline)
            if time.monotonic() > deadline:
                pipeline.complaints.append("pipeline: it did not come to its end in time")
                break
        pipeline.close()
        return pipeline.audited()
    finally:
        pipeline.remove()
