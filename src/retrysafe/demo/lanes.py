"""The three ways to charge a payment. Nothing here knows what will go wrong, or when."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from retrysafe import Boundary, Occurrence, current
from retrysafe.demo.client import Bank, Receipt
from retrysafe.demo.payments import Payment

LEASE = 1.0
"""Seconds for which an attempt is believed to be alive without a renewal."""
Pay = Callable[[Payment], bool]
"""Charges a payment; True means that it was answered from a record and the bank was not called."""


class Lane(StrEnum):
    """One way to charge a payment."""

    UNSAFE = "unsafe"
    NAIVE = "naive"
    RETRYSAFE = "retrysafe"


class Setting(NamedTuple):
    """What a worker is told when it starts."""

    lane: str
    bank_port: int
    keys_file: str
    store: str
    run: str
    bank_has_keys: bool


def unsafe(bank: Bank) -> Pay:
    """Charge whenever asked."""

    def pay(payment: Payment) -> bool:
        bank.charge(bank.prepare(payment))
        return False

    return pay


def naive(bank: Bank, keys_file: str) -> Pay:
    """Check a key, charge, set the key: right until two check at once, or one dies in between."""
    table = keys_table(keys_file)

    def pay(payment: Payment) -> bool:
        if table.execute("SELECT 1 FROM keys WHERE key = ?", [payment.id]).fetchone():
            return True
        bank.charge(bank.prepare(payment))
        table.execute("INSERT OR IGNORE INTO keys (key) VALUES (?)", [payment.id])
        return False

    return pay


def keys_table(path: str) -> sqlite3.Connection:
    """The table of the naive lane, made if it is missing; every statement commits by itself."""
    table = sqlite3.connect(path, timeout=30.0, isolation_level=None)
    table.execute("CREATE TABLE IF NOT EXISTS keys (key TEXT PRIMARY KEY)")
    return table


class Told:
    """An observer: the names of what the boundary has told about one delivery."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, occurrence: Occurrence, /) -> None:
        """Take note."""
        self.names.append(occurrence.name)


def retrysafe(bank: Bank, setting: Setting, told: Told) -> tuple[Pay, Boundary]:
    """Guard the charge with a boundary.

    If the bank knows keys, an attempt that died is run again under the same derived key, and one that was
    stopped and comes back late gets the first charge from the bank. If it does not, an attempt that ended
    in doubt stays *unknown*, and one that comes back late asks whether it still holds its key before it
    charges. A worker that is stopped between that question and the bank's door still charges, once, while
    its key is already called unknown: only the bank could refuse it. Nobody else charges in its place.
    """
    payments = Boundary(
        "payments",
        store=setting.store,
        scope=setting.run,
        lease=LEASE,
        effects="keyed" if setting.bank_has_keys else "external",
        observers=[told],
    )

    @payments.once(key="payment.id", operation="charge")
    def charge(payment: Payment) -> Receipt:
        order = bank.prepare(payment)
        if setting.bank_has_keys:
            return bank.charge(order, key=current().key_for("bank"))
        current().ensure_held()
        return bank.charge(order)

    def pay(payment: Payment) -> bool:
        charge(payment)
        return "replayed" in told.names

    return pay, payments
