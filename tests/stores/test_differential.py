"""Every standing × every event × right and wrong guards, on every store, against the transition table."""

from __future__ import annotations

import pytest

from retrysafe.protocol.records import EffectiveState
from retrysafe.testing import differential
from retrysafe.testing.suite import (
    test_the_prepared_standings_are_what_they_say as test_the_prepared_standings_are_what_they_say,
)
from tests.stores.harnesses.base import AnyHarness


@pytest.mark.parametrize("standing", EffectiveState)
def test_every_event_agrees_with_the_table(standing: EffectiveState, harness: AnyHarness) -> None:
    assert differential.check(harness, standing) >= len(differential.EVENTS) * len(differential.GUARDS)
