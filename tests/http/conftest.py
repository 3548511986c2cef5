"""The places where a guarded application can keep its records."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from retrysafe import Boundary
from retrysafe.backends.registry import connect
from tests.conftest import require
from tests.http.observing import Recorder
from tests.http.places import PLACES


@dataclass
class Place:
    """One store in one mode: boundaries on it, closed at the end."""

    store: str
    transactional: bool
    boundaries: list[Boundary] = field(default_factory=list)
    seen: Recorder = field(default_factory=Recorder)

    @property
    def serial(self) -> bool:
        """True if one transaction excludes every other, so that nothing can be asked while it is open."""
        return self.transactional and self.store.startswith("sqlite")

    def boundary(self, **terms: Any) -> Boundary:
        terms.setdefault("effects", "transactional" if self.transactional else "keyed")
        made = Boundary(f"http-{secrets.token_hex(8)}", store=self.store, observers=[self.seen], **terms)
        self.boundaries.append(made)
        return made


@pytest_asyncio.fixture(params=PLACES)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """Every store, leased and, where it can, transactional."""
    service, transactional = PLACES[request.param]
    if service is not None:
        require(service)
    name = request.param.partition("-")[0]
    urls = {
        "memory": "memory://",
        "sqlite": f"sqlite:///{tmp_path / 'http.db'}",
        "postgresql": os.environ.get("RETRYSAFE_TEST_POSTGRESQL", ""),
        "redis": os.environ.get("RETRYSAFE_TEST_REDIS", ""),
    }
    if name == "postgresql":
        connect(urls[name]).migrate()
    opened = Place(urls[name], transactional)
    yield opened
    for boundary in opened.boundaries:
        await boundary.aclose()
