"""Transactions and the schema, as a database controls them.

A database that has no number for a transaction recognises it by a savepoint, which ends with the transaction.
"""

from __future__ import annotations

from functools import cache
from typing import ClassVar, TypeVar

from retrysafe.backends.sql.reading import first_value
from retrysafe.protocol.records import ClaimRequest, Ownership
from retrysafe.protocol.requests import Ask, Query, nothing

R = TypeVar("R")

_NO_SAVEPOINT = "3B001"


BATCH = "retrysafe_batch"
"""The mark of claims that are made together; they have a transaction of their own, so that no two batches share it."""


def mark_first(mark: str, claim: Query) -> Query:
    """Mark the transaction, then claim in it; of the parameters only ``own_schema`` is read here, by a driver."""
    return Query(f"SAVEPOINT {mark}", claim.params, otherwise=claim)


def in_its_transaction(mark: str, settle: Ask[R]) -> Ask[R]:
    """Settle, if the transaction is the one that claimed; else no row is changed."""
    same = Query(f"RELEASE SAVEPOINT {mark}", settle.request.params, settle.request, refusals={_NO_SAVEPOINT: None})
    return Ask(same, settle.parse)


def mark_of(claim: ClaimRequest | Ownership) -> str:
    """A name of this key's own, since claims may nest in one transaction; the same in every run of the same code."""
    return f"retrysafe_{claim.key[:16].hex()}"


class SqlTransactions:
    """Statements that open and end a transaction, and read the version of the schema."""

    BEGIN: ClassVar[str] = "BEGIN"
    SAVEPOINT: ClassVar[str] = "SAVEPOINT retrysafe"
    ROLLBACK_TO_SAVEPOINT: ClassVar[str] = "ROLLBACK TO SAVEPOINT retrysafe"
    ROLLBACK: ClassVar[str] = "ROLLBACK"
    HOLDERS: ClassVar[str | None] = None
    """A query for what keeps the database from cleaning up what was removed: names and seconds, the oldest first."""
    TRANSACTIONS: ClassVar[str] = "0, 0"
    """Below which number all transactions have ended, and one that is higher than those of all that have begun."""
    UNFROZEN: ClassVar[str | None] = None
    """The first statement of a transaction whose others each see what was committed last, where that is to be said."""
    OUTLASTS: ClassVar[str | None] = None
    """A statement by which the transaction is not ended before it was silent for so many ``:seconds``."""
    SILENCE: ClassVar[str] = ""
    """More columns of a SELECT, by which the transaction ends when nothing is asked in it for so many ``:silence``."""
    ISOLATION: ClassVar[str | None] = None
    """A query for the isolation level of the current transaction, where it decides what a waiter can see."""
    HAS_SCHEMA: ClassVar[str]
    """A query that gives a row with a value exactly when the schema's own table exists."""
    MIGRATION_BOUNDS: ClassVar[Query | None] = None
    """A statement that bounds the wait of a migration for the locks of others, behind which claims wait."""
    BLOCKERS: ClassVar[str | None] = None
    """A query for the sessions that are in the way of a migration, in words, the oldest transactions first."""
    MIGRATION_LOCK: ClassVar[Query | None] = None
    """A statement that keeps two migrating processes apart, where BEGIN does not."""
    MIGRATION_UNLOCK: ClassVar[Query | None] = None
    """A statement that gives that lock back, if the end of the transaction does not."""

    def begin(self) -> Ask[None]:
        return _control("begin", self.BEGIN)

    def savepoint(self) -> Ask[None]:
        return _control("savepoint", self.SAVEPOINT)

    def rollback_to_savepoint(self) -> Ask[None]:
        return _control("rollback_to_savepoint", self.ROLLBACK_TO_SAVEPOINT)

    def commit(self) -> Ask[None]:
        return _control("commit", "COMMIT")

    def rollback(self) -> Ask[None]:
        return _control("rollback", self.ROLLBACK)

    def isolation(self) -> list[Ask[str]]:
        return [] if self.ISOLATION is None else [Ask(Query(self.ISOLATION, {}, writes=False), first_value)]

    def schema_version(self) -> list[Ask[int | None]]:
        exists = Query(self.HAS_SCHEMA, {}, writes=False)
        version = Query("SELECT max(version) FROM retrysafe_schema", {}, writes=False)
        return [Ask(exists, first_value), Ask(version, first_value)]

    def blockers(self) -> list[Ask[list[str]]]:
        """Ask for the sessions in the way of a migration; empty where none can be."""
        if self.BLOCKERS is None:
            return []
        return [Ask(Query(self.BLOCKERS, {}, writes=False), lambda answer: [str(row[0]) for row in answer.rows])]


@cache
def _control(name: str, sql: str) -> Ask[None]:
    return Ask(Query(sql, {}, control=name), nothing)
