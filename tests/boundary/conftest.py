"""The shop fixture: one test, every store= and tx=."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.boundary.shops import SHOPS, Shop
from tests.conftest import served


@pytest_asyncio.fixture(params=SHOPS)
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shop]:
    """Every kind of store and transaction."""
    service, open_ = SHOPS[request.param]
    served(request, service)
    opened = open_(tmp_path)
    yield opened
    await opened.close()
