"""MongoDB, set up wrongly: a collection that somebody else has made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.doctor.setups.form import WARNING, Arguments, Ground, Setup, unique
from tests.stores.harnesses.mongodb import mongodb_server, mongodb_url


@contextmanager
def _without_ttl(ground: Ground) -> Iterator[Arguments]:
    from pymongo import MongoClient

    ground.service("mongodb")
    name = unique()
    client: MongoClient[Any] = MongoClient(mongodb_server())
    with client:
        client[name].create_collection("retrysafe_records")
        yield ["--store", mongodb_url(name)]
        client.drop_database(name)


BROKEN = (
    Setup(
        "The collection keeps records for ever.",
        "a collection without the TTL index",
        "mongodb-ttl",
        WARNING,
        _without_ttl,
    ),
)

UNMADE: dict[str, dict[str, Any]] = {
    "mongodb-replica-set": {"findings": [("warn", "replica set", "The server is no replica set.")]},
}
