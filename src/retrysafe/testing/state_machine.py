"""A Hypothesis state machine: random histories of one key, on a store and on the transition table."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from retrysafe.protocol.records import Effects, Ownership
from retrysafe.protocol.transitions import Transition
from retrysafe.testing.bench import Harness
from retrysafe.testing.lockstep import OWNER_EVENTS, SEEN_EVENTS, Lockstep

ATTEMPTS = st.sampled_from(["a", "b", "c", "d"])
PAYLOADS = st.sampled_from([b"p", b"q", b""])
UNHURRIED = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)
"""The health checks to suppress for a slow store."""
EFFECTS = st.sampled_from(["keyed", "external"])


def check(harness: Harness, examples: int = 25, steps: int = 25) -> None:
    """Compare so many random histories of so many steps each; a failing one is made small, and printed."""
    run_state_machine_as_test(
        _machine(harness),
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=UNHURRIED
        ),
    )


def _machine(harness: Harness) -> type[RuleBasedStateMachine]:

    class OneKey(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.both = Lockstep(harness)
            self.holds: dict[str, tuple[Ownership | None, Ownership | None]] = {}

        @rule(attempt=ATTEMPTS, payload=PAYLOADS, effects=EFFECTS)
        def claim(self, attempt: str, payload: bytes, effects: Effects) -> None:
            self.both.both("claim", lambda world: world.claim(attempt, payload, effects))
            self._remember(attempt)

        @rule(attempt=ATTEMPTS, payload=PAYLOADS)
        def look_and_take(self, attempt: str, payload: bytes) -> None:
            self.both.look()
            self.both.both("take", lambda world: world.take(attempt, payload))
            self._remember(attempt)

        @rule(attempt=ATTEMPTS)
        def take_what_was_seen_before(self, attempt: str) -> None:
            self.both.both("stale take", lambda world: world.take(attempt))
            self._remember(attempt)

        @rule()
        def look(self) -> None:
            self.both.look()

        @precondition(lambda self: self.holds)
        @rule(data=st.data(), event=st.sampled_from(OWNER_EVENTS))
        def settle(self, data: st.DataObject, event: Transition) -> None:
            self._hold(data)
            self.both.both(str(event), lambda world: world.settle(event))

        @precondition(lambda self: self.holds)
        @rule(data=st.data())
        def renew(self, data: st.DataObject) -> None:
            self._hold(data)
            self.both.both("renew", lambda world: world.renew())

        @rule(event=st.sampled_from(SEEN_EVENTS))
        def resolve(self, event: Transition) -> None:
            self.both.both(str(event), lambda world: world.resolve(event))

        @rule(seconds=st.sampled_from([10.0, 25.0, 31.0, 3601.0, 7201.0]))
        def time_passes(self, seconds: float) -> None:
            self.both.both("time", lambda world: world.elapse(seconds))

        @rule()
        def sweep(self) -> None:
            self.both.both("sweep", lambda world: world.sweep())

        def _remember(self, attempt: str) -> None:
            real, model = self.both.real.ownership, self.both.model.ownership
            assert (real is None) == (model is None)
            if real is not None and real.attempt == attempt:
                self.holds[attempt] = (real, model)

        def _hold(self, data: st.DataObject) -> None:
            real, model = self.holds[data.draw(st.sampled_from(sorted(self.holds)))]
            self.both.real.ownership, self.both.model.ownership = real, model

    return OneKey
