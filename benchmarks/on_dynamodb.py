"""DynamoDB beside a conditional PutItem, a PutItem and a consistent GetItem on the same client library."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks import by_hand
from benchmarks.on_memory import function
from benchmarks.rows import RATIO, Row, Sides, one_by_one
from retrysafe import Boundary
from retrysafe.backends.registry import connect

VARIABLE = "RETRYSAFE_TEST_DYNAMODB"
_TABLE = f"bench-{secrets.token_hex(6)}"


def rows() -> Sequence[Row]:
    """Fresh and replay, with boto3."""
    return [
        Row(f"dynamodb/once sync {kind}", partial(_once, replay), RATIO, replay=replay)
        for kind, replay in (("fresh", False), ("replay", True))
    ]


@contextmanager
def _once(replay: bool) -> Iterator[Sides]:
    import boto3

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ.setdefault(name, "local")
    url = f"dynamodb://{_TABLE}?region=us-east-1&endpoint={os.environ[VARIABLE]}"
    connect(url).migrate()
    client = boto3.client("dynamodb", region_name="us-east-1", endpoint_url=os.environ[VARIABLE])

    def fresh(key: str) -> Any:
        where = {"key_hash": {"B": b"by hand " + key.encode()}, "fingerprint": {"B": by_hand.fingerprint(key)}}
        try:
            client.put_item(TableName=_TABLE, Item=where, ConditionExpression="attribute_not_exists(key_hash)")
        except client.exceptions.ConditionalCheckFailedException:
            return stored(key)
        result = function(key)
        client.put_item(TableName=_TABLE, Item={**where, "result": {"B": by_hand.encode(result)}})
        return result

    def stored(key: str) -> Any:
        where = {"key_hash": {"B": b"by hand " + key.encode()}}
        item: Any = client.get_item(TableName=_TABLE, Key=where, ConsistentRead=True).get("Item")
        return None if item is None else by_hand.replayed((item["fingerprint"]["B"], item["result"]["B"]), key)

    boundary = Boundary("bench", store=url)
    floor: Callable[[str], Any] = (lambda key: stored(key) or fresh(key)) if replay else fresh
    yield Sides(one_by_one(boundary.once(key="order")(function)), one_by_one(floor))
    boundary.close()
    client.delete_table(TableName=_TABLE)
    client.close()
