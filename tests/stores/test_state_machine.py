"""Random histories of one key, on every store, against the transition table."""

from __future__ import annotations

import pytest

from retrysafe.testing import state_machine
from tests.proving.effort import effort
from tests.stores.harnesses import DRIVERS
from tests.stores.harnesses.base import AnyHarness


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .* method is good for exploring strategies")
def test_random_histories_agree_with_the_table(harness: AnyHarness, request: pytest.FixtureRequest) -> None:
    """As the published suite does; fewer of them in `make test` through what is not a driver of our own."""
    name = request.node.callspec.params["harness"]
    state_machine.check(harness, examples=25 if name in DRIVERS else effort(8, 25))
