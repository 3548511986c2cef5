"""Results that a person gives for a key: callers get them as the type that the operation returns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from retrysafe import Boundary, CommandBus, ConfigurationError, JSONCodec, ResultUnreadable, StoredFailure
from retrysafe.admin.answers import json_result
from retrysafe.admin.operator import Operator
from retrysafe.protocol.records import StoredResult
from tests.tables import each_row


@dataclass(frozen=True)
class Balance:
    total: Decimal


class Size(Enum):
    SMALL = 1


class Seat(BaseModel):
    row: int


BALANCE = Balance(Decimal("5.50"))
REFUSED = object()
NUMBERS = count()
ROWS: list[tuple[Any, str, object]] = [
    (Balance, '{"total": "5.50"}', BALANCE),
    (Balance, '{"total": 5.50}', BALANCE),
    (Balance | None, '{"total": "5.50"}', BALANCE),
    (Balance, '{"$": ["object", "Balance", {"total": {"$": ["decimal", "5.50"]}}]}', BALANCE),
    (list[Balance], '[{"total": "5.50"}]', [BALANCE]),
    (dict[str, Balance], '{"a": {"total": "5.50"}}', {"a": BALANCE}),
    (Seat, '{"row": 9}', Seat(row=9)),
    (Decimal, "1.5", Decimal("1.5")),
    (date, '"2026-11-29"', date(2026, 11, 29)),
    (Size, '"SMALL"', Size.SMALL),
    (str, '"seat 9"', "seat 9"),
    (float, "1", 1),
    (Any, '{"total": 5}', {"total": 5}),
    (None, '"seen"', "seen"),
    (Balance, "null", None),
    (Balance, '"five"', REFUSED),
    (Balance, '{"sum": 5}', REFUSED),
    (Seat, '{"row": "front"}', REFUSED),
    (Balance | Size, '{"total": 5}', REFUSED),
    (list[Balance], '{"total": 5}', REFUSED),
    (int, '"5"', REFUSED),
    (Size, '"LARGE"', REFUSED),
    (date, '"soon"', REFUSED),
]


class Office:
    """A function in doubt, its callers, and the people who settle it."""

    def __init__(self, store: str) -> None:
        self.store, self.operation = store, ""
        self.boundary = self.open()

    def open(self, **terms: Any) -> Boundary[Any]:
        return Boundary("office", store=self.store, effects="external", observers=(), **terms)

    def guard(self, kind: Any) -> Any:
        def pay(key: str) -> Any:
            raise TimeoutError

        pay.__annotations__["return"] = kind
        return self.boundary.once(key="key", operation=self.operation)(pay)

    def lose(self, kind: Any) -> Any:
        self.operation = f"pay {next(NUMBERS)}"
        pay = self.guard(kind)
        with pytest.raises(TimeoutError):
            pay("k")
        return pay

    def settle(self, outcome: Any, **given: Any) -> None:
        with Operator(self.store, observers=()) as operator:
            (seen,) = operator.find(operation=self.operation, states=["unknown"])
            assert operator.resolve(seen, outcome, **given).done


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    made = Office(f"sqlite:///{tmp_path}/keys.db")
    yield made
    made.boundary.close()


@each_row("kind, text, expected", ROWS)
@each_row("by", ["an operator of this process", "an operator elsewhere", "the boundary"])
def test_a_caller_gets_a_settled_result_as_what_it_returns(
    office: Office, kind: Any, text: str, expected: object, by: str
) -> None:
    pay = office.lose(kind)
    plain = json.loads(text)
    refused: Any = pytest.raises(ConfigurationError, match="still unknown") if expected is REFUSED else nullcontext()
    if by == "an operator elsewhere":  # which knows no types
        office.boundary.close()
        office.settle("completed", result=json_result(text))
        office.boundary = office.open()
        pay = office.guard(kind)
        refused = pytest.raises(ResultUnreadable) if expected is REFUSED else nullcontext()
    elif by == "the boundary" and not (isinstance(plain, dict) and "$" in plain):
        with refused:
            assert office.boundary.resolve("k", "completed", result=plain, operation=office.operation)
    else:
        with refused:
            office.settle("completed", result=json_result(text))
    if expected is not REFUSED:
        assert pay("k") == expected
    elif by == "an operator elsewhere":
        with refused:
            pay("k")


def test_the_sender_of_a_command_gets_the_declared_type(office: Office) -> None:
    bus = CommandBus(office.boundary, key="number")

    @dataclass
    class Deposit:
        number: str

    @bus.handles(Deposit)
    def deposit(command: Deposit) -> Balance:
        raise TimeoutError

    office.operation = "Deposit"
    with pytest.raises(TimeoutError):
        bus.send(Deposit("d"))
    with pytest.raises(ConfigurationError, match="still unknown"):
        office.settle("completed", result=json_result("5"))
    office.settle("completed", result=json_result('{"total": "5.50"}'))
    assert bus.send(Deposit("d")) == BALANCE


class Reversed(JSONCodec):
    """A codec of the user's."""

    def encode(self, value: Any, annotation: Any) -> StoredResult:
        return StoredResult(super().encode(value, annotation).body[::-1], "text/reversed", 1)  # type: ignore[index]

    def decode(self, stored: StoredResult, annotation: Any) -> Any:
        if stored.media_type != "text/reversed":
            raise ResultUnreadable(f"It is {stored.media_type}.")
        return super().decode(StoredResult(stored.body[::-1], "application/vnd.retrysafe+json", 1), annotation)  # type: ignore[index]


def test_a_result_that_a_codec_of_the_users_cannot_read_is_refused(office: Office) -> None:
    office.boundary.close()
    office.boundary = office.open(codec=Reversed())
    pay = office.lose(str)
    with pytest.raises(ConfigurationError, match="still unknown"):
        office.settle("completed", result=json_result('"paid"'))
    assert office.boundary.resolve("k", "completed", result="paid", operation=office.operation)
    assert pay("k") == "paid"


@each_row(
    "result, reason, told",
    [
        (None, "the bank has refused", "the bank has refused"),
        ("no money", "the bank has refused", "no money"),
        (None, "", "declared failed by a person"),
    ],
)
@each_row("by", ["operator", "boundary"])
def test_a_failure_tells_its_callers_why(office: Office, result: Any, reason: str, told: str, by: str) -> None:
    pay = office.lose(str)
    if by == "operator":
        office.settle("failed", result=result, reason=reason)
    else:
        assert office.boundary.resolve("k", "failed", result=result, reason=reason, operation=office.operation)
    with pytest.raises(StoredFailure) as failure:
        pay("k")
    assert failure.value.message == told
