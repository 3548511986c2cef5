"""MongoDB behind PyMongo, on a stand-in."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from retrysafe.backends.registry import connect
from retrysafe.testing.harness import AsyncHarness, SyncHarness
from tests.laboratory.specification import Traits
from tests.stores.harnesses.base import RESTORED, RUNS, TOGETHER, TWICE, Loss, Settings, StoreHarness, migrated

MONGODB_DATABASE = f"retrysafe_test_{os.getpid()}"


def mongodb_server() -> str:
    return os.environ["RETRYSAFE_TEST_MONGODB"]


def mongodb_url(database: str = MONGODB_DATABASE) -> str:
    return f"{mongodb_server()}/{database}?timeoutMS=20000"


def mongodb_straight() -> str:
    """The URL of the server alone: the members of a replica set that it tells are not behind the proxy.

    PyMongo does not repeat writes, of which the stand-in answers the second otherwise than the first.
    """
    return f"{mongodb_url()}&directConnection=true&retryWrites=false"


@contextmanager
def mongodb_shop() -> Iterator[str]:
    """The URL of a database that is not there yet; dropped in the end."""
    from pymongo import MongoClient

    client: MongoClient[Any] = MongoClient(mongodb_server())
    with client:
        client.drop_database("shop")
        yield f"{mongodb_server()}/shop"
        client.drop_database("shop")


def mongodb_sync(path: Path) -> SyncHarness:
    return SyncHarness(connect(migrated(mongodb_url())))


def mongodb_async(path: Path) -> AsyncHarness:
    return AsyncHarness(connect(migrated(mongodb_url())))


class ClientHarness(SyncHarness):
    """A sync harness on a client of the user's, which stays open when the backend is closed."""

    def close(self) -> None:
        executor: Any = self.backend.client()
        client = executor.collection.database.client
        super().close()
        assert client.admin.command("ping")
        client.close()


def mongodb_client(path: Path) -> SyncHarness:
    from pymongo import MongoClient

    migrated(mongodb_url())
    client: MongoClient[Any] = MongoClient(mongodb_url(), tz_aware=True, w=1)  # which decide nothing
    return ClientHarness(connect(client))


def drop_mongodb_database() -> None:
    """Drop the database of this process, if it can have made one."""
    if "pymongo" in sys.modules and "RETRYSAFE_TEST_MONGODB" in os.environ:
        from pymongo import MongoClient

        client: MongoClient[Any] = MongoClient(mongodb_server())
        with client:
            client.drop_database(MONGODB_DATABASE)


HARNESS = StoreHarness(
    executors={
        "mongodb": ("mongodb", mongodb_sync),
        "mongodb async": ("mongodb", mongodb_async),
        "MongoClient": ("mongodb", mongodb_client),
    },
    drivers=("mongodb", "mongodb async"),
    urls={"mongodb": ("mongodb", lambda folder: migrated(mongodb_url()))},
    finish=drop_mongodb_database,
    examples={"MONGODB_URL": ("mongodb", mongodb_shop)},
    proxied={
        "mongodb": (mongodb_straight, mongodb_server),
    },
    # it reads its clock when a call arrives, which may wait for its turn then
    traits={
        "mongodb": Traits(skew=1_000_000, recalled=frozenset({"created"})),
    },
    settings={
        "mongodb": Settings("nothing", "a server that is no replica set, no TTL index"),
    },
    losses={
        "mongodb": (
            Loss("a primary is killed, and another is elected", "nothing that was acknowledged", "–", "–", "–"),
            Loss(
                "the disks of a majority are lost, or that of a server without replicas",
                RESTORED,
                RUNS,
                TWICE,
                TOGETHER,
            ),
            Loss("a backup is restored", RESTORED, RUNS, TWICE, TOGETHER),
            Loss(
                "a new primary's clock is ahead by a lease",
                "nothing, but a lease may be taken over early; its first holder is fenced",
                "two attempts may run at once, with the same derived keys",
                "*unknown*",
                "nothing: no lease is needed",
            ),
        ),
    },
)
