"""The stores that keep steps, each by its URL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Boundary
from tests.conftest import served
from tests.stores.harnesses import URLS

Make = Callable[..., Boundary]
STORES = ("memory", "sqlite", "postgresql", "mysql", "redis", "dynamodb")


@pytest.fixture(params=STORES)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Makes boundaries on each store."""
    service, url_of = URLS.get(request.param, (None, lambda folder: "memory://"))
    served(request, service)
    url = url_of(tmp_path)
    yield from _boundaries(url, tmp_path.name)


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Iterator[Make]:
    """Makes boundaries on a file."""
    yield from _boundaries(f"sqlite:///{tmp_path / 'store.db'}", tmp_path.name)


def _boundaries(url: str, name: str) -> Iterator[Make]:
    with ExitStack() as opened:

        def made(**options: Any) -> Boundary:
            boundary = Boundary(**{"name": name, "store": url, "observers": [], "shared": True, **options})
            opened.callback(boundary.close)
            return boundary

        yield made
