"""The tests that every store must pass, which pytest collects from a package of your own.

Subclass `StoreSuite`, or import its functions into a test module.
"""

from __future__ import annotations

import secrets

import pytest

from retrysafe.protocol.records import EffectiveState
from retrysafe.testing import differential
from retrysafe.testing.bench import Harness
from retrysafe.testing.conformance import CASES, Bench

__all__ = [
    "StoreSuite",
    "test_conformance",
    "test_every_event_agrees_with_the_table",
    "test_random_histories_agree_with_the_table",
    "test_the_prepared_standings_are_what_they_say",
]


@pytest.mark.parametrize("name", CASES)
def test_conformance(name: str, harness: Harness) -> None:
    """One case of the conformance suite."""
    CASES[name](Bench(harness, secrets.token_bytes(32)))


@pytest.mark.parametrize("standing", EffectiveState)
def test_every_event_agrees_with_the_table(standing: EffectiveState, harness: Harness) -> None:
    """Every event, with right and wrong guards, at every standing, in lockstep with the transition table."""
    assert differential.check(harness, standing) >= len(differential.EVENTS) * len(differential.GUARDS)


def test_the_prepared_standings_are_what_they_say(harness: Harness) -> None:
    """The records of the test before stand as they are called."""
    differential.check_prepared(harness)


@pytest.mark.filterwarnings("ignore:The .* method is good for exploring strategies")
def test_random_histories_agree_with_the_table(harness: Harness) -> None:
    """Random histories of one key, in lockstep with the transition table; needs Hypothesis."""
    pytest.importorskip("hypothesis", reason="random histories need it: pip install 'retrysafe[testing]'")
    from retrysafe.testing import state_machine

    state_machine.check(harness)


class StoreSuite:
    """Everything that a store must pass; subclass it under a name that begins with "Test".

    Give it a fixture ``harness``: a `Harness` over your store, usually a `SyncHarness` or `AsyncHarness` on a
    `retrysafe.backends.backend.Backend` with your store and your client. The records of other tests may be in the
    store, and all keys are random. No case is optional: what a store cannot promise beyond them is declared in its
    capabilities.
    """

    test_conformance = staticmethod(test_conformance)
    test_every_event_agrees_with_the_table = staticmethod(test_every_event_agrees_with_the_table)
    test_the_prepared_standings_are_what_they_say = staticmethod(test_the_prepared_standings_are_what_they_say)
    test_random_histories_agree_with_the_table = staticmethod(test_random_histories_agree_with_the_table)
