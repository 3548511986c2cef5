"""Cosmos DB behind azure-cosmos, on a stand-in."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from retrysafe.backends.backend import Backend
from retrysafe.backends.registry import connect
from retrysafe.testing.harness import AsyncHarness, SyncHarness
from tests.laboratory.specification import Traits
from tests.stores.harnesses.base import RESTORED, RUNS, TWICE, Loss, Settings, StoreHarness, migrated

COSMOS_DATABASE = f"retrysafe-test-{os.getpid()}"
COSMOS_KEY = "c3RhbmQtaW4="
UNVERIFIED = "Unverified HTTPS request is being made to host '127.0.0.1'"
"""The warning of a library that trusts every certificate of this machine."""


def cosmos_endpoint() -> str:
    return os.environ["RETRYSAFE_TEST_COSMOS"]


def cosmos_url(database: str = COSMOS_DATABASE) -> str:
    return f"{cosmos_endpoint().replace('https://', f'cosmos://:{COSMOS_KEY}@')}/{database}?discovery=off&timeout=20s"


def cosmos_library() -> Any:
    """A client of the library."""
    from azure.cosmos import CosmosClient

    return CosmosClient(cosmos_endpoint(), COSMOS_KEY)


def drop_cosmos_database(name: str) -> None:
    """Drop a database, if it is there."""
    from azure.cosmos.exceptions import CosmosResourceNotFoundError

    with suppress(CosmosResourceNotFoundError), cosmos_library() as library:
        library.delete_database(name)


def _finish() -> None:
    """Drop the database of this process, if it can have made one."""
    if "azure.cosmos" in sys.modules and "RETRYSAFE_TEST_COSMOS" in os.environ:
        drop_cosmos_database(COSMOS_DATABASE)


@contextmanager
def cosmos_shop() -> Iterator[str]:
    """The URL of a database that is not there yet; dropped in the end."""
    drop_cosmos_database("shop")
    with patch.dict(os.environ, PYTHONWARNINGS=f"ignore:{UNVERIFIED}"):
        yield cosmos_url("shop")
    drop_cosmos_database("shop")


def _checked(backend: Backend) -> Backend:
    """Created, and asked for its settings, as before a first claim: from then on the clock is the service's."""
    backend.migrate()
    backend.check(backend.client())
    return backend


def cosmos_sync(path: Path) -> SyncHarness:
    return SyncHarness(_checked(connect(cosmos_url())))


def cosmos_async(path: Path) -> AsyncHarness:
    backend = connect(cosmos_url())
    harness = AsyncHarness(backend)

    async def check() -> None:
        await backend.amigrate()
        await backend.acheck(backend.aclient())

    harness.loop.run_until_complete(check())
    return harness


def cosmos_database(path: Path) -> SyncHarness:
    migrated(cosmos_url())
    return SyncHarness(_checked(connect(cosmos_library().get_database_client(COSMOS_DATABASE))))


HARNESS = StoreHarness(
    executors={
        "cosmos": ("cosmos", cosmos_sync),
        "cosmos async": ("cosmos", cosmos_async),
        "DatabaseProxy": ("cosmos", cosmos_database),
    },
    drivers=("cosmos", "cosmos async"),
    urls={"cosmos": ("cosmos", lambda folder: migrated(cosmos_url()))},
    finish=_finish,
    examples={"COSMOS_URL": ("cosmos", cosmos_shop)},
    proxied={
        "cosmos": (cosmos_url, cosmos_endpoint),
        "cosmos async": (cosmos_url, cosmos_endpoint),
    },
    # the service's clock is known to within two seconds, and a second client may know it better
    traits={
        "cosmos": Traits(skew=3_000_000, recalled=frozenset({"created"})),
    },
    settings={
        "cosmos": Settings(
            "an account that writes in several regions, a container with another partition key",
            "a consistency below Session, no time to live, answers without a Date",
        ),
    },
    losses={
        "cosmos": (
            Loss(
                "another region becomes the one that writes, below Strong consistency",
                "what it had not received",
                RUNS,
                TWICE,
            ),
            Loss("the account is restored to an earlier point in time", RESTORED, RUNS, TWICE),
            Loss(
                "clocks of the service's own machines are over two seconds apart",
                "nothing, but a lease may be taken over early; its first holder is fenced",
                "two attempts may run at once, with the same derived keys",
                "*unknown*",
            ),
        ),
    },
)
