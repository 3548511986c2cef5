"""Lets time pass in DynamoDB, for tests."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from retrysafe.backends.dynamodb.requests import Call
from retrysafe.backends.dynamodb.store import STORED_AS, DynamodbStore
from retrysafe.backends.time_travel import INSTANTS, Aged, nothing
from retrysafe.protocol.records import EffectiveState, Micros, Record
from retrysafe.protocol.requests import Ask


def age(store: DynamodbStore, keys: Collection[bytes], micros: Micros) -> Aged:
    """Age records; those that are forgotten by then are deleted, as the service's time to live does some day."""
    record: Record | None = None

    def parse(found: Record | None) -> None:
        nonlocal record
        record = found

    for key in keys:
        reading = store.read(key)
        item = {name: reading.request.arguments[name] for name in ("TableName", "Key")}
        yield Ask(Call("update_item", {**item, **_shifted(micros)}, _CONDITION), nothing)
        yield Ask(reading.request, lambda answer, reading=reading: parse(reading.parse(answer)))  # type: ignore[misc]
        if record is not None and record.effective_state is EffectiveState.FORGOTTEN:
            yield Ask(Call("delete_item", item), nothing)


_CONDITION = frozenset({"ConditionalCheckFailedException"})


def _shifted(micros: Micros) -> dict[str, Any]:
    return {
        "UpdateExpression": "SET " + ", ".join(f"#{name} = #{name} - :by" for name in INSTANTS),
        "ConditionExpression": "attribute_exists(key_hash)",
        "ExpressionAttributeNames": {f"#{name}": STORED_AS.get(name, name) for name in INSTANTS},
        "ExpressionAttributeValues": {":by": {"N": str(micros)}},
    }
