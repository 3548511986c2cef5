"""DynamoDB, set up wrongly: tables that another program has made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from tests.doctor.setups.form import ERROR, WARNING, Arguments, Ground, Making, Setup, unique
from tests.stores.ageing import dynamodb_client
from tests.stores.harnesses.dynamodb import dynamodb_endpoint, dynamodb_url


def _table(name: str, kind: str) -> Making:
    @contextmanager
    def make(ground: Ground) -> Iterator[Arguments]:
        ground.service("dynamodb")
        table: dict[str, Any] = {
            "TableName": unique(),
            "KeySchema": [{"AttributeName": name, "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": name, "AttributeType": kind}],
            "BillingMode": "PAY_PER_REQUEST",
        }
        url = dynamodb_url(table["TableName"])
        with closing(dynamodb_client(dynamodb_endpoint())) as client:
            client.create_table(**table)
            try:
                yield ["--store", url]
            finally:
                client.delete_table(TableName=table["TableName"])

    return make


@contextmanager
def migrated_table(ground: Ground) -> Iterator[str]:
    """The URL of a table as `retrysafe migrate` makes it."""
    from tests.doctor.setups.form import migrated

    ground.service("dynamodb")
    name = unique()
    yield migrated(dynamodb_url(name))
    with closing(dynamodb_client(dynamodb_endpoint())) as client:
        client.delete_table(TableName=name)


BROKEN = (
    Setup(
        "The table has another key.",
        "a table with the partition key `id` (S)",
        "dynamodb-key",
        ERROR,
        _table("id", "S"),
        beside=("dynamodb-ttl",),
    ),
    Setup(
        "The table keeps records for ever.",
        "a table without time to live",
        "dynamodb-ttl",
        WARNING,
        _table("key_hash", "B"),
    ),
)

UNMADE: dict[str, dict[str, Any]] = {
    "dynamodb-permission": {"findings": [("warn", "table", "The permission is missing.")]},
    "dynamodb-replicas": {"findings": [("refuse", "global table", "Replicas in eu-west-1.")]},
    "dynamodb-clock": {"findings": [("warn", "clock", "The answers carry no Date.")]},
}
