"""Every kind of store, by the URL that a boundary and a clock are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import require
from tests.stores.harnesses import URLS
from tests.stores.harnesses.redis import redis_url

KINDS = (*URLS, "redis-cluster")


def url_of(kind: str, path: Path) -> str:
    """A store of that kind, migrated."""
    if kind == "redis-cluster":
        require(kind)
        return redis_url("_CLUSTER")
    service, url = URLS[kind]
    if service is not None:
        require(service)
    return url(path)


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of every kind that has a URL."""
    return url_of(request.param, tmp_path)
