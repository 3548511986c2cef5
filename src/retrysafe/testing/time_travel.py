"""Letting time pass in a store: the instants of its records are moved back, through the store's own clients.

What judges leases and windows is the store's clock, which no test can set; a record whose instants lie an hour
further back is to every store what it would be an hour later. Only for tests: nothing here is conditional on the
record that was seen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import singledispatch

from retrysafe.backends import registry
from retrysafe.backends.time_travel import Aged
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.procedures import PAGE, clocks_of, resolve, suspect, sweep
from retrysafe.protocol.records import EffectiveState, Filter, Micros, Record
from retrysafe.protocol.requests import Program, ask
from retrysafe.protocol.store import OperableStore
from retrysafe.protocol.transitions import Transition

BEYOND: Micros = 1_000_000
"""The time beyond an instant to move to: clocks of machines that ask a service need not agree to the second."""


@singledispatch
def age(store: object, keys: Collection[bytes], micros: Micros) -> Aged:
    """Ask for ``micros`` to pass for the records of ``keys``; keys without a record are passed over.

    For a store of your own: decorate a function with the same arguments by ``@age.register(YourStore)``.
    """
    kind = type(store)
    raise ConfigurationError(
        f"It is not defined how time passes in a {kind.__name__}: define a function (store, keys, micros) that yields "
        f"asks which move the instants of these records back, under @retrysafe.testing.age.register({kind.__name__})."
    )


# ---------------------------------------------------------------- programs


def elapse(store: object, keys: Collection[bytes], micros: Micros) -> Program[None]:
    for request in age(store, keys, micros):
        yield from ask(request)


def elapse_all(
    store: OperableStore, micros: Micros, boundaries: Collection[str] | None = None
) -> Program[list[Record]]:
    """Let time pass for every record of these boundaries, or of all; the records are returned as they were."""
    records = yield from find_all(store, boundaries)
    yield from elapse(store, [record.key for record in records], micros)
    return records


def lapse(store: OperableStore, boundaries: Collection[str] | None = None) -> Program[list[Record]]:
    """Let time pass for every *running* record of these boundaries, or of all, until its lease has lapsed.

    It is as if the attempts had been frozen for so long. The records are returned as they were.
    """
    running = yield from find_all(store, boundaries, {EffectiveState.RUNNING})
    for record in running:
        yield from elapse(store, [record.key], record.lease_until - record.now + _beyond(store))
    return running


def clear(store: OperableStore, boundaries: Collection[str] | None = None) -> Program[int]:
    """Forget every record of these boundaries, or of all, running ones too; returns how many there were."""
    yield from lapse(store, boundaries)
    for record in (yield from find_all(store, boundaries, {EffectiveState.LAPSED})):
        yield from suspect(store, record, clocks_of(record))
    for record in (yield from find_all(store, boundaries, {EffectiveState.UNKNOWN})):
        yield from resolve(store, record, Transition.RESOLVE_RELEASED, None, clocks_of(record))
    records = yield from find_all(store, boundaries)
    for record in records:
        yield from elapse(store, [record.key], max(0, record.tombstone_until - record.now) + _beyond(store))
    yield from sweep(store, len(records))
    return len(records)


def _beyond(store: OperableStore) -> Micros:
    return BEYOND + store.capabilities.margin


def find_all(
    store: OperableStore, boundaries: Collection[str] | None = None, states: Iterable[EffectiveState] = ()
) -> Program[list[Record]]:
    records: dict[bytes, Record] = {}
    for boundary in [None] if boundaries is None else boundaries:
        cursor: str | None = None
        while True:
            page = yield from ask(store.scan(Filter(boundary, states=frozenset(states)), cursor, PAGE))
            records |= {record.key: record for record in page.records}
            cursor = page.cursor
            if cursor is None:
                break
    return list(records.values())


# ---------------------------------------------------------------- the stores that are ours


for _spec in registry.specs():
    for _store, _age in _spec.time_travel.items():
        age.register(_spec.load(_store), _spec.load(_age))
