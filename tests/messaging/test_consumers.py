"""Consumers on real brokers: the published suite."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from retrysafe.testing.consumers import CASES, OpenConsumerBench
from retrysafe.testing.consumers import test_consumer_conformance as published
from tests.conftest import served
from tests.messaging.harnesses import BENCHES, HARNESSES, bench
from tests.tables import each_row
from tests.versions import OTHER_VERSIONS


@pytest.fixture(params=(*BENCHES, *(version for version, kind in OTHER_VERSIONS.items() if kind in BENCHES)))
def consumer_bench(request: pytest.FixtureRequest, tmp_path: Path) -> OpenConsumerBench:
    name = OTHER_VERSIONS.get(request.param, request.param)
    served(request, request.param if HARNESSES[name].service else None)
    return partial(bench, name, HARNESSES[name].url(tmp_path))


@pytest.mark.slow
@pytest.mark.every_value
@each_row("name", CASES)
def test_consumer_conformance(name: str, consumer_bench: OpenConsumerBench) -> None:
    published(name, consumer_bench)
