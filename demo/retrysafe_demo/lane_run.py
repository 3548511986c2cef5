"""One lane at work: a bank, four workers, the queue between them, and what has happened so far."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import NamedTuple

from retrysafe_demo import talk
from retrysafe_demo.attempts import Attempt, Stage
from retrysafe_demo.broker import Broker, Delivery
from retrysafe_demo.connections import Connections
from retrysafe_demo.lanes import LEASE, Lane, Setting, keys_table
from retrysafe_demo.ledger_tail import LedgerTail
from retrysafe_demo.payments import Payment
from retrysafe_demo.posts import Form, Pipes, Post
from retrysafe_demo.processes import STARTING, Child, DemoError
from retrysafe_demo.schedule import PAUSES, Fault, Schedule
from retrysafe_demo.talk import Ending, How, Message, Say
from retrysafe_demo.workers import Worker, Workers

MOST_PAUSED = 2
"""The number of workers that may be stopped at once; the others keep the lane going."""
LAST_EVENTS = 50
Hear = Callable[[float], None]


class Event(NamedTuple):
    """Something worth showing."""

    at: float
    lane: Lane
    payment: str
    who: str
    what: str


class LaneRun:
    """Runs one lane from its first delivery to its last answer. Never blocks, except to start the bank."""

    def __init__(
        self, lane: Lane, payments: Sequence[Payment], faults: Schedule, folder: Path, setting: Setting, form: Form
    ) -> None:
        folder.mkdir(parents=True)
        self.lane = lane
        self.intents = len(payments)
        self.ledger = folder / "bank-ledger.jsonl"
        self._tail = LedgerTail(self.ledger)
        self.counts: Counter[str] = Counter()
        self.events: deque[Event] = deque(maxlen=LAST_EVENTS)
        self.broker = Broker(payments, faults)
        self.complaints: list[str] = []
        self._workers = Workers(lane, self._complain)
        self._post: Post = Pipes(self._workers)
        self._numbers = itertools.count(1)
        self._attempts: dict[int, Attempt] = {}
        self._cared_for: dict[int, Attempt] = {}
        self._folder = folder
        self._setting = setting._replace(lane=lane)
        if lane is Lane.NAIVE:
            self._setting = self._setting._replace(keys_file=str(folder / "naive-keys.db"))
            keys_table(self._setting.keys_file).close()
        if form is Form.HTTP:
            self._post = clients = Connections(self._workers, f"{setting.run} {lane}")
            self._setting = self._setting._replace(listener=clients.listener)
        without = [] if setting.bank_has_keys else ["--without-keys"]
        self.bank = Child("bank", "--ledger", str(self.ledger), *without, log=folder / "bank.log")

    @property
    def processes(self) -> list[int]:
        """The processes of the lane: of the bank, of the supervisor and of its workers."""
        supervisor = self._workers.supervisor
        started = [self.bank] if supervisor is None else [self.bank, supervisor]
        return [child.process.pid for child in started] + [w.process for w in self._workers.all if w.is_ready]

    def open(self) -> None:
        """Wait until the bank serves, and start the workers."""
        ready = wait([self.bank.pipe], STARTING)
        line = os.read(self.bank.pipe, 100) if ready else b""
        if not line.strip().isdigit():
            raise DemoError(f"the bank did not start: {self.bank.last_words()}")
        self._workers.open(self._setting._replace(bank_port=int(line)), self._folder / "workers.log")

    # ------------------------------------------------------------ what workers and connections say

    def sources(self) -> dict[int, Hear]:
        """Descriptors to listen to, and who hears them.

        The workers come first: what one has said of an attempt is heard before the answer that it sent afterwards.
        """
        workers: dict[int, Hear] = {worker.pipe: partial(self._hear, worker) for worker in self._workers.all}
        return workers | {pipe: partial(self._read, attempt) for pipe, attempt in self._post.sources().items()}

    def _hear(self, worker: Worker, now: float) -> None:
        for message in self._workers.hear(worker):
            if message["say"] == Say.KILLED:
                self._lost(worker, now)
                continue
            attempt = self._attempts.get(message["attempt"])
            if attempt is None:
                raise DemoError(f"worker {worker.number} spoke of an attempt that was never made")
            attempt.worker = worker.number
            self._heard(attempt, message, now)
            self._care(attempt)

    def _read(self, attempt: Attempt, now: float) -> None:
        ending = self._post.read(attempt)
        if ending is not None:
            self._ended(attempt, ending, now)

    def _heard(self, attempt: Attempt, message: Message, now: float) -> None:
        match message["say"]:
            case Say.REACHED:
                self._reached(attempt, now)
            case Say.PAUSING:
                attempt.turn(Stage.PAUSED, now)
                self.counts["pauses"] += 1
                self.broker.put_off(attempt.name, now + LEASE)
                self._note(attempt, attempt.fault or "the worker is stopped")
            case Say.RESUMED:
                attempt.turn(Stage.WORKING, now)
                self._note(attempt, "the stopped worker goes on")
            case Say.DYING:
                self.counts["kills"] += 1
                self._note(attempt, attempt.fault or "the worker dies")
            case Say.RECOGNISED:
                self.counts["recognised"] += 1
                self._note(attempt, "the bank recognised the key and did not charge again")
            case Say.TAKEOVER:
                self.counts["takeovers"] += 1
                self._note(attempt, "taken over from an attempt that had died or stalled")
            case Say.FENCED:
                self.counts["fenced"] += 1
                self._note(attempt, "came back too late: the key is another's by now")
            case Say.ENDED:
                self._ended(attempt, talk.ending_of(message), now)

    def _reached(self, attempt: Attempt, now: float) -> None:
        attempt.reached = True
        self.broker.reached(attempt.delivery)
        self.counts["attempts"] += 1
        if attempt.fault is Fault.CONCURRENT:
            attempt.turn(Stage.AT_THE_GATE, now)

    def _ended(self, attempt: Attempt, ending: Ending, now: float) -> None:
        attempt.ended = True
        self._care(attempt)
        self.broker.ended(attempt.delivery, ending, now)
        if ending.how is How.DONE:
            if ending.replayed:
                self.counts["replays"] += 1
                self._note(attempt, "answered from the record")
        else:
            self.counts[ending.how.name.lower()] += 1
            self._note(attempt, ending.how.value)
        if ending.how is How.FAILED or (ending.how is How.UNAVAILABLE and not self._pauses()):
            self._complain(attempt.who, f"{attempt.name}: {ending.how.value}: {ending.why}")

    def _lost(self, worker: Worker, now: float) -> None:
        """Note a killed worker's work as unanswered; its supervisor has forked another."""
        for attempt in [found for found in self._cared_for.values() if found.worker == worker.number]:
            attempt.turn(Stage.LOST, now)
            ending = None if attempt.ended else self._post.broken(attempt)
            if ending is not None:
                self._ended(attempt, ending, now)
            self._care(attempt)

    def _care(self, attempt: Attempt) -> None:
        """Keep the attempts at hand that need it."""
        if attempt.needs_care:
            self._cared_for[attempt.number] = attempt
        else:
            self._cared_for.pop(attempt.number, None)

    def _complain(self, who: str, what: str) -> None:
        """Keep what no schedule has asked for; it is shown after the audit."""
        self.complaints.append(f"{self.lane}, {who}: {what}")

    def look(self) -> None:
        """Note what the bank has charged again since the last look."""
        for payment in self._tail.charged_again():
            self.events.append(Event(time.monotonic(), self.lane, payment, "bank", "CHARGED AGAIN"))

    @property
    def charged_twice(self) -> int:
        """The number of payments that the bank has charged twice or more, as far as its ledger was read."""
        return self._tail.charged_twice

    def _note(self, attempt: Attempt, what: str) -> None:
        self.events.append(Event(time.monotonic(), self.lane, attempt.name, attempt.who, what))

    # ------------------------------------------------------------ what the workers are told

    def turn(self, now: float) -> None:
        """Hand out deliveries, open gates, let stopped workers go on, wait for none too long."""
        for attempt in list(self._cared_for.values()):
            quiet = now - attempt.since
            if attempt.stage is Stage.PAUSED:
                if self.broker.is_settled(attempt.name) or quiet > self._post.longest_wait:
                    self._workers.wake(attempt.worker)  # again at every turn until it says that it goes on
            elif attempt.stage is not Stage.AT_THE_GATE and quiet > self._post.patience:
                attempt.since = now
                ending = self._post.give_up(attempt)
                if ending is not None:
                    self._ended(attempt, ending, now)
        self._open_gates(now)
        self._hand_out(now)
        self.look()
        if self.bank.process.poll() is not None:
            raise DemoError(f"the bank of lane {self.lane} has died: {self.bank.last_words()}")

    def _open_gates(self, now: float) -> None:
        """Let those before the charge go on together, once nobody is on the way to join them."""
        attempts = list(self._cared_for.values())
        on_the_way = [attempt.delivery for attempt in attempts if attempt.stage is Stage.WORKING]
        for attempt in attempts:
            if attempt.stage is Stage.AT_THE_GATE and attempt.delivery not in on_the_way:
                attempt.turn(Stage.PAST_THE_GATE, now)
                self._workers.tell(attempt.worker, {"go": attempt.number})
                self._care(attempt)

    def _hand_out(self, now: float) -> None:
        while True:
            waited_for = [attempt for attempt in self._cared_for.values() if not attempt.ended]
            seats = self._post.free({attempt.seat for attempt in waited_for})
            may_pause = self._pauses() < MOST_PAUSED
            deliveries = self.broker.take(now, idle=len(seats), may_pause=may_pause) if seats else []
            if not deliveries:
                return
            self.counts["duplicates"] += len(deliveries) - 1
            for seat, delivery in zip(seats, deliveries, strict=False):
                self._hand(seat, delivery, now)

    def _pauses(self) -> int:
        """Count the workers that are stopped, or will be; a store may have to wait for a write of theirs."""
        return sum(a.stage is Stage.PAUSED or a.fault in PAUSES for a in self._cared_for.values())

    def _hand(self, seat: int, delivery: Delivery, now: float) -> None:
        attempt = Attempt(next(self._numbers), seat, delivery, now)
        self._attempts[attempt.number] = attempt
        self._care(attempt)
        self._post.hand(attempt)

    # ------------------------------------------------------------ the end

    @property
    def is_over(self) -> bool:
        """True if every payment is settled and no attempt is waited for."""
        return self.broker.is_empty and not self._cared_for

    def close(self) -> None:
        """Let workers and bank end by themselves; the bank first finishes what it has begun."""
        self._workers.close()
        self.bank.hang_up()
        if not self.bank.finish():
            raise DemoError(f"the bank of lane {self.lane} did not end: {self.bank.last_words()}")
        self.look()

    def remove(self) -> None:
        """Leave no process behind, whatever has happened."""
        self._post.close()
        with contextlib.suppress(OSError):
            self._workers.remove()
        with contextlib.suppress(OSError):
            self.bank.remove()
