"""How a database that has no number for a transaction knows one again: by a savepoint, which ends with it."""

from __future__ import annotations

from typing import TypeVar

from retrysafe.ports import Ask, Query
from retrysafe.types import Held, Want

R = TypeVar("R")

_NO_SAVEPOINT = "3B001"


def marked(want: Want, claim: Query) -> Query:
    """Mark the transaction, then claim in it."""
    return Query(f"SAVEPOINT {_mark(want)}", {}, claim)


def in_its_transaction(held: Held, settle: Ask[R]) -> Ask[R]:
    """Settle, if the transaction is the one that claimed; else no row is changed. A leased claim has none."""
    if not held.transactional:
        return settle
    same = Query(f"RELEASE SAVEPOINT {_mark(held)}", {}, settle.request, refusals={_NO_SAVEPOINT: None})
    return Ask(same, settle.parse)


def _mark(claim: Want | Held) -> str:
    """A name of this key's own, since claims may nest in one transaction; the same in every run of the same code."""
    return f"retrysafe_{claim.key[:16].hex()}"
