"""Every standing × every event × right and wrong guards, on every store, against the transition table."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from retrysafe.core.transitions import Event
from retrysafe.types import Standing
from tests.stores.harnesses import AnyHarness
from tests.stores.lockstep import OWNER_EVENTS, SEEN_EVENTS, Lockstep, World

LAPSE, EXPIRE, FORGET = 31.0, 3601.0, 7201.0


def settled_by(event: Event) -> Callable[[Lockstep], None]:
    def prepare(both: Lockstep) -> None:
        both.both("claim", lambda world: world.claim("first"))
        both.both(event, lambda world: world.settle(event))

    return prepare


def running(both: Lockstep) -> None:
    both.both("claim", lambda world: world.claim("first"))


def later(prepare: Callable[[Lockstep], None], seconds: float) -> Callable[[Lockstep], None]:
    def prepared(both: Lockstep) -> None:
        prepare(both)
        both.both("time", lambda world: world.elapse(seconds))

    return prepared


PREPARE: dict[Standing, list[Callable[[Lockstep], None]]] = {
    Standing.ABSENT: [lambda both: None],
    Standing.RUNNING: [running],
    Standing.LAPSED: [later(running, LAPSE), later(running, 10 * FORGET)],
    Standing.COMPLETED: [settled_by(Event.COMPLETE)],
    Standing.FAILED: [settled_by(Event.FAIL)],
    Standing.UNKNOWN: [settled_by(Event.DOUBT), later(settled_by(Event.DOUBT), 10 * FORGET)],
    Standing.RELEASED: [settled_by(Event.RELEASE)],
    Standing.EXPIRED: [later(settled_by(event), EXPIRE) for event in (Event.COMPLETE, Event.FAIL, Event.RELEASE)],
    Standing.FORGOTTEN: [later(settled_by(event), FORGET) for event in (Event.COMPLETE, Event.FAIL, Event.RELEASE)],
}

Act = Callable[[World], object]


def right_owner(world: World) -> None:
    """The guard as it is."""


def wrong_attempt(world: World) -> None:
    if world.held is not None:
        world.held = world.held._replace(attempt="somebody else")
    if world.seen is not None:
        world.seen = world.seen._replace(attempt="somebody else")


def wrong_number(world: World) -> None:
    if world.held is not None:
        world.held = world.held._replace(token=world.held.token - 1)
    if world.seen is not None:
        world.seen = world.seen._replace(version=world.seen.version - 1)


EVENTS: dict[str, Act] = {
    "claim": lambda world: world.claim("second"),
    "claim of the same attempt": lambda world: world.claim("first"),
    "take": lambda world: world.take("second"),
    "take with another payload": lambda world: world.take("second", b"other", "external"),
    "renew": lambda world: world.renew(),
    "sweep": lambda world: world.sweep(),
    **{event.value: (lambda world, event=event: world.settle(event)) for event in OWNER_EVENTS},
    **{event.value: (lambda world, event=event: world.resolve(event)) for event in SEEN_EVENTS},
}
GUARDS: tuple[Callable[[World], None], ...] = (right_owner, wrong_attempt, wrong_number)


@pytest.mark.parametrize("standing", Standing)
def test_every_event_agrees_with_the_table(standing: Standing, harness: AnyHarness) -> None:
    cases = 0
    for prepare, event, guard in product(PREPARE[standing], EVENTS, GUARDS):
        both = Lockstep(harness)
        prepare(both)
        both.look()
        for world in (both.real, both.model):
            guard(world)
        both.both(f"{event} at {standing} with {guard.__name__}", EVENTS[event])
        cases += 1
    assert cases >= len(EVENTS) * len(GUARDS)


def test_the_prepared_standings_are_what_they_say(harness: AnyHarness) -> None:
    for standing, prepares in PREPARE.items():
        for prepare in prepares:
            both = Lockstep(harness)
            prepare(both)
            record = both.model.read()
            found = Standing.ABSENT if record is None else record.standing
            assert found is standing or (found is Standing.ABSENT and standing is Standing.FORGOTTEN)
