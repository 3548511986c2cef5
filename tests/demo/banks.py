"""A bank to charge at."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

from retrysafe_demo.audit import read_ledger
from retrysafe_demo.client import Bank, Mishaps, Receipt, mishaps
from retrysafe_demo.payments import Payment
from retrysafe_demo.processes import Child
from retrysafe_demo.schedule import Fault

PAYMENT = Payment("A-1", "DE01", Decimal("12.30"), "EUR")


class Fate(Mishaps):
    """The mishaps of one request: one fault on the wire, nothing else."""

    def __init__(self, fault: Fault | None = None) -> None:
        self.fault = fault
        self.recognised = False

    def after_charge(self, *, recognised: bool) -> None:
        self.recognised = recognised


class OpenBank:
    """A running bank and its ledger."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.ledger = folder / "ledger.jsonl"
        self.child = Child("bank", "--ledger", str(self.ledger), *options, log=folder / "bank.log")
        assert self.child.process.stdout is not None
        self.port = int(self.child.process.stdout.readline())

    def charge(self, key: str | None = None, fate: Fate | None = None, payment: Payment = PAYMENT) -> Receipt:
        bank = Bank(self.port)
        mishaps.set(fate or Fate())
        return bank.charge(bank.prepare(payment), key)

    def closed(self) -> list[str]:
        """The payments charged, once the bank has finished what it had begun."""
        self.child.hang_up()
        assert self.child.finish()
        return [entry["payment"] for entry in read_ledger(self.ledger)]
