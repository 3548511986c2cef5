"""Lets time pass in DynamoDB, for tests."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from retrysafe.backends.dynamodb.expressions import CONDITION, express
from retrysafe.backends.dynamodb.requests import Call
from retrysafe.backends.dynamodb.store import DynamodbStore
from retrysafe.backends.time_travel import INSTANTS, Aged
from retrysafe.protocol.records import EffectiveState, Micros, Record
from retrysafe.protocol.requests import Ask, nothing


def age(store: DynamodbStore, keys: Collection[bytes], micros: Micros) -> Aged:
    """Age records; those that are forgotten by then are deleted, as the service's time to live does some day.

    The beginning of work under way stays, by which its steps know it.
    """
    record: Record | None = None

    def parse(found: Record | None) -> None:
        nonlocal record
        record = found

    for key in keys:
        reading = store.read(key)
        item = {name: reading.request.arguments[name] for name in ("TableName", "Key")}
        for shifted in (_shift(micros), _shift_beginning(micros)):
            yield Ask(Call("update_item", {**item, **shifted}, CONDITION), nothing)
        yield Ask(reading.request, lambda answer, reading=reading: parse(reading.parse(answer)))  # type: ignore[misc]
        if record is not None and record.effective_state is EffectiveState.FORGOTTEN:
            yield Ask(Call("delete_item", item), nothing)


def _shift(micros: Micros) -> dict[str, Any]:
    update = "SET " + ", ".join(f"#{name} = #{name} - :by" for name in INSTANTS if name != "created")
    return express({"by": micros}, UpdateExpression=update, ConditionExpression="attribute_exists(key_hash)")


def _shift_beginning(micros: Micros) -> dict[str, Any]:
    update, over = "SET #created = #created - :by", "#state IN (:completed, :failed)"
    return express({"by": micros}, UpdateExpression=update, ConditionExpression=over)
