"""The three ways to charge a payment. Nothing here knows what will go wrong, or when."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Literal, NamedTuple

from retrysafe import Boundary, Observer, current
from retrysafe_demo.client import Bank, Receipt
from retrysafe_demo.payments import Payment

LEASE = 1.0
"""Seconds for which an attempt is believed to be alive without a renewal."""
Charge = Callable[[Payment], Receipt]
"""Charges a payment at the bank."""
Pay = Callable[[Payment], object]
"""Charges a payment, unless its lane finds that this was done."""


class Lane(StrEnum):
    """One way to charge a payment."""

    UNSAFE = "unsafe"
    NAIVE = "naive"
    RETRYSAFE = "retrysafe"


class Setting(NamedTuple):
    """The settings of a worker at its start. ``listener``: the descriptor of its API's socket, if it serves one."""

    lane: str
    bank_port: int
    keys_file: str
    store: str
    run: str
    bank_has_keys: bool
    listener: int | None = None


# ------------------------------------------------------------ the charge itself


def bare(bank: Bank) -> Charge:
    """Charge without a key, as most code does."""

    def charge(payment: Payment) -> Receipt:
        return bank.charge(bank.prepare(payment))

    return charge


def guarded(bank: Bank, *, bank_has_keys: bool) -> Charge:
    """Charge inside a claim.

    If the bank knows keys, an attempt that died is run again under the same derived key, and one that was
    stopped and comes back late gets the first charge from the bank. If it does not, an attempt that ended
    in doubt stays *unknown*, and one that comes back late asks whether it still holds its key before it
    charges. A worker that is stopped between that question and the bank's door still charges, once, while
    its key is already called unknown: only the bank could refuse it. Nobody else charges in its place.
    """

    def charge(payment: Payment) -> Receipt:
        order = bank.prepare(payment)
        if bank_has_keys:
            return bank.charge(order, key=current().key_for("bank"))
        current().ensure_held()
        return bank.charge(order)

    return charge


def boundary(store: str, *, run: str, bank_has_keys: bool, observers: Sequence[Observer] | None = None) -> Boundary:
    """Make the boundary of the third lane; keys of two runs never meet."""
    effects: Literal["keyed", "external"] = "keyed" if bank_has_keys else "external"
    return Boundary("payments", store=store, scope=run or None, lease=LEASE, effects=effects, observers=observers)


def keys_table(path: str) -> sqlite3.Connection:
    """The table of the naive lane, made if it is missing; every statement commits by itself."""
    table = sqlite3.connect(path, timeout=30.0, isolation_level=None)
    table.execute("PRAGMA journal_mode = WAL")
    table.execute("PRAGMA synchronous = NORMAL")
    table.execute("CREATE TABLE IF NOT EXISTS keys (key TEXT PRIMARY KEY, status INTEGER, body BLOB)")
    return table


# ------------------------------------------------------------ as functions; `api` has the same lanes over HTTP


def naive(charge: Charge, keys_file: str) -> Pay:
    """Check a key, charge, set the key: right until two check at once, or one dies in between."""
    table = keys_table(keys_file)

    def pay(payment: Payment) -> None:
        if not table.execute("SELECT 1 FROM keys WHERE key = ?", [payment.id]).fetchone():
            charge(payment)
            table.execute("INSERT OR IGNORE INTO keys (key) VALUES (?)", [payment.id])

    return pay


def retrysafe(charge: Charge, payments: Boundary) -> Pay:
    """Guard the charge with a boundary."""
    return payments.once(key="payment.id", operation="charge")(charge)
