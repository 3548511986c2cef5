"""The intents: payments from a CSV file, checked before anything is charged."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from importlib.resources import files
from pathlib import Path

COLUMNS = ("id", "account", "amount", "currency")
LONGEST_ID = 200


class InputError(Exception):
    """The payments cannot be read; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Payment:
    """One intent: this account is to be charged this amount, once."""

    id: str
    account: str
    amount: Decimal
    currency: str

    def as_json(self) -> dict[str, str]:
        """The payment as text only, so that no amount passes through a binary float."""
        return {"id": self.id, "account": self.account, "amount": str(self.amount), "currency": self.currency}

    @classmethod
    def from_json(cls, plain: Mapping[str, str]) -> Payment:
        """The payment that `as_json` wrote."""
        return cls(plain["id"], plain["account"], Decimal(plain["amount"]), plain["currency"])


def shipped() -> list[Payment]:
    """The payments that come with the package."""
    text = files("retrysafe_demo").joinpath("payments.csv").read_text(encoding="utf-8")
    return parse(text, "payments.csv")


def load(path: str) -> list[Payment]:
    """Read a CSV file with the columns id, account, amount and currency; raises `InputError`."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    return parse(text, path)


def parse(text: str, source: str) -> list[Payment]:
    """Check every row; the first that is wrong ends it."""
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    found: dict[str, Payment] = {}
    try:
        missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
        if missing:
            raise InputError(f"{source}: column {missing[0]!r} is missing; the columns are {', '.join(COLUMNS)}")
        for row in reader:
            payment = checked(row, f"{source}, line {reader.line_num}")
            if payment.id in found:
                raise InputError(f"{source}, line {reader.line_num}: id {payment.id!r} stands twice")
            found[payment.id] = payment
    except csv.Error as error:
        raise InputError(f"{source}, line {reader.reader.line_num}: {error}") from error
    if not found:
        raise InputError(f"{source}: there is no payment in it")
    return list(found.values())


def checked(row: Mapping[str, str | None], where: str) -> Payment:
    """The payment of one row of text; raises `InputError` that begins with ``where``."""
    cells = {column: (row[column] or "").strip() for column in COLUMNS}
    empty = [column for column, cell in cells.items() if not cell]
    if empty:
        raise InputError(f"{where}: {empty[0]} is empty")
    if len(cells["id"]) > LONGEST_ID or not cells["id"].isprintable():
        raise InputError(f"{where}: an id has at most {LONGEST_ID} printable characters")
    try:
        amount = Decimal(cells["amount"])
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite() or amount <= 0:
        raise InputError(f"{where}: amount {cells['amount']!r} is not a number above zero")
    return Payment(cells["id"], cells["account"], amount, cells["currency"])


def take(payments: list[Payment], count: int) -> list[Payment]:
    """The first ``count`` payments; when there are fewer, they come again as new intents with new ids."""
    return list(itertools.islice(_endless(payments), count))


def _endless(payments: list[Payment]) -> Iterator[Payment]:
    yield from payments
    used = {payment.id for payment in payments}
    for again in itertools.count(2):
        for payment in payments:
            name = f"{payment.id}-{again}"
            if name not in used:
                yield Payment(name, payment.account, payment.amount, payment.currency)
