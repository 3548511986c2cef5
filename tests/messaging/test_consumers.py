"""Consumers on real brokers: the published suite."""

from __future__ import annotations

from functools import partial

import pytest

from retrysafe.testing.consumers import ConsumerSuite, OpenConsumerBench
from tests.conftest import served
from tests.messaging.brokers import BENCHES, bench
from tests.versions import OTHER_VERSIONS


@pytest.fixture(params=(*BENCHES, *(version for version, kind in OTHER_VERSIONS.items() if kind in BENCHES)))
def consumer_bench(request: pytest.FixtureRequest) -> OpenConsumerBench:
    served(request, None if request.param == "memory" else request.param)
    return partial(bench, OTHER_VERSIONS.get(request.param, request.param))


class TestConsumers(ConsumerSuite):
    """Ours."""
