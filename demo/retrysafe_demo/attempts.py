"""Attempts as the coordinator sees them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from retrysafe_demo.broker import Delivery
from retrysafe_demo.schedule import Fault


class Stage(StrEnum):
    """The progress of an attempt."""

    WORKING = "working"
    AT_THE_GATE = "at the gate"
    PAST_THE_GATE = "past the gate"
    PAUSED = "paused"
    LOST = "lost with its worker"


@dataclass(eq=False, slots=True)
class Attempt:
    """One delivery on its way.

    seat: which of the lane's places it takes, until it is answered.
    worker: the number of the worker that works on it, once that is known; 0 before.
    ended: whether it is answered, or will not be. Its worker may be busy with it all the same.
    """

    number: int
    seat: int
    delivery: Delivery
    since: float
    worker: int = 0
    stage: Stage = Stage.WORKING
    reached: bool = False
    ended: bool = False

    @property
    def fault(self) -> Fault | None:
        """The fault that is scheduled for it."""
        return self.delivery.fault

    @property
    def name(self) -> str:
        """The payment's id."""
        return self.delivery.payment.id

    @property
    def who(self) -> str:
        """The worker that is busy with it, as far as is known."""
        return f"worker {self.worker}" if self.worker else f"client {self.seat}"

    @property
    def needs_care(self) -> bool:
        """True if the coordinator has still something to do for it."""
        return not self.ended or self.stage in (Stage.AT_THE_GATE, Stage.PAUSED)

    def turn(self, stage: Stage, now: float) -> None:
        """Come to another stage."""
        self.stage = stage
        self.since = now
