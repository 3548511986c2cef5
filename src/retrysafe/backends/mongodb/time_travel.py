"""Lets time pass in MongoDB, for tests."""

from __future__ import annotations

from collections.abc import Collection

from retrysafe.backends.mongodb.requests import Call
from retrysafe.backends.mongodb.store import MongodbStore
from retrysafe.backends.time_travel import INSTANTS, Aged, nothing
from retrysafe.protocol.records import Micros
from retrysafe.protocol.requests import Ask


def age(store: MongodbStore, keys: Collection[bytes], micros: Micros) -> Aged:
    """Move the instants of records back."""
    back = [{"$set": {name: {"$subtract": [f"${name}", micros]} for name in INSTANTS}}]
    for key in keys:
        yield Ask(Call("collection.update_one", ({"_id": key}, back)), nothing)
