"""DynamoDB behind its clients."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from retrysafe.backends.backend import Backend
from retrysafe.backends.registry import connect
from retrysafe.testing.harness import AsyncHarness, SyncHarness
from tests.laboratory.specification import Traits
from tests.stores.ageing import dynamodb_client
from tests.stores.harnesses.base import RESTORED, RUNS, TWICE, Loss, Settings, StoreHarness, migrated

DYNAMODB_TABLE = f"retrysafe-test-{os.getpid()}"


def dynamodb_endpoint() -> str:
    return os.environ["RETRYSAFE_TEST_DYNAMODB"]


def dynamodb_url(table: str = DYNAMODB_TABLE) -> str:
    """A URL of the test service, with credentials that it takes for good.

    It waits for 10 s: a busy disk can hold a table's creation back for long, and of many clients at once one that is
    dropped from the server's short queue is heard again after 1 s and after 3.
    """
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ.setdefault(name, "local")
    return f"dynamodb://{table}?region=us-east-1&timeout=10s&endpoint={dynamodb_endpoint()}"


def drop_dynamodb_table() -> None:
    """Drop the table of this process, if it has made one."""
    if "boto3" not in sys.modules or "RETRYSAFE_TEST_DYNAMODB" not in os.environ:
        return
    dynamodb_url()  # it takes their credentials
    client = dynamodb_client(dynamodb_endpoint())
    with suppress(client.exceptions.ResourceNotFoundException):
        client.delete_table(TableName=DYNAMODB_TABLE)
    client.close()


def _checked(backend: Backend) -> Backend:
    """Created, and asked for its settings, as before a first claim: from then on the clock is the service's."""
    backend.migrate()
    backend.check(backend.client())
    return backend


def dynamodb_sync(path: Path) -> SyncHarness:
    return SyncHarness(_checked(connect(dynamodb_url())))


def dynamodb_async(path: Path) -> AsyncHarness:
    backend = connect(dynamodb_url())
    harness = AsyncHarness(backend)

    async def check() -> None:
        await backend.amigrate()
        await backend.acheck(backend.aclient())

    harness.loop.run_until_complete(check())
    return harness


def dynamodb_table(path: Path) -> SyncHarness:
    import boto3

    dynamodb_url()
    resource: Any = boto3.resource("dynamodb", region_name="us-east-1", endpoint_url=dynamodb_endpoint())
    backend = _checked(connect(resource.Table(DYNAMODB_TABLE)))
    return SyncHarness(backend)


HARNESS = StoreHarness(
    executors={
        "boto3": ("dynamodb", dynamodb_sync),
        "boto3 Table": ("dynamodb", dynamodb_table),
        "aiobotocore": ("dynamodb", dynamodb_async),
    },
    drivers=("boto3", "aiobotocore"),
    urls={"dynamodb": ("dynamodb", lambda folder: migrated(dynamodb_url()))},
    finish=drop_dynamodb_table,
    proxied={
        "boto3": (dynamodb_url, dynamodb_endpoint),
        "aiobotocore": (dynamodb_url, dynamodb_endpoint),
    },
    # the service's clock is known to within two seconds, and a second client may know it better
    traits={
        "dynamodb": Traits(skew=3_000_000, vanishing=True, recalled=frozenset({"created"})),
    },
    settings={
        "dynamodb": Settings(
            "a table with another key",
            "a global table that is not strongly consistent, no time to live, answers without a Date, hidden settings",
        ),
    },
    losses={
        "dynamodb": (
            Loss(
                "one key is claimed in two regions of a global table",
                "nothing, but both win: regions do not see each other's conditions",
                "runs in both, with the same derived keys",
                TWICE,
            ),
            Loss("the table is restored to an earlier point in time", RESTORED, RUNS, TWICE),
            Loss(
                "clocks of the service's own machines are over two seconds apart",
                "nothing, but a lease may be taken over early; its first holder is fenced",
                "two attempts may run at once, with the same derived keys",
                "*unknown*",
            ),
        ),
    },
)
