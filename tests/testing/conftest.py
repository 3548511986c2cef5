"""Every kind of store, by the URL that a boundary and a clock are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrysafe.backends.registry import connect
from tests.conftest import require
from tests.stores import harnesses

KINDS = ("sqlite", "postgresql", "mysql", "redis", "redis-cluster", "dynamodb")


def url_of(kind: str, path: Path) -> str:
    """A store of that kind, migrated."""
    if kind == "sqlite":
        return f"sqlite:///{path / 'store.db'}"
    require(kind)
    if kind.startswith("redis"):
        return harnesses.redis_url("_CLUSTER" if kind == "redis-cluster" else "")
    url = {
        "postgresql": harnesses.postgresql_url,
        "mysql": harnesses.mysql_url,
        "dynamodb": harnesses.dynamodb_url,
    }[kind]()
    backend = connect(url)
    backend.migrate()
    backend.close()
    return url


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of every kind that has a URL."""
    return url_of(request.param, tmp_path)
