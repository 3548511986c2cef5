"""The audit: the intents against the bank's own ledger file, not against what workers claim.

Every intent is counted in exactly one of four columns, so they add up::

    intents = charged_once + charged_twice + lost + uncertain

charged_twice: the ledger has two charges or more for it, whatever else is said about it.
uncertain: the lane has declared that it does not know; the ledger has one charge or none.
charged_once, lost: nothing was declared uncertain; the ledger has one charge, or none.

wrong_amount is counted apart: intents with a charge of another amount, currency or account, and
charges for a payment that nobody intended. replayed counts answers from a record, without a call.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import NamedTuple

from retrysafe_demo.payments import Payment
from retrysafe_demo.processes import DemoError


class Count(NamedTuple):
    """The findings of one lane's audit."""

    intents: int
    charged_once: int
    charged_twice: int
    lost: int
    wrong_amount: int
    uncertain: int
    replayed: int

    @property
    def kept(self) -> bool:
        """True if nothing was charged twice, lost or altered."""
        return not (self.charged_twice or self.lost or self.wrong_amount)


def read_ledger(path: Path) -> list[Mapping[str, str]]:
    """Every charge in the bank's ledger file."""
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise DemoError(f"the bank's ledger {path} cannot be read: {error}") from error


def audit(
    payments: Sequence[Payment],
    ledger: Iterable[Mapping[str, str]],
    uncertain: Iterable[str] = (),
    replayed: int = 0,
) -> Count:
    """Compare intents and charges."""
    charges: dict[str, list[Mapping[str, str]]] = defaultdict(list)
    for entry in ledger:
        charges[entry["payment"]].append(entry)
    in_doubt = frozenset(uncertain)
    intended = {payment.id for payment in payments}
    found = {payment.id: _column(len(charges[payment.id]), payment.id in in_doubt) for payment in payments}
    columns = list(found.values())
    altered = sum(not all(_fits(payment, entry) for entry in charges[payment.id]) for payment in payments)
    strays = sum(len(entries) for name, entries in charges.items() if name not in intended)
    return Count(
        intents=len(payments),
        charged_once=columns.count("charged_once"),
        charged_twice=columns.count("charged_twice"),
        lost=columns.count("lost"),
        wrong_amount=altered + strays,
        uncertain=columns.count("uncertain"),
        replayed=replayed,
    )


def _column(charges: int, in_doubt: bool) -> str:
    if charges > 1:
        return "charged_twice"
    if in_doubt:
        return "uncertain"
    return "charged_once" if charges else "lost"


def _fits(payment: Payment, entry: Mapping[str, str]) -> bool:
    try:
        amount = Decimal(entry["amount"])
    except InvalidOperation:
        return False
    return (entry["account"], amount, entry["currency"]) == (
        payment.account,
        payment.amount,
        payment.currency,
    )


def charged_in_doubt(ledger: Iterable[Mapping[str, str]], uncertain: Iterable[str]) -> int:
    """Count the uncertain payments that the bank has charged after all."""
    return len({entry["payment"] for entry in ledger} & set(uncertain))
