"""The audit on ledgers made by hand."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest

from retrysafe_demo.audit import Count, audit, charged_in_doubt, read_ledger
from retrysafe_demo.lanes import Lane
from retrysafe_demo.payments import Payment
from retrysafe_demo.processes import DemoError
from retrysafe_demo.report import Findings, table, verdict, write_json
from tests.tables import each_row

PAYMENTS = [Payment(name, f"account {name}", Decimal("9.90"), "EUR") for name in "abcd"]


def charge(payment: str, **other: str) -> dict[str, str]:
    return {"payment": payment, "account": f"account {payment}", "amount": "9.9", "currency": "EUR", **other}


ONCE_EACH = [charge(payment.id) for payment in PAYMENTS]


def findings(count: Count) -> Findings:
    return Findings(1, {Lane.UNSAFE: count, Lane.NAIVE: count, Lane.RETRYSAFE: count}, 0, 1.0)


def test_all_charged_once() -> None:
    count = audit(PAYMENTS, ONCE_EACH, replayed=3)
    assert count == Count(intents=4, charged_once=4, charged_twice=0, lost=0, wrong_amount=0, uncertain=0, replayed=3)
    assert findings(count).exit_code == 0
    assert "exactly once" in verdict(findings(count))


@each_row(
    ("ledger", "column"),
    [
        ([*ONCE_EACH, charge("b")], "charged_twice"),
        ([*ONCE_EACH, charge("b"), charge("b")], "charged_twice"),
        (ONCE_EACH[:3], "lost"),
        ([*ONCE_EACH[:3], charge("d", amount="99.0")], "wrong_amount"),
        ([*ONCE_EACH[:3], charge("d", amount="9.9000000001")], "wrong_amount"),
        ([*ONCE_EACH[:3], charge("d", amount="none")], "wrong_amount"),
        ([*ONCE_EACH[:3], charge("d", currency="USD")], "wrong_amount"),
        ([*ONCE_EACH[:3], charge("d", account="account a")], "wrong_amount"),
        ([*ONCE_EACH, charge("nobody intended this")], "wrong_amount"),
    ],
)
def test_one_planted_error_is_found_and_breaks_the_promise(ledger: list[dict[str, str]], column: str) -> None:
    count = audit(PAYMENTS, ledger)
    assert count._asdict()[column] == 1
    assert sum((count.charged_twice, count.lost, count.wrong_amount)) == 1
    assert count.charged_once + count.charged_twice + count.lost + count.uncertain == count.intents == 4
    assert findings(count).exit_code == 1
    assert "BROKE ITS PROMISE" in verdict(findings(count))


def test_only_the_retrysafe_lane_decides_the_exit_code() -> None:
    good, bad = audit(PAYMENTS, ONCE_EACH), audit(PAYMENTS, [])
    assert Findings(1, {Lane.UNSAFE: bad, Lane.NAIVE: bad, Lane.RETRYSAFE: good}, 0, 1.0).exit_code == 0
    assert Findings(1, {Lane.UNSAFE: good, Lane.NAIVE: good, Lane.RETRYSAFE: bad}, 0, 1.0).exit_code == 1


def test_doubt_covers_one_charge_or_none_but_never_two() -> None:
    ledger = [charge("a"), charge("b"), charge("c"), charge("c")]
    count = audit(PAYMENTS, ledger, uncertain={"b", "c", "d"})
    assert (count.charged_once, count.uncertain, count.charged_twice, count.lost) == (1, 2, 1, 0)
    assert charged_in_doubt(ledger, {"b", "d"}) == 1
    assert findings(count).exit_code == 1


def test_doubt_does_not_excuse_a_wrong_amount() -> None:
    count = audit(PAYMENTS, [*ONCE_EACH[:3], charge("d", amount="1")], uncertain={"d"})
    assert (count.uncertain, count.wrong_amount) == (1, 1)
    assert findings(count).exit_code == 1


def test_an_unreadable_ledger_is_no_empty_one(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="cannot be read"):
        read_ledger(tmp_path / "absent")
    half = tmp_path / "half"
    half.write_text('{"payment": "a"')
    with pytest.raises(DemoError, match="cannot be read"):
        read_ledger(half)


def test_the_report_for_people_and_for_programs(tmp_path: Path) -> None:
    found = findings(audit(PAYMENTS, ONCE_EACH))
    file = tmp_path / "audit.json"
    write_json(found, file)
    written = json.loads(file.read_text())
    assert (written["seed"], written["form"]) == (1, "http")
    assert list(written["lanes"]) == ["unsafe", "naive", "retrysafe"]
    assert written["lanes"]["naive"] == audit(PAYMENTS, ONCE_EACH)._asdict()
    assert len(table(found)) == 4
    with pytest.raises(DemoError):
        write_json(found, tmp_path)
