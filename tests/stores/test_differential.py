"""Every standing × every event × right and wrong guards, on every store, against the transition table."""

from __future__ import annotations

import pytest

from retrysafe.testing.suite import (
    test_every_event_agrees_with_the_table as test_every_event_agrees_with_the_table,
)
from retrysafe.testing.suite import (
    test_the_prepared_standings_are_what_they_say as test_the_prepared_standings_are_what_they_say,
)
from tests.stores.harnesses import DRIVERS

pytestmark = pytest.mark.thinned(0.15, whole=DRIVERS)
