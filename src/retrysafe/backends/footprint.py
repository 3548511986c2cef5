"""The size of one record in a store, for planning capacity; each backend's folder computes its own."""

from __future__ import annotations

from typing import NamedTuple


class Sizes(NamedTuple):
    """The sizes that decide what a record takes, in bytes.

    names: the names of the boundary and the operation, and the scope, together.
    result: the encoded result; a stored HTTP response counts with its headers.
    """

    names: int
    result: int


class Footprint(NamedTuple):
    """The size of one record.

    record: bytes in the table, or of the key with its value.
    indexes: bytes in its indexes.
    log: bytes that a new claim, its result and its removal by a sweeper write to the log that is replicated or synced;
        0 where there is none.
    requests, replay_requests: statements, scripts or calls for a new claim with its result, and for a replay.
    write_units, replay_units: request units of a service that bills them, for the same.
    notes: what else to plan for, as sentences.
    forgets: the store removes it by itself when it is forgotten.
    """

    record: float
    indexes: float
    log: float = 0.0
    requests: int = 2
    replay_requests: int = 1
    write_units: int = 0
    replay_units: int = 0
    notes: tuple[str, ...] = ()
    forgets: bool = False
