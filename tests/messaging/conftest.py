"""One test, every store= and tx=; one test, every database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.boundary.conftest import shop as shop
from tests.conftest import served
from tests.messaging.inboxes import KINDS, World, world_of
from tests.versions import OTHER_VERSIONS


@pytest.fixture(params=(*KINDS, *(version for version, kind in OTHER_VERSIONS.items() if kind in KINDS)))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A database for inboxes."""
    served(request, None if request.param == "sqlite" else request.param)
    made = world_of(OTHER_VERSIONS.get(request.param, request.param), tmp_path)
    yield made
    made.close()
