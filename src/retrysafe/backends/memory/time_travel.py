"""Lets time pass in the memory store, for tests."""

from __future__ import annotations

from collections.abc import Collection

from retrysafe.backends.memory.store import MemoryStore, Records
from retrysafe.backends.time_travel import INSTANTS, Aged
from retrysafe.protocol.records import Micros
from retrysafe.protocol.requests import Ask, nothing


def age(store: MemoryStore, keys: Collection[bytes], micros: Micros) -> Aged:
    def step(records: Records, now: Micros) -> None:
        for key in records.keys() & set(keys):
            record = records[key]
            aged = record._replace(**{name: getattr(record, name) - micros for name in INSTANTS})
            steps = any(place[0] == key for place in getattr(records, "steps", ()))
            records[key] = aged._replace(created=record.created) if steps else aged  # by which they know the work

    return [Ask(step, nothing)]
