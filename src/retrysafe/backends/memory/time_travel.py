"""Lets time pass in the memory store, for tests."""

from __future__ import annotations

from collections.abc import Collection

from retrysafe.backends.memory.store import MemoryStore, Records
from retrysafe.backends.time_travel import INSTANTS, Aged, nothing
from retrysafe.protocol.records import Micros, State
from retrysafe.protocol.requests import Ask


def age(store: MemoryStore, keys: Collection[bytes], micros: Micros) -> Aged:
    """The beginning of work under way stays, by which its steps know it."""

    def step(records: Records, now: Micros) -> None:
        for key in records.keys() & set(keys):
            record = records[key]
            over = record.state in (State.COMPLETED, State.FAILED)
            moving = (name for name in INSTANTS if over or name != "created")
            records[key] = record._replace(**{name: getattr(record, name) - micros for name in moving})

    return [Ask(step, nothing)]
