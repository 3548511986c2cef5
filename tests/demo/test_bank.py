"""The bank, as a process."""

from __future__ import annotations

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pytest

from retrysafe_demo.audit import read_ledger
from retrysafe_demo.client import Refused, Unanswered
from retrysafe_demo.payments import Payment
from retrysafe_demo.schedule import Fault
from tests.demo.banks import Fate, OpenBank

pytestmark = pytest.mark.slow


def test_a_charge_is_on_the_disk_when_it_is_answered(bank: OpenBank) -> None:
    receipt = bank.charge()
    assert (receipt.amount, receipt.currency, receipt.account) == (Decimal("12.30"), "EUR", "DE01")
    (entry,) = read_ledger(bank.ledger)
    assert entry == {
        "charge": receipt.charge,
        "payment": "A-1",
        "account": "DE01",
        "amount": "12.30",
        "currency": "EUR",
    }


def test_one_key_is_one_charge_however_many_ask_at_once(bank: OpenBank) -> None:
    fates = [Fate() for _ in range(16)]
    with ThreadPoolExecutor(8) as pool:
        receipts = set(pool.map(lambda fate: bank.charge("k", fate), fates))
    assert len(receipts) == 1
    assert [fate.recognised for fate in fates].count(False) == 1
    assert bank.closed() == ["A-1"]


def test_without_a_key_every_request_is_a_charge(bank: OpenBank) -> None:
    assert bank.charge() != bank.charge()
    assert bank.closed() == ["A-1", "A-1"]


def test_a_bank_without_keys_takes_no_notice_of_them(keyless: OpenBank) -> None:
    assert keyless.charge("k") != keyless.charge("k")
    assert keyless.closed() == ["A-1", "A-1"]


def test_a_key_for_another_charge_is_refused(bank: OpenBank) -> None:
    bank.charge("k")
    with pytest.raises(Refused):
        bank.charge("k", payment=Payment("A-2", "DE01", Decimal("12.30"), "EUR"))
    assert bank.closed() == ["A-1"]


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.TIMEOUT])
def test_no_answer_is_a_charge_all_the_same(bank: OpenBank, fault: Fault) -> None:
    with pytest.raises(Unanswered):
        bank.charge(fate=Fate(fault))
    assert bank.closed() == ["A-1"]


def test_a_retry_may_meet_the_request_it_repeats(bank: OpenBank) -> None:
    with pytest.raises(Unanswered):
        bank.charge("k", Fate(Fault.TIMEOUT))
    bank.charge("k")
    assert bank.closed() == ["A-1"]


def test_a_closed_bank_is_no_answer(bank: OpenBank) -> None:
    bank.closed()
    with pytest.raises(Unanswered):
        bank.charge()


def test_an_answer_that_is_no_json_is_no_answer(bank: OpenBank) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", bank.port, timeout=60)
    connection.request("POST", "/charges", json.dumps({}).encode())
    with pytest.raises(http.client.RemoteDisconnected):
        connection.getresponse()
    connection.close()
    bank.charge()
    assert bank.closed() == ["A-1"]
