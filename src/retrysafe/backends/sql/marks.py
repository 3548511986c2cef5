"""How a database that has no number for a transaction knows one again: by a savepoint, which ends with it."""

from __future__ import annotations

from typing import TypeVar

from retrysafe.protocol.asks import Ask
from retrysafe.protocol.records import ClaimRequest, Ownership
from retrysafe.protocol.requests import Query

R = TypeVar("R")

_NO_SAVEPOINT = "3B001"


BATCH = "retrysafe_batch"
"""The mark of claims that are made together; they have a transaction of their own, so that no two batches share it."""


def marked(mark: str, claim: Query) -> Query:
    """Mark the transaction, then claim in it."""
    return Query(f"SAVEPOINT {mark}", {}, claim)


def in_its_transaction(mark: str, settle: Ask[R]) -> Ask[R]:
    """Settle, if the transaction is the one that claimed; else no row is changed."""
    same = Query(f"RELEASE SAVEPOINT {mark}", {}, settle.request, refusals={_NO_SAVEPOINT: None})
    return Ask(same, settle.parse)


def mark_of(claim: ClaimRequest | Ownership) -> str:
    """A name of this key's own, since claims may nest in one transaction; the same in every run of the same code."""
    return f"retrysafe_{claim.key[:16].hex()}"
