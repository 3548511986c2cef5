"""A queue that delivers at least once: who has not answered will be asked again.

Pure: time comes in as an argument, and nothing is read or written.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

from retrysafe_demo.payments import Payment
from retrysafe_demo.schedule import PAUSES, Fault, Schedule
from retrysafe_demo.talk import Ending, How

BUSY_RETRY = 0.25
"""Seconds after which a delivery is tried again that met a store without an answer, or an error."""
MOST_ERRORS = 5
"""After so many unexpected errors a payment is given up, and the audit finds it."""


class Delivery(NamedTuple):
    """A payment handed to a worker, and what will go wrong."""

    payment: Payment
    number: int
    fault: Fault | None


class Broker:
    """Decides which payment is delivered next, and keeps those that are settled.

    The faults of a payment strike one after another: the next is due once a delivery has come as far
    as the charge. A delivery that was turned away before, because another attempt is running, does not count.
    What is delivered again goes before what has not been delivered yet.
    """

    def __init__(self, payments: Sequence[Payment], faults: Schedule) -> None:
        self._payments = {payment.id: payment for payment in payments}
        self._faults = faults
        self._reached: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._ready = deque(self._payments)
        self._later: list[tuple[float, str]] = []
        self._queued = set(self._payments)
        self.done: set[str] = set()
        self.uncertain: set[str] = set()

    @property
    def settled(self) -> int:
        """The number of payments that are done or declared uncertain."""
        return len(self.done) + len(self.uncertain)

    @property
    def is_empty(self) -> bool:
        """True if nothing waits to be delivered."""
        return not self._queued

    def is_settled(self, name: str) -> bool:
        """Tell whether the payment needs no further delivery."""
        return name in self.done or name in self.uncertain

    def next_due(self) -> float | None:
        """Return the time at which a postponed delivery is due; None if there is none."""
        return self._later[0][0] if self._later else None

    def take(self, now: float, *, idle: int, may_pause: bool) -> list[Delivery]:
        """One delivery for an idle worker, the same for two of them, or none.

        A pair waits until two workers are idle, and everything behind it with it; a delivery that will
        be stopped waits until ``may_pause``, and lets others pass.
        """
        while self._later and self._later[0][0] <= now:
            self._ready.appendleft(heapq.heappop(self._later)[1])
        for position, name in enumerate(self._ready):
            delivery = self._delivery(name)
            if delivery.fault in PAUSES and not may_pause:
                continue
            copies = 2 if delivery.fault is Fault.CONCURRENT else 1
            if copies > idle:
                return []
            del self._ready[position]
            self._queued.discard(name)
            return [delivery] * copies
        return []

    def reached(self, delivery: Delivery) -> None:
        """The delivery has come as far as the charge: its fault is used up."""
        name = delivery.payment.id
        self._reached[name] = max(self._reached[name], delivery.number + 1)

    def ended(self, delivery: Delivery, ending: Ending, now: float) -> None:
        """An attempt has been answered, or will not be."""
        name = delivery.payment.id
        match ending.how:
            case How.DONE:
                self.uncertain.discard(name)
                self.done.add(name)
            case How.UNCERTAIN:
                if name not in self.done:
                    self.uncertain.add(name)
            case How.CONFLICT:
                self.put_off(name, now + ending.retry_after)
            case How.RETRY | How.BROKEN | How.TIMEOUT:
                self.again(name)
            case How.UNAVAILABLE:
                self.put_off(name, now + BUSY_RETRY)
            case How.FAILED:
                self._errors[name] += 1
                if self._errors[name] < MOST_ERRORS and not self.is_settled(name):
                    self.put_off(name, now + BUSY_RETRY)

    def again(self, name: str) -> None:
        """Deliver once more at once, if the payment is not settled."""
        if not self.is_settled(name) and name not in self._queued:
            self._queued.add(name)
            self._ready.appendleft(name)

    def put_off(self, name: str, due: float) -> None:
        """Deliver once more at ``due``, even if it is settled by then: whoever asked gets an answer."""
        if name not in self._queued:
            self._queued.add(name)
            heapq.heappush(self._later, (due, name))

    def _delivery(self, name: str) -> Delivery:
        number, faults = self._reached[name], self._faults.get(name, ())
        return Delivery(self._payments[name], number, faults[number] if number < len(faults) else None)
