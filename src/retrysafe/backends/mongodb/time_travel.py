"""Lets time pass in MongoDB, for tests."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from retrysafe.backends.mongodb.requests import Call
from retrysafe.backends.mongodb.store import MongodbStore
from retrysafe.backends.time_travel import INSTANTS, Aged
from retrysafe.protocol.records import Micros
from retrysafe.protocol.requests import Ask, nothing


def age(store: MongodbStore, keys: Collection[bytes], micros: Micros) -> Aged:
    """Move the instants of records back; the beginning of work under way stays, by which its steps know it."""
    sets: dict[str, Any] = {name: {"$subtract": [f"${name}", micros]} for name in INSTANTS}
    sets["created"] = {"$cond": [{"$in": ["$state", ["completed", "failed"]]}, sets["created"], "$created"]}
    back = [{"$set": sets}]
    for key in keys:
        yield Ask(Call("collection.update_one", ({"_id": key}, back)), nothing)
