"""Telemetry and guarded work, in both colours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.observing.telemetry import Telemetry, Works


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    made = Telemetry()
    yield made
    made.close()


@pytest_asyncio.fixture(params=["sync", "async"])
async def works(request: pytest.FixtureRequest, tmp_path: Path, telemetry: Telemetry) -> AsyncIterator[Works]:
    made = Works(tmp_path, telemetry, sync=request.param == "sync")
    yield made
    await made.close()
