"""Stores of records: what each kind is asked, and what it can promise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import BinaryIO, NamedTuple, Protocol, runtime_checkable

from retrysafe.protocol.asks import Ask
from retrysafe.protocol.records import (
    Cached,
    ClaimRequest,
    Clocks,
    Filter,
    Finding,
    Micros,
    Ownership,
    Page,
    Partition,
    Record,
    Refusal,
    StoredResult,
    Tally,
)
from retrysafe.protocol.transitions import Transition


class Capabilities(NamedTuple):
    """What a store can and cannot promise.

    transactions: the record can share a transaction with the caller's data.
    waits_in_transaction: a duplicate may wait inside a transaction for another one to end.
    clock: whose time decides leases and windows.
    durability: what survives, and under which setting.
    failover: what is lost when the server fails over to a replica.
    cannot_survive: the faults that can break a promise, or lose one, with this store.
    choose_when: for whom this store is the right one.
    largest_result: bytes of an encoded result; a larger one cannot be stored. None: the store's own limit is far away.
    margin: microseconds by which others wait longer for a lease than its holder relies on it: none where the store's
        own clock judges.
    quotas: how exactly the quota of a scope is kept; empty where it cannot be kept at all.
    looks_first: a read costs so little beside a transaction that a claim which opens one looks first whether the key
        is settled.
    """

    name: str
    transactions: bool
    waits_in_transaction: bool
    clock: str
    durability: str
    failover: str
    cannot_survive: tuple[str, ...]
    choose_when: str
    largest_result: int | None = None
    margin: Micros = 0
    quotas: str = ""
    looks_first: bool = False


class Store(Protocol):
    """What to ask of one kind of store. Every method is pure.

    Each write states its condition, taken from the transition table; losing is a return value.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What this kind of store can promise."""
        ...

    def admit(self, request: ClaimRequest) -> list[Ask[Refusal | None]]:
        """Count a key against the quota that ``request`` has, unless it is counted already, or refuse it.

        Asked before a claim that has a quota. Empty where `claim` judges by itself.
        """
        ...

    def claim(self, request: ClaimRequest) -> Ask[Record | Refusal | None]:
        """Write a first record if the key has none, else return the record that is there.

        None means that a transaction which has not ended yet is claiming the key. A refusal means that the key
        has no record and its quota no room, and that nothing was written.
        """
        ...

    def take(self, request: ClaimRequest, seen: Record) -> Ask[Record | None]:
        """Claim a key whose record is as ``seen`` and claimable; None when it changed meanwhile."""
        ...

    def settle(self, held: Ownership, event: Transition, result: StoredResult | None) -> Ask[bool]:
        """Let the owner complete, fail, doubt or release; False when it owns the record no longer."""
        ...

    def resolve(self, seen: Record, event: Transition, result: StoredResult | None, clocks: Clocks) -> Ask[bool]:
        """Let somebody else settle a record that is as ``seen``; False when it changed meanwhile."""
        ...

    def renew(self, held: Sequence[Ownership]) -> list[Ask[set[bytes]]]:
        """Extend leases that have not lapsed; the answers hold the keys that were extended."""
        ...

    def read(self, key: bytes) -> Ask[Record | None]:
        """Return the record."""
        ...

    def sweep(self, limit: int) -> Iterable[Ask[int]]:
        """Remove up to ``limit`` forgotten records; the answers count them. Empty where they expire natively.

        Each ask is made when the one before it has been answered.
        """
        ...


class OperableStore(Store, Protocol):
    """A store that an operator can look into and clear up."""

    def forgotten(self, limit: int) -> list[Ask[list[Record]]]:
        """Return up to ``limit`` forgotten records with their results. Empty where they expire natively."""
        ...

    def remove(self, seen: Sequence[Record]) -> list[Ask[int]]:
        """Remove those that are still as ``seen`` and forgotten; the answers count them."""
        ...

    def scan(self, wanted: Filter, cursor: str | None, limit: int) -> Ask[Page]:
        """Return a page of the records that are wanted, in the store's own order, from ``cursor`` on."""
        ...

    def tally(self) -> list[Ask[list[Tally]]]:
        """Count the records by boundary and standing. Empty where that takes a scan."""
        ...

    def examine(self) -> list[Ask[list[Finding]]]:
        """Look at the server's settings."""
        ...


class TransactionalStore(Store, Protocol):
    """A store whose records can share a transaction with the caller's data."""

    def begin(self) -> Ask[None]:
        """Open a transaction."""
        ...

    def savepoint(self) -> Ask[None]:
        """Mark the point to which a permanent failure rolls back."""
        ...

    def rollback_to_savepoint(self) -> Ask[None]:
        """Undo what came after the savepoint."""
        ...

    def commit(self) -> Ask[None]:
        """Commit."""
        ...

    def rollback(self) -> Ask[None]:
        """Roll back."""
        ...

    def isolation(self) -> list[Ask[str]]:
        """Ask for the isolation level; empty where a waiting duplicate always sees what was committed."""
        ...

    def schema_version(self) -> list[Ask[int | None]]:
        """The schema's version: asks to put in turn until one answers None (no schema) or is the last."""
        ...


@runtime_checkable
class BatchStore(TransactionalStore, Protocol):
    """A store that claims many keys in one statement, inside a transaction of the boundary's own."""

    def claim_many(self, requests: Sequence[ClaimRequest]) -> Ask[dict[bytes, int]]:
        """Insert first records for keys that have none and that nobody else is claiming; the tokens of those keys.

        The wants are of one attempt. It waits for nobody.
        """
        ...

    def read_many(self, keys: Sequence[bytes]) -> Ask[dict[bytes, Record]]:
        """The records of keys, as far as there are any."""
        ...

    def complete_many(self, held: Sequence[Ownership], result: StoredResult) -> Ask[int]:
        """Complete the records of one attempt, in the transaction that claimed them; how many that were."""
        ...


@runtime_checkable
class RotatingStore(TransactionalStore, Protocol):
    """A store whose records lie in partitions, which can be rewritten one at a time instead of deleting row by row."""

    def partitions(self) -> Ask[list[Partition]]:
        """The partitions; empty when the records lie in one plain table."""
        ...

    def share(self, partition: Partition) -> Ask[float]:
        """About how much of a partition is forgotten: 0 to 1, from a sample."""
        ...

    def enter(self, partition: Partition) -> list[Ask[None]]:
        """Begin: bound what follows in time, and lock the partition. The last ask fails if that takes long."""
        ...

    def count(self, partition: Partition) -> Ask[int]:
        """How many records the partition holds."""
        ...

    def unload(self, partition: Partition, spool: BinaryIO) -> Ask[int]:
        """Copy what is not forgotten to the spool; the answer counts it."""
        ...

    def reload(self, partition: Partition, spool: BinaryIO) -> list[Ask[int]]:
        """Empty the partition and copy the spool back, visible to every snapshot; the last answer counts it."""
        ...


class Cache(Protocol):
    """Settled records of a durable store, kept in a faster one. Losing them costs time, never correctness."""

    def look(self, key: bytes) -> Ask[Cached]:
        """Return what is kept of a key."""
        ...

    def keep(self, record: Record, until: Micros) -> Ask[None]:
        """Keep a settled record until an instant of the cache's clock, unless a later version is known."""
        ...

    def drop(self, changed: Record, until: Micros) -> Ask[None]:
        """Forget a record that was changed; what was read before the change must not be kept until then."""
        ...
