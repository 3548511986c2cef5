"""The transport of deliveries to a lane's workers, and of answers: the one difference of the demo's forms."""

from __future__ import annotations

from collections.abc import Container, Mapping
from enum import StrEnum
from typing import Protocol

from retrysafe_demo.attempts import Attempt
from retrysafe_demo.talk import Ending, How
from retrysafe_demo.workers import LONGEST_SILENCE, WORKERS, Workers

SEATS = range(1, WORKERS + 1)
"""The deliveries of a lane that can be on their way at once."""


class Form(StrEnum):
    """The work of the demo's workers: serve an API, or call a function."""

    HTTP = "http"
    FUNCTIONS = "functions"


class Post(Protocol):
    """Carries deliveries to workers."""

    patience: float
    """Seconds after which who waits for an answer does something about it."""
    longest_wait: float
    """Seconds after which a stopped worker goes on, also if nobody has taken its payment over."""

    def free(self, taken: Container[int]) -> list[int]:
        """The seats that can take a delivery."""
        ...

    def hand(self, attempt: Attempt) -> None:
        """Hand a delivery over."""
        ...

    def sources(self) -> Mapping[int, Attempt]:
        """The descriptors from which answers come, beside the workers' pipes."""
        ...

    def read(self, attempt: Attempt) -> Ending | None:
        """Read from its descriptor; the answer, once it is complete."""
        ...

    def broken(self, attempt: Attempt) -> Ending | None:
        """The worker has died; what that means for who waits, if it is known here."""
        ...

    def give_up(self, attempt: Attempt) -> Ending | None:
        """Patience is at its end; the answer, if that is one."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


class Pipes:
    """Hands deliveries to workers over their own pipes; every worker is a seat, and answers over its pipe too."""

    patience = LONGEST_SILENCE
    longest_wait = 30.0

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def free(self, taken: Container[int]) -> list[int]:
        return [seat for seat in SEATS if seat not in taken and self._workers.is_ready(seat)]

    def hand(self, attempt: Attempt) -> None:
        attempt.worker = attempt.seat
        fault = attempt.fault.name if attempt.fault else None
        payment = attempt.delivery.payment.as_json()
        self._workers.tell(attempt.seat, {"attempt": attempt.number, "payment": payment, "fault": fault})

    def sources(self) -> Mapping[int, Attempt]:
        return {}

    def read(self, attempt: Attempt) -> Ending | None:
        return None

    def broken(self, attempt: Attempt) -> Ending | None:
        return Ending(How.BROKEN)

    def give_up(self, attempt: Attempt) -> Ending | None:
        self._workers.kill(attempt.worker)
        return None

    def close(self) -> None: ...
