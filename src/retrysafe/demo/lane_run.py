"""One lane at work: a bank, four workers, the queue between them, and what has happened so far."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from retrysafe.demo import talk
from retrysafe.demo.broker import Broker, Delivery
from retrysafe.demo.lanes import LEASE, Lane, Setting, keys_table
from retrysafe.demo.payments import Payment
from retrysafe.demo.processes import STARTING, Child, DemoError
from retrysafe.demo.schedule import KILLS, PAUSES, Fault, Schedule
from retrysafe.demo.talk import Ending, How, Lines, Say

WORKERS = 4
MOST_PAUSED = 2
"""How many workers may be stopped at once; the others keep the lane going."""
LONGEST_PAUSE = 30.0
LONGEST_SILENCE = 20.0
"""Seconds after which a stopped worker goes on in any case, and a silent one is replaced."""
MOST_STILLBORN = 3
LAST_EVENTS = 50


class Event(NamedTuple):
    """Something worth showing."""

    at: float
    lane: Lane
    payment: str
    worker: int
    what: str


class Worker:
    """A worker as the coordinator sees it."""

    def __init__(self, number: int, child: Child, now: float) -> None:
        self.number = number
        self.child = child
        self.lines = Lines()
        self.delivery: Delivery | None = None
        self.state = "starting"
        self.since = now

    def turn(self, state: str, now: float) -> None:
        """Change the state."""
        self.state = state
        self.since = now


class LaneRun:
    """Runs one lane from its first delivery to its last answer. Never blocks, except to start the bank."""

    def __init__(
        self, lane: Lane, payments: Sequence[Payment], faults: Schedule, folder: Path, setting: Setting
    ) -> None:
        folder.mkdir(parents=True)
        self.lane = lane
        self.intents = len(payments)
        self.ledger = folder / "bank-ledger.jsonl"
        self.counts: Counter[str] = Counter()
        self.events: deque[Event] = deque(maxlen=LAST_EVENTS)
        self.broker = Broker(payments, faults)
        self.workers: list[Worker] = []
        self.complaints: list[str] = []
        self._folder = folder
        self._stillborn = 0
        keys_file = str(folder / "naive-keys.db") if lane is Lane.NAIVE else ""
        if keys_file:
            keys_table(keys_file).close()
        self._setting = setting._replace(lane=lane, keys_file=keys_file)
        without = [] if setting.bank_has_keys else ["--without-keys"]
        self.bank = Child("bank", "--ledger", str(self.ledger), *without, log=folder / "bank.log")

    def open(self, now: float) -> None:
        """Wait until the bank serves, and start the workers."""
        ready, _, _ = select.select([self.bank.pipe], [], [], STARTING)
        line = os.read(self.bank.pipe, 100) if ready else b""
        if not line.strip().isdigit():
            raise DemoError(f"the bank did not start: {self.bank.last_words()}")
        self._setting = self._setting._replace(bank_port=int(line))
        for number in range(1, WORKERS + 1):
            self.workers.append(self._start(number, now))

    def _start(self, number: int, now: float) -> Worker:
        worker = Worker(number, Child("worker", log=self._folder / f"worker-{number}.log"), now)
        worker.child.tell(talk.pack(self._setting._asdict()))
        return worker

    # ------------------------------------------------------------ what the workers say

    def hear(self, worker: Worker, now: float) -> None:
        """Read what a worker has said; the end of its pipe means that it is dead, and it is replaced."""
        data = os.read(worker.child.pipe, 65536)
        for message in worker.lines.feed(data):
            self._heard(worker, message, now)
        if not data:
            self._replace(worker, now)

    def _heard(self, worker: Worker, message: dict[str, Any], now: float) -> None:
        match message["say"]:
            case Say.READY:
                self._stillborn = 0
                worker.turn("idle", now)
            case Say.REACHED:
                self._reached(worker, now)
            case Say.PAUSING:
                delivery = self._at_work(worker)
                worker.turn("paused", now)
                self.counts["pauses"] += 1
                self.broker.put_off(delivery.payment.id, now + LEASE)
                self._note(worker, delivery, delivery.fault.value if delivery.fault else "the worker is stopped")
            case Say.RESUMED:
                worker.turn("working", now)
                self._note(worker, self._at_work(worker), "the stopped worker goes on")
            case Say.KILLED:
                self._killed(worker, now)
            case Say.ENDED:
                self._ended(worker, talk.ending_of(message), now)

    def _reached(self, worker: Worker, now: float) -> None:
        delivery = self._at_work(worker)
        self.broker.reached(delivery)
        self.counts["attempts"] += 1
        if delivery.fault is Fault.CONCURRENT:
            worker.turn("at the gate", now)

    def _ended(self, worker: Worker, ending: Ending, now: float) -> None:
        delivery = self._at_work(worker)
        worker.delivery = None
        worker.turn("idle", now)
        self.broker.ended(delivery, ending, now)
        self._count(worker, delivery, ending)

    def _count(self, worker: Worker, delivery: Delivery, ending: Ending) -> None:
        if ending.how is How.DONE:
            if ending.replayed:
                self.counts["replays"] += 1
                self._note(worker, delivery, "answered from the record")
        else:
            self.counts[ending.how.name.lower()] += 1
            self._note(worker, delivery, ending.how.value)
        if "takeover" in ending.told:
            self.counts["takeovers"] += 1
            self._note(worker, delivery, "taken over from an attempt that had died or stalled")
        if ending.recognised:
            self.counts["recognised"] += 1
            self._note(worker, delivery, "the bank recognised the key and did not charge again")
        if ending.how in (How.FAILED, How.UNAVAILABLE):
            self._complain(worker, f"{delivery.payment.id}: {ending.how.value}: {ending.why}")

    def _killed(self, worker: Worker, now: float) -> None:
        """What a killed worker was busy with is delivered again; its supervisor has forked another."""
        delivery, worker.delivery = worker.delivery, None
        worker.turn("starting", now)
        if delivery is None:
            return
        self.counts["kills"] += 1
        if delivery.fault not in KILLS:
            self._complain(worker, f"{delivery.payment.id}: died by itself: {worker.child.last_words()}")
        self._note(worker, delivery, delivery.fault.value if delivery.fault else "the worker died")
        self.broker.again(delivery.payment.id)

    def _replace(self, worker: Worker, now: float) -> None:
        """The supervisor is gone too: start another."""
        worker.child.remove()
        if worker.state == "starting":
            self._stillborn += 1
            if self._stillborn >= MOST_STILLBORN:
                raise DemoError(f"the workers of lane {self.lane} do not start: {worker.child.last_words()}")
        self._killed(worker, now)
        self.workers[self.workers.index(worker)] = self._start(worker.number, now)

    @staticmethod
    def _at_work(worker: Worker) -> Delivery:
        if worker.delivery is None:
            raise DemoError(f"worker {worker.number} spoke of a delivery that it has not got")
        return worker.delivery

    def _complain(self, worker: Worker, what: str) -> None:
        """Keep what no schedule has asked for; it is shown after the audit."""
        self.complaints.append(f"{self.lane}, worker {worker.number}: {what}")

    def _note(self, worker: Worker, delivery: Delivery, what: str) -> None:
        self.events.append(Event(time.monotonic(), self.lane, delivery.payment.id, worker.number, what))

    # ------------------------------------------------------------ what the workers are told

    def turn(self, now: float) -> None:
        """Hand out deliveries, open gates, let stopped workers go on, replace silent ones."""
        for worker in self.workers:
            quiet = now - worker.since
            if worker.state == "paused" and (self._is_over(worker) or quiet > LONGEST_PAUSE):
                worker.child.signal(signal.SIGCONT)  # again at every turn until it says that it goes on
            elif worker.state in ("starting", "working", "past the gate") and quiet > LONGEST_SILENCE:
                self._complain(worker, f"silent for {LONGEST_SILENCE:.0f} s and replaced")
                worker.turn(worker.state, now)
                worker.child.signal(signal.SIGKILL)
        self._open_gates(now)
        self._hand_out(now)
        if self.bank.process.poll() is not None:
            raise DemoError(f"the bank of lane {self.lane} has died: {self.bank.last_words()}")

    def _open_gates(self, now: float) -> None:
        """Let those before the charge go on together, once nobody is on the way to join them."""
        waiting = [worker for worker in self.workers if worker.state == "at the gate"]
        on_the_way = [worker.delivery for worker in self.workers if worker.state == "working"]
        for worker in waiting:
            if worker.delivery not in on_the_way:
                worker.turn("past the gate", now)
                worker.child.tell(talk.pack({"go": True}))

    def _hand_out(self, now: float) -> None:
        while idle := [worker for worker in self.workers if worker.state == "idle"]:
            paused = sum(
                worker.state == "paused" or (worker.delivery is not None and worker.delivery.fault in PAUSES)
                for worker in self.workers
            )
            deliveries = self.broker.take(now, idle=len(idle), may_pause=paused < MOST_PAUSED)
            if not deliveries:
                return
            self.counts["duplicates"] += len(deliveries) - 1
            for worker, delivery in zip(idle, deliveries, strict=False):
                worker.delivery = delivery
                worker.turn("working", now)
                fault = delivery.fault.name if delivery.fault else None
                worker.child.tell(talk.pack({"payment": delivery.payment.as_json(), "fault": fault}))

    def _is_over(self, paused: Worker) -> bool:
        return self.broker.is_settled(self._at_work(paused).payment.id)

    # ------------------------------------------------------------ the end

    @property
    def is_over(self) -> bool:
        """Whether every payment is settled and every worker has nothing more to say."""
        return self.broker.is_empty and all(worker.state in ("idle", "starting") for worker in self.workers)

    def close(self) -> None:
        """Let workers and bank end by themselves; the bank first finishes what it has begun."""
        for worker in self.workers:
            worker.child.hang_up()
        for worker in self.workers:
            worker.child.finish()
        self.bank.hang_up()
        if not self.bank.finish():
            raise DemoError(f"the bank of lane {self.lane} did not end: {self.bank.last_words()}")

    def remove(self) -> None:
        """Leave no process behind, whatever has happened."""
        for child in [*(worker.child for worker in self.workers), self.bank]:
            with contextlib.suppress(OSError):
                child.remove()
