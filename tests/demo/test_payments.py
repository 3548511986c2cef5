"""Reading payments."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from retrysafe_demo.payments import InputError, Payment, load, parse, shipped, take
from tests.tables import each_row

HEAD = "id,account,amount,currency\n"


def test_the_shipped_payments_are_enough_and_all_different() -> None:
    payments = shipped()
    assert len(payments) >= 120
    assert len({payment.id for payment in payments}) == len(payments)


def test_a_file_is_read_exactly(tmp_path: Path) -> None:
    file = tmp_path / "payments.csv"
    text = 'note,id,amount,account,currency\r\n"a,\nb",A-1, 0.10 ,"DE, 1",EUR\r\n,Zoë,1E+3,x,JPY\r\n'
    file.write_text(text, encoding="utf-8-sig", newline="")
    assert load(str(file)) == [
        Payment("A-1", "DE, 1", Decimal("0.10"), "EUR"),
        Payment("Zoë", "x", Decimal(1000), "JPY"),
    ]


@each_row(
    ("text", "complaint"),
    [
        ("", "column 'id' is missing"),
        (HEAD, "there is no payment in it"),
        ("id,account,currency\n1,a,EUR\n", "column 'amount' is missing"),
        (HEAD + "1,a,5,EUR\n1,b,6,EUR\n", "line 3: id '1' stands twice"),
        (HEAD + "1,a,five,EUR\n", "line 2: amount 'five' is not a number above zero"),
        (HEAD + "1,a,-5,EUR\n", "amount '-5' is not"),
        (HEAD + "1,a,0,EUR\n", "amount '0' is not"),
        (HEAD + "1,a,NaN,EUR\n", "amount 'NaN' is not"),
        (HEAD + "1,a,Infinity,EUR\n", "amount 'Infinity' is not"),
        (HEAD + "1,a,5\n", "currency is empty"),
        (HEAD + " ,a,5,EUR\n", "id is empty"),
        (HEAD + "x" * 201 + ",a,5,EUR\n", "at most 200"),
        (HEAD + "a\tb,a,5,EUR\n", "printable"),
        (HEAD + '"1,a,5,EUR\n', "payments.csv, line 2"),
    ],
)
def test_faults_are_said_with_their_place(text: str, complaint: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text, "payments.csv")
    assert complaint in str(caught.value)
    assert "payments.csv" in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "absent.csv", tmp_path, binary):
        with pytest.raises(InputError, match=path.name):
            load(str(path))


def test_taking_more_than_there_are_makes_new_intents() -> None:
    payments = parse(HEAD + "a,x,1,EUR\na-2,y,2,EUR\n", "few")
    taken = take(payments, 9)
    assert taken[:2] == payments
    assert len({payment.id for payment in taken}) == 9
    assert take(payments, 9) == taken
    assert take(payments, 1) == payments[:1]


def test_a_payment_survives_the_pipe() -> None:
    payment = Payment("A", "x", Decimal("0.1000000000000000055"), "EUR")
    assert Payment.from_json(payment.as_json()) == payment
