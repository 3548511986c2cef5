"""Random schedules of attempts at one run: any of them stops for ever, or goes on after others have taken over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextvars import Context, ContextVar
from random import Random
from typing import Any

import greenlet
import pytest

from retrysafe import Boundary, InProgress, LeaseLost, OutcomeUnknown, StoredFailure, current
from retrysafe.backends.driver import run
from retrysafe.backends.memory.store import Kept
from retrysafe.claims import step_programs
from retrysafe.protocol.records import Record
from retrysafe.protocol.requests import Ask, ask
from tests.proving.effort import effort
from tests.steps.kills import Killed, key

ENDS = (ValueError, StoredFailure, OutcomeUnknown, LeaseLost, InProgress, Killed)


class Attempt:
    """One attempt in a greenlet of its own, which moves from one boundary to the next when it is told to."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.ended, self.outcome, self._killed = False, None, False
        self._work, self._greenlet = work, greenlet.greenlet(self._run)
        self._greenlet.gr_context = Context()

    def _run(self) -> None:
        _moving.set(self)
        try:
            self.outcome = self._work()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.outcome = error
        self.ended = True

    def stand(self) -> None:
        self._greenlet.parent.switch()
        if self._killed:
            raise Killed

    def move(self) -> None:
        self._greenlet.switch()

    def finish(self) -> Any:
        while not self.ended:
            self.move()
        assert not isinstance(self.outcome, BaseException) or isinstance(self.outcome, ENDS), repr(self.outcome)
        return self.outcome

    def kill(self) -> None:
        self._killed = True
        self.finish()


_moving: ContextVar[Attempt | None] = ContextVar("moving", default=None)


def stand() -> None:
    attempt = _moving.get()
    if attempt is not None:
        attempt.stand()


class World:
    """Providers: of calls with one key the first counts; the mail has no key."""

    def __init__(self) -> None:
        self.made: dict[tuple[str, str], bool] = {}
        self.mails = 0

    def book(self, name: str) -> str:
        place = name, current().key_for("provider")
        stand()
        self.made.setdefault(place, True)
        stand()
        return place[1]

    def cancel(self, booked: str) -> None:
        stand()
        for place in self.made:
            if place[1] == booked:
                self.made[place] = False
        stand()

    def mail(self) -> None:
        stand()
        self.mails += 1
        stand()


def _lapse(records: dict[bytes, Record], now: int) -> None:
    """Let the leases end; the beginning of the work stays, which ageing would move."""
    for key_hash, record in records.items():
        records[key_hash] = record._replace(lease_until=min(record.lease_until, now - 1))


def _forget(records: Kept, now: int) -> None:
    """Empty the store, whose time to read the steps of a work grows with all that it has."""
    records.clear()
    records.steps.clear()


def _run_of(boundary: Boundary, world: World, trip: str, *, fails: bool) -> Callable[[], Any]:
    def fail() -> None:
        raise ValueError("no car")

    def work() -> Any:
        with boundary.claim(trip) as claim:
            if not claim.replayed:
                for name in ("flight", "hotel"):
                    claim.step(name, world.book, name, undo=world.cancel)
                claim.step("mail", world.mail, effects="external")
                for line in ("red", "blue"):
                    claim.step("line", world.book, line, each=line, undo=world.cancel)
                if fails:
                    claim.step("car", fail)
                claim.result = "booked"
            return claim.result

    return work


@pytest.mark.slow
@pytest.mark.parametrize("part", range(effort(1, 100)))
def test_a_schedule_of_attempts_ends_booked_undone_or_unknown(
    part: int, monkeypatch: pytest.MonkeyPatch, chance: Random
) -> None:
    boundary = Boundary("trips", store="memory://", effects="keyed", permanent=ValueError, observers=[])
    backend = boundary.entrypoint.backend
    monkeypatch.setattr(
        step_programs, "run", lambda program, execute: run(program, lambda request: (stand(), execute(request))[1])
    )
    ends: Counter[str] = Counter()

    def take_over(work: Callable[[], Any]) -> Attempt:
        run(ask(Ask(_lapse, lambda answer: None)), backend.client())
        return Attempt(work)

    for number in range(effort(300, 1_000)):
        world, trip, fails = World(), key(), chance.random() < 0.5
        work = _run_of(boundary, world, trip, fails=fails)
        attempts = [Attempt(work)]
        for _ in range(chance.randrange(60)):
            moving = chance.choice(attempts)
            if not moving.ended:
                moving.move()
            if len(attempts) < 3 and chance.random() < 0.08:
                attempts.append(take_over(work))
        late = [one for one in attempts if not one.ended and chance.random() < 0.5]
        last = take_over(work).finish()
        for zombie in late:
            zombie.finish()
        again = take_over(work).finish()
        schedule = f"schedule {number}: {fails=} {last=} {again=} {world.made} {world.mails}"
        assert world.mails <= 1, schedule
        assert len({name for name, _ in world.made}) == len(world.made), f"a step has one key: {schedule}"
        if isinstance(again, OutcomeUnknown):
            ends["unknown"] += 1
        elif fails:
            ends["undone"] += 1
            assert isinstance(again, ValueError | StoredFailure), schedule
            assert not any(world.made.values()), schedule
        else:
            ends["booked"] += 1
            assert again == "booked", schedule
            assert all(world.made.values()), schedule
            assert (len(world.made), world.mails) == (4, 1), schedule
        for one in attempts:
            one.kill()
        run(ask(Ask(_forget, lambda answer: None)), backend.client())
    boundary.close()
    assert min(ends.values()) > 0, ends
    assert len(ends) == 3, ends
