"""Every kind of store, by the URL that a boundary and a clock are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrysafe.backends.registry import connect
from tests.conftest import require
from tests.stores.harnesses.dynamodb import dynamodb_url
from tests.stores.harnesses.redis import redis_url
from tests.stores.harnesses.sql import mysql_url, postgresql_url

KINDS = ("sqlite", "postgresql", "mysql", "redis", "redis-cluster", "dynamodb")


def url_of(kind: str, path: Path) -> str:
    """A store of that kind, migrated."""
    if kind == "sqlite":
        return f"sqlite:///{path / 'store.db'}"
    require(kind)
    if kind.startswith("redis"):
        return redis_url("_CLUSTER" if kind == "redis-cluster" else "")
    url = {
        "postgresql": postgresql_url,
        "mysql": mysql_url,
        "dynamodb": dynamodb_url,
    }[kind]()
    backend = connect(url)
    backend.migrate()
    backend.close()
    return url


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of every kind that has a URL."""
    return url_of(request.param, tmp_path)
