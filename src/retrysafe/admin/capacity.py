"""The records, bytes and requests that a rate of keys makes in a store: arithmetic, without asking any store."""

from __future__ import annotations

import math
from typing import NamedTuple

from retrysafe.backends import registry
from retrysafe.backends.footprint import Footprint, Sizes
from retrysafe.errors import ConfigurationError

SWEEP_RATE = 10_000
"""Records a second that one sweeper removes, with its pauses, on the slowest store: MySQL, on a busy machine."""
PARTITION_FROM = 20_000_000
"""From so many records on, rewriting partitions costs PostgreSQL less than deleting row by row and vacuuming."""
PARTITION = 500_000
"""Records in a partition: rewriting it, with up to half of them to stay, takes a few seconds at most."""


class PlannedLoad(NamedTuple):
    """The load on a store. Times are seconds, sizes bytes.

    rate: new keys a second, at the peak.
    memory: how long a key is remembered: ``memory=``, or ``window=`` where that is not given.
    duplicates: the share of calls that repeat a key, from 0 to less than 1.
    """

    rate: float
    memory: float
    sizes: Sizes
    duplicates: float = 0.05
    sweep_every: float = 3600.0


class CapacityPlan(NamedTuple):
    """The needs of a store for a load. Rates are per second, sizes are bytes.

    records: remembered keys, with those that wait for the next sweep.
    store_bytes, index_bytes: what they take.
    log_rate: bytes a second to the log.
    requests: statements, scripts or calls a second that the application sends, without those of transactions.
    write_units: request units a second of a service that bills them, replays included.
    sweep: records a second that have to be removed.
    sweepers: how many sweepers keep up; 0 where the store forgets by itself.
    partitions: into how many to divide the table; 1: none.
    """

    records: int
    store_bytes: int
    index_bytes: int
    log_rate: float
    requests: float
    write_units: float
    sweep: float
    sweepers: int
    partitions: int
    footprint: Footprint


def plan(kind: str, load: PlannedLoad) -> CapacityPlan:
    """Plan a store of a kind, such as "postgresql". Raises `ConfigurationError` for a load that cannot be."""
    _check(load)
    footprint = footprint_of(kind, load.sizes)
    waiting = 0.0 if footprint.forgets else load.sweep_every
    records = math.ceil(load.rate * (load.memory + waiting))
    calls = load.rate / (1 - load.duplicates)
    replays = calls - load.rate
    return CapacityPlan(
        records,
        round(records * footprint.record),
        round(records * footprint.indexes),
        load.rate * footprint.log,
        load.rate * footprint.requests + replays * footprint.replay_requests,
        load.rate * footprint.write_units + replays * footprint.replay_units,
        0.0 if footprint.forgets else load.rate,
        0 if footprint.forgets else math.ceil(load.rate / SWEEP_RATE),
        _partitions(kind, records),
        footprint,
    )


_PARTITIONED = ("postgresql",)


def kinds() -> tuple[str, ...]:
    """The kinds of stores that can be planned."""
    return tuple(kind for spec in registry.specs() for kind in spec.footprints)


def footprint_of(kind: str, sizes: Sizes) -> Footprint:
    """Compute the size of one record in a store of a kind. Raises `ConfigurationError` for one that is not known."""
    for spec in registry.specs():
        if kind in spec.footprints:
            found: Footprint = spec.load(spec.footprints[kind])(sizes)
            return found
    raise ConfigurationError(f"There is no plan for a store of kind {kind!r}; there is one for {', '.join(kinds())}.")


def _partitions(kind: str, records: int) -> int:
    if kind not in _PARTITIONED or records < PARTITION_FROM:
        return 1
    return int(2 ** math.ceil(math.log2(records / PARTITION)))


def _check(load: PlannedLoad) -> None:
    if not 0 < load.rate < 1e9:
        raise ConfigurationError(f"rate={load.rate!r}: expected new keys a second, more than 0.")
    if not 0 <= load.duplicates < 1:
        raise ConfigurationError(f"duplicates={load.duplicates!r}: expected a share from 0 to less than 1.")
    if load.sizes.result < 0 or load.sizes.names < 0:
        raise ConfigurationError("Sizes are bytes, 0 or more.")
