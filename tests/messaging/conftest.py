"""One test, every store= and tx=; one test, every database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.boundary.conftest import shop as shop
from tests.conftest import require
from tests.messaging.inboxes import KINDS, World, world_of


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A database for inboxes."""
    if request.param != "sqlite":
        require(request.param)
    made = world_of(request.param, tmp_path)
    yield made
    made.close()
