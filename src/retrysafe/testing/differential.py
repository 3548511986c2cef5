"""Every standing × every event × right and wrong guards: what a store does about it, and what the transition table."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from retrysafe.protocol.records import EffectiveState
from retrysafe.protocol.transitions import Transition
from retrysafe.testing.bench import Harness
from retrysafe.testing.lockstep import OWNER_EVENTS, SEEN_EVENTS, Lockstep, World

LAPSE, EXPIRE, FORGET = 31.0, 3601.0, 7201.0
"""Seconds after which a lease, a window and a memory have ended."""

Prepare = Callable[[Lockstep], None]
Act = Callable[[World], object]


def check(harness: Harness, standing: EffectiveState) -> int:
    """Put every event to a record that stands so, and compare; returns how many cases there were."""
    cases = 0
    for prepare, event, guard in product(PREPARE[standing], EVENTS, GUARDS):
        both = Lockstep(harness)
        prepare(both)
        both.look()
        for world in (both.real, both.model):
            guard(world)
        both.both(f"{event} at {standing} with {guard.__name__}", EVENTS[event])
        cases += 1
    return cases


def check_prepared(harness: Harness) -> None:
    for standing, prepares in PREPARE.items():
        for prepare in prepares:
            both = Lockstep(harness)
            prepare(both)
            record = both.model.read()
            found = EffectiveState.ABSENT if record is None else record.effective_state
            assert found is standing or (found is EffectiveState.ABSENT and standing is EffectiveState.FORGOTTEN), (
                found,
                standing,
            )


def settle_by(event: Transition) -> Prepare:
    def prepare(both: Lockstep) -> None:
        both.both("claim", lambda world: world.claim("first"))
        both.both(event, lambda world: world.settle(event))

    return prepare


def running(both: Lockstep) -> None:
    both.both("claim", lambda world: world.claim("first"))


def later(prepare: Prepare, seconds: float) -> Prepare:
    """Return ``prepare``, followed by some time."""

    def prepare_and_wait(both: Lockstep) -> None:
        prepare(both)
        both.both("time", lambda world: world.elapse(seconds))

    return prepare_and_wait


_ENDINGS = (Transition.COMPLETE, Transition.FAIL, Transition.RELEASE)

PREPARE: dict[EffectiveState, list[Prepare]] = {
    EffectiveState.ABSENT: [lambda both: None],
    EffectiveState.RUNNING: [running],
    EffectiveState.LAPSED: [later(running, LAPSE), later(running, 10 * FORGET)],
    EffectiveState.COMPLETED: [settle_by(Transition.COMPLETE)],
    EffectiveState.FAILED: [settle_by(Transition.FAIL)],
    EffectiveState.UNKNOWN: [settle_by(Transition.DOUBT), later(settle_by(Transition.DOUBT), 10 * FORGET)],
    EffectiveState.RELEASED: [settle_by(Transition.RELEASE)],
    EffectiveState.EXPIRED: [later(settle_by(event), EXPIRE) for event in _ENDINGS],
    EffectiveState.FORGOTTEN: [later(settle_by(event), FORGET) for event in _ENDINGS],
}
"""The ways to come to each standing."""


def right_owner(world: World) -> None:
    """The guard as it is."""


def wrong_attempt(world: World) -> None:
    if world.ownership is not None:
        world.ownership = world.ownership._replace(attempt="somebody else")
    if world.seen is not None:
        world.seen = world.seen._replace(attempt="somebody else")


def wrong_number(world: World) -> None:
    """The guard of an earlier attempt."""
    if world.ownership is not None:
        world.ownership = world.ownership._replace(token=world.ownership.token - 1)
    if world.seen is not None:
        world.seen = world.seen._replace(version=world.seen.version - 1)


GUARDS: tuple[Callable[[World], None], ...] = (right_owner, wrong_attempt, wrong_number)

EVENTS: dict[str, Act] = {
    "claim": lambda world: world.claim("second"),
    "claim of the same attempt": lambda world: world.claim("first"),
    "take": lambda world: world.take("second"),
    "take with another payload": lambda world: world.take("second", b"other", "external"),
    "renew": lambda world: world.renew(),
    "sweep": lambda world: world.sweep(),
    **{event.value: (lambda world, event=event: world.settle(event)) for event in OWNER_EVENTS},  # type: ignore[misc]
    **{event.value: (lambda world, event=event: world.resolve(event)) for event in SEEN_EVENTS},  # type: ignore[misc]
}
"""The possible actions on a record."""
