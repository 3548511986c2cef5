"""The Store protocols: the requests that each kind of store builds, their conditions, and the promises of a store.

A store performs nothing itself. Each method returns an `Ask` (a request and the function that parses its answer), which
a procedure yields and a driver runs on a sync or an async client.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import BinaryIO, NamedTuple, Protocol, runtime_checkable

from retrysafe.errors import StoreUnavailable
from retrysafe.protocol.records import (
    Cached,
    ClaimRequest,
    Clocks,
    Count,
    Filter,
    Finding,
    Micros,
    Ownership,
    Page,
    Partition,
    QuotaRefusal,
    Record,
    StoredResult,
    Tally,
)
from retrysafe.protocol.requests import Ask, Program
from retrysafe.protocol.transitions import Transition


class Removal(NamedTuple):
    """The answer of a sweep that removed some records, and gave the expiry back to others that had lost it."""

    removed: int
    repaired: int


class Capabilities(NamedTuple):
    """The promises of a store, and their limits.

    transactions: the record can share a transaction with the caller's data.
    waits_in_transaction: a duplicate may wait inside a transaction for another one to end.
    clock: the clock that decides leases and windows.
    durability: what survives, and under which setting.
    failover: what is lost when the server fails over to a replica.
    cannot_survive: the faults that can break a promise, or lose one, with this store.
    choose_when: for whom this store is the right one.
    largest_result: bytes of an encoded result; a larger one cannot be stored. None: the store's own limit is far away.
    margin: microseconds for which other attempts respect a lease beyond the time that its holder relies on; 0 where
        the store's own clock decides.
    quotas: how exactly the quota of a scope is kept; empty where it cannot be kept at all.
    largest_quota: the largest ``rate`` or ``outstanding`` that can be kept; None for any.
    looks_first: a read costs so little beside a transaction that a claim which opens one looks first whether the key
        is settled.
    stand_in: the program that took the product's place in the tests; empty where they ran on the product itself.
    never_run: nothing of it has ever run, neither on the product nor on a stand-in; its statements were parsed.
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
    largest_quota: int | None = None
    looks_first: bool = False
    stand_in: str = ""
    never_run: bool = False

    @property
    def tested_on(self) -> str:
        """The server that the tests ran on, in words; empty where that is the product itself."""
        return "nothing: never run" if self.never_run else self.stand_in and f"stand-in: {self.stand_in}"


class Store(Protocol):
    """The requests of one kind of store. Every method is pure.

    Each write is one atomic, conditional request; the condition comes from the table of transitions. A lost race is a
    return value, never an exception. A store that cannot be used raises `StoreUnavailable` from the client. A request
    whose reply is lost may have been performed, so each method says how its caller recognises that.
    """

    @property
    def capabilities(self) -> Capabilities:
        """The promises of this kind of store."""
        ...

    def admit(self, request: ClaimRequest) -> Program[QuotaRefusal | None]:
        """Count the key against the quota of ``request``, if `claim` does not check that itself.

        Condition: the quota has room, or the key is counted already. Refused: it returns a `QuotaRefusal`, and nothing
        was counted; the caller then reads the record, because a key that has one needs no room. Repeating it counts the
        key once.
        """
        ...

    def claim(self, request: ClaimRequest) -> Ask[Record | QuotaRefusal | None]:
        """Write the first record of a key.

        Condition: the key has no record, and its quota, if `claim` checks it, has room. Lost: the answer is the record
        that exists, and nothing was written. None: another transaction, which has not ended, is claiming the key. A
        `QuotaRefusal`: the key has no record and its quota no room; nothing was written. After a lost reply the claim
        is repeated, and recognises its own record by the attempt id.
        """
        ...

    def take(self, request: ClaimRequest, seen: Record) -> Ask[Record | None]:
        """Claim a key that has a record, for a new attempt with a higher token.

        Condition: the record has the attempt and version of ``seen``, and its effective state on the store's clock
        allows CLAIM. Lost: None, and nothing was written; the caller claims again to see the present record. A repeated
        take is lost to itself; the claim that follows finds the attempt's own record.
        """
        ...

    def settle(self, ownership: Ownership, event: Transition, result: StoredResult | None) -> Ask[bool]:
        """Settle the record by its owner: complete, fail, doubt or release it.

        Condition: the record has this attempt and token, and a state in which ``event`` is allowed. A lapsed lease does
        not prevent it. Lost: False, and nothing was written: another attempt has taken the key over, or the record was
        settled. Since the first of two equal requests may have settled it, the caller reads the record back.
        """
        ...

    def resolve(self, seen: Record, event: Transition, result: StoredResult | None, clocks: Clocks) -> Ask[bool]:
        """Settle a record from outside its attempt: by a duplicate, a probe, or a person.

        Condition: the record has the attempt and version of ``seen``, and a state in which ``event`` is allowed. Lost:
        False, and nothing was written; the caller reads the record again. A success raises the version by one, by which
        a lost reply is recognised.
        """
        ...

    def renew(self, ownerships: Sequence[Ownership]) -> list[Ask[set[bytes]]]:
        """Extend leases, from the store's present time.

        Condition, for each key: the record has the attempt and token of its claim, runs, and has not lapsed on the
        store's clock. Lost: the key is missing from the answer, and its lease is never extended again. Repeating it is
        harmless. One ask may be for many keys, but never for two claims to one key.
        """
        ...

    def read(self, key: bytes) -> Ask[Record | None]:
        """Read the record of a key, with the store's time; None when there is none. Unconditional."""
        ...

    def sweep(self, limit: int) -> Iterable[Ask[int] | Ask[Removal]]:
        """Remove up to ``limit`` tombstones that are over.

        Condition: the record is forgotten on the store's clock when it is removed. A record that was claimed meanwhile
        stays, and is not counted. The answers count the removed records; after a lost reply the count is too low. Empty
        where records expire natively; a store that finds there some that have lost their expiry gives it back, and
        answers with a `Removal`. Each ask is made after the one before has been answered.
        """
        ...


class OperableStore(Store, Protocol):
    """A store whose records an operator can list, count, archive and remove."""

    def forgotten(self, limit: int) -> list[Ask[list[Record]]]:
        """Read up to ``limit`` forgotten records with their results. Empty where they expire natively."""
        ...

    def remove(self, seen: Sequence[Record]) -> list[Ask[int]]:
        """Remove archived records.

        Condition, for each: it has the attempt and version of ``seen``, and is still forgotten. A record whose key was
        used again stays. The answers count the removed records.
        """
        ...

    def scan(self, wanted: Filter, cursor: str | None, limit: int) -> Ask[Page]:
        """Read a page of the records that the filter selects, in the store's own order, from ``cursor`` on."""
        ...

    def tally(self) -> list[Ask[list[Tally]]]:
        """Count the records by boundary and effective state. Empty where that takes a scan. Unconditional."""
        ...

    def examine(self) -> list[Ask[list[Finding]]]:
        """Read the server's settings that affect promises. Unconditional."""
        ...


@runtime_checkable
class CountingStore(OperableStore, Protocol):
    """A store that counts selected records without handing them out."""

    def count_selected(self, wanted: Filter, most: int) -> list[Ask[Count]]:
        """Count the selected records among the first ``most`` that each ask looks at. Unconditional."""
        ...


class TransactionalStore(Store, Protocol):
    """A store whose records can share a transaction with the caller's data."""

    def begin(self) -> Ask[None]:
        """Begin a transaction; every ask below belongs to the connection that it was put on."""
        ...

    def savepoint(self) -> Ask[None]:
        """Mark the point to which a permanent failure rolls back."""
        ...

    def rollback_to_savepoint(self) -> Ask[None]:
        """Undo what came after the savepoint."""
        ...

    def commit(self) -> Ask[None]:
        """Commit. After a lost reply the caller reads the record back on another connection."""
        ...

    def rollback(self) -> Ask[None]:
        """Roll back; a connection that is gone has rolled back by itself."""
        ...

    def isolation(self) -> list[Ask[str]]:
        """Read the isolation level. Empty where a waiting duplicate always sees what was committed."""
        ...

    def schema_version(self) -> list[Ask[int | None]]:
        """Read the schema's version: asks to put in turn, until one answers None (no schema) or is the last."""
        ...


@runtime_checkable
class BatchStore(TransactionalStore, Protocol):
    """A store that claims many keys in one statement, inside a transaction of the boundary's own."""

    def claim_many(self, requests: Sequence[ClaimRequest]) -> Ask[dict[bytes, int]]:
        """Write the first records of many keys for one attempt.

        Condition, for each key: it has no record, and no other transaction is claiming it; this request does not wait
        for such a transaction. Lost: the key is missing from the answer, which maps claimed keys to their tokens, and
        nothing was written for it. Never repeated: a failure rolls the transaction back.
        """
        ...

    def read_many(self, keys: Sequence[bytes]) -> Ask[dict[bytes, Record]]:
        """Read the records of many keys; keys without one are missing from the answer. Unconditional."""
        ...

    def complete_many(self, ownerships: Sequence[Ownership], result: StoredResult) -> Ask[int]:
        """Complete the records of one attempt, in the transaction that claimed them.

        Condition, for each: it has the attempt and token of its claim, and is not settled. Lost: the answer, the number
        of completed records, is less than the number of claims, and the caller rolls back.
        """
        ...


@runtime_checkable
class RotatingStore(TransactionalStore, Protocol):
    """A store whose records lie in partitions, which can be rewritten one at a time instead of deleting row by row."""

    def partitions(self) -> Ask[list[Partition]]:
        """The partitions; empty when the records lie in one plain table."""
        ...

    def share(self, partition: Partition) -> Ask[float]:
        """Estimate the forgotten share of a partition, from 0 to 1, by a sample."""
        ...

    def enter(self, partition: Partition) -> list[Ask[None]]:
        """Begin: bound what follows in time, and lock the partition. The last ask fails if that takes long."""
        ...

    def ran_out_of_time(self, error: StoreUnavailable) -> bool:
        """Tell whether an error says that a statement was ended at the bound of `enter`."""
        ...

    def count(self, partition: Partition) -> Ask[int]:
        """Count the records of the partition."""
        ...

    def unload(self, partition: Partition, spool: BinaryIO) -> list[Ask[int]]:
        """Copy the records that are not forgotten to the spool; the last answer counts them."""
        ...

    def reload(self, partition: Partition, spool: BinaryIO) -> list[Ask[int]]:
        """Empty the partition and copy the spool back, visible to every snapshot; the last answer counts them."""
        ...

    def sweep_partition(self, partition: Partition, limit: int) -> Ask[int]:
        """Remove up to so many forgotten records of a partition, row by row; the answer counts them."""
        ...


class Cache(Protocol):
    """Settled records of a durable store, kept in a faster one. Losing them costs time, never correctness."""

    def look(self, key: bytes) -> Ask[Cached]:
        """Read the cached record of a key, with the cache's time."""
        ...

    def keep(self, record: Record, until: Micros) -> Ask[None]:
        """Keep a settled record until an instant of the cache's clock.

        Condition: the cache has no later version of the record, and no mark of a later change. Lost: nothing is kept.
        """
        ...

    def drop(self, changed: Record, until: Micros) -> Ask[None]:
        """Drop a record that was changed, and mark the change until an instant of the cache's clock.

        Until then `keep` loses with any version from before the change, which a slow reader may still hold.
        """
        ...
