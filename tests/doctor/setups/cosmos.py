"""Cosmos DB, set up wrongly: containers that another program has made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.doctor.setups.form import ERROR, WARNING, Arguments, Ground, Making, Setup, unique
from tests.stores.harnesses.cosmos import cosmos_library, cosmos_url, drop_cosmos_database


def _container(path: str, **settings: Any) -> Making:
    @contextmanager
    def make(ground: Ground) -> Iterator[Arguments]:
        from azure.cosmos import PartitionKey

        ground.service("cosmos")
        name = unique()
        with cosmos_library() as library:
            library.create_database(name).create_container("retrysafe_records", PartitionKey(path), **settings)
        yield ["--store", cosmos_url(name)]
        drop_cosmos_database(name)

    return make


BROKEN = (
    Setup(
        "The container has another partition key.",
        "a container with the partition key `/tenant`",
        "cosmos-key",
        ERROR,
        _container("/tenant", default_ttl=-1),
    ),
    Setup(
        "The container keeps records for ever.",
        "a container without time to live",
        "cosmos-ttl",
        WARNING,
        _container("/id"),
    ),
)

UNMADE: dict[str, dict[str, Any]] = {
    "cosmos-write-regions": {"findings": [("refuse", "write-regions", "The account writes in several regions.")]},
    "cosmos-consistency": {"findings": [("warn", "consistency", "The account's default consistency is Eventual.")]},
    "cosmos-clock": {"findings": [("warn", "clock", "The answers carry no Date.")]},
}
