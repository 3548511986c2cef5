"""Consumers on real brokers: the published suite."""

from __future__ import annotations

from functools import partial

import pytest

from retrysafe.testing.consumers import ConsumerSuite, OpenConsumerBench
from tests.conftest import require
from tests.messaging.brokers import BENCHES, bench


@pytest.fixture(params=BENCHES)
def consumer_bench(request: pytest.FixtureRequest) -> OpenConsumerBench:
    if request.param != "memory":
        require(request.param)
    return partial(bench, request.param)


class TestConsumers(ConsumerSuite):
    """Ours."""
