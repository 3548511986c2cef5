"""DynamoDB beside a conditional PutItem, a PutItem and a consistent GetItem on the same client library."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks import by_hand, services
from benchmarks.guarding import function, once
from benchmarks.rows import FLOOR, OURS, Row, Side, one_by_one
from retrysafe.backends.registry import connect


def rows() -> Sequence[Row]:
    """Fresh and replay, with boto3."""
    return [
        Row(
            f"dynamodb/once sync {kind}",
            "PutItem and GetItem by hand",
            {OURS: partial(once, _store), FLOOR: partial(_by_hand, replay)},
            replay,
            needs=("dynamodb",),
            counted=("dynamodb",),
        )
        for kind, replay in (("fresh", False), ("replay", True))
    ]


@contextmanager
def _table() -> Iterator[tuple[str, str, Any]]:
    """The name and URL of a new table, and a client."""
    import boto3

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ.setdefault(name, "local")
    table, endpoint = f"bench-{secrets.token_hex(6)}", services.url("dynamodb")
    url = f"dynamodb://{table}?region=us-east-1&endpoint={endpoint}"
    connect(url).migrate()
    client = boto3.client("dynamodb", region_name="us-east-1", endpoint_url=endpoint)
    yield table, url, client
    client.delete_table(TableName=table)
    client.close()


@contextmanager
def _store() -> Iterator[str]:
    with _table() as (_, url, _):
        yield url


@contextmanager
def _by_hand(replay: bool) -> Iterator[Side]:
    with _table() as (table, _, client):

        def fresh(key: str) -> Any:
            where = {"key_hash": {"B": b"by hand " + key.encode()}, "fingerprint": {"B": by_hand.fingerprint(key)}}
            try:
                client.put_item(TableName=table, Item=where, ConditionExpression="attribute_not_exists(key_hash)")
            except client.exceptions.ConditionalCheckFailedException:
                return stored(key)
            result = function(key)
            client.put_item(TableName=table, Item={**where, "result": {"B": by_hand.encode(result)}})
            return result

        def stored(key: str) -> Any:
            where = {"key_hash": {"B": b"by hand " + key.encode()}}
            item: Any = client.get_item(TableName=table, Key=where, ConsistentRead=True).get("Item")
            return None if item is None else by_hand.replayed((item["fingerprint"]["B"], item["result"]["B"]), key)

        floor: Callable[[str], Any] = (lambda key: stored(key) or fresh(key)) if replay else fresh
        yield one_by_one(floor)
