"""A worker dies at one moment of its attempt, and its work is asked for again. FAULTS 1, 3, 4, 5, 6, 12."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from retrysafe import Boundary, OutcomeUnknown, wait
from tests.faults.conftest import Making
from tests.faults.helpers import (
    Bank,
    Child,
    Proxy,
    Told,
    ask_sql,
    reached,
    records_of,
    rows_of,
    run_sql,
    unique,
    until,
)
from tests.stores.ageing import let_lapse

pytestmark = pytest.mark.slow

PATIENCE = 60
"""Seconds within which a dead attempt must be followed by another; it takes a lease."""


class Shop(NamedTuple):
    """The records, and a ledger in which effects can be counted."""

    store: str
    table: str
    bank: Bank

    def ledger(self, effects: str) -> str:
        """Return the ledger that a worker charges: a table in the transaction, or the bank."""
        return self.table if effects == "transactional" else str(self.bank.path)

    @property
    def charged(self) -> int:
        """The number of effects."""
        return len(rows_of(self.store, self.table)) + len(self.bank.charges)

    def token(self, boundary: Boundary) -> int:
        """The token of the one record."""
        rows = ask_sql(self.store, f"SELECT token FROM retrysafe_records WHERE boundary = '{boundary.name}'")[0]
        return int(rows[0][0])


@pytest.fixture(params=["sqlite", "postgresql"])
def shop(request: pytest.FixtureRequest, sqlite_url: str, bank: Bank, make: Making) -> Iterator[Shop]:
    """A store with a business table in the same database, and a bank outside of it."""
    store = sqlite_url if request.param == "sqlite" else str(request.getfixturevalue("migrated"))
    table = unique("charges")
    make(store)  # which creates and migrates a file
    run_sql(store, f'CREATE TABLE {table} ("key" TEXT NOT NULL, receipt TEXT NOT NULL)')
    yield Shop(store, table, bank)
    run_sql(store, f"DROP TABLE {table}")


Dying = Callable[..., Boundary]


@pytest.fixture
def died(shop: Shop, make: Making) -> Dying:
    """A boundary whose first attempt has died at a moment."""

    def die(effects: str, moment: str, **terms: Any) -> Boundary:
        boundary = make(shop.store, effects=effects, concurrency=wait(PATIENCE), **terms)
        with Child("dying", shop.store, boundary.name, effects, moment, shop.ledger(effects)) as worker:
            assert worker.ends() == -signal.SIGKILL
        let_lapse(shop.store, boundary.name)
        return boundary

    return die


def charge(boundary: Boundary, shop: Shop) -> tuple[bool, str]:
    """Ask for the work again."""
    with boundary.claim("key") as claim:
        if not claim.replayed and boundary.effects == "transactional":
            claim.tx.execute(f"INSERT INTO {shop.table} VALUES ('key', 'receipt')")
            claim.result = "receipt"
        elif not claim.replayed:
            claim.result = shop.bank.charge(claim.key_for("bank"))
    return claim.replayed, claim.result


EFFECTS = ["keyed", "external", "transactional"]


@pytest.mark.fault(1)
@pytest.mark.parametrize("effects", EFFECTS)
def test_dead_before_its_claim_it_is_in_nobodys_way(effects: str, shop: Shop, died: Dying, told: Told) -> None:
    boundary = died(effects, "received")
    assert (records_of(shop.store, boundary.name), shop.charged) == ([], 0)
    replayed, receipt = charge(boundary, shop)
    assert (replayed, shop.charged) == (False, 1)
    assert charge(boundary, shop) == (True, receipt)
    assert records_of(shop.store, boundary.name) == [("completed", 1)]
    assert not {"waiting", "takeover"} & set(told.names)


@pytest.mark.fault(3)
def test_dead_before_its_effect_it_is_taken_over_under_a_higher_token(shop: Shop, died: Dying, told: Told) -> None:
    boundary = died("keyed", "started")
    assert (records_of(shop.store, boundary.name), shop.charged) == ([("running", 1)], 0)
    before = shop.token(boundary)
    replayed, _ = charge(boundary, shop)
    assert (replayed, shop.charged, told.names["takeover"]) == (False, 1, 1)
    assert shop.token(boundary) > before
    assert records_of(shop.store, boundary.name) == [("completed", 2)]


@pytest.mark.fault(3, 5)
@pytest.mark.parametrize("moment", ["started", "charged"])
def test_dead_with_an_external_effect_in_doubt_it_is_run_by_nobody(moment: str, shop: Shop, died: Dying) -> None:
    """From outside, an attempt that died before its effect looks like one that died after it."""
    boundary = died("external", moment)
    with pytest.raises(OutcomeUnknown):
        charge(boundary, shop)
    assert records_of(shop.store, boundary.name) == [("unknown", 1)]
    assert sum(shop.bank.requests.values()) == (moment == "charged")


@pytest.mark.fault(5)
@pytest.mark.parametrize("moment", ["started", "charged"])
def test_a_probe_settles_what_is_in_doubt(moment: str, shop: Shop, died: Dying) -> None:
    def look(claim: Any) -> None:
        receipt = shop.bank.charges.get(claim.key_for("bank"))
        if receipt is None:
            claim.not_executed()
        else:
            claim.result = receipt
            claim.committed()

    boundary = died("external", moment, probe=look)
    replayed, receipt = charge(boundary, shop)
    assert replayed == (moment == "charged")
    assert list(shop.bank.charges.values()) == [receipt]
    assert sum(shop.bank.requests.values()) == 1


@pytest.mark.fault(5)
def test_dead_after_its_effect_the_derived_key_is_the_same(shop: Shop, died: Dying) -> None:
    boundary = died("keyed", "charged")
    assert (records_of(shop.store, boundary.name), shop.charged) == ([("running", 1)], 1)
    (receipt,) = shop.bank.charges.values()
    assert charge(boundary, shop) == (False, receipt)
    assert list(shop.bank.requests.values()) == [2]
    assert shop.charged == 1


@pytest.mark.fault(4)
def test_dead_in_its_transaction_it_leaves_neither_effect_nor_record(shop: Shop, died: Dying, told: Told) -> None:
    boundary = died("transactional", "charged")
    assert (records_of(shop.store, boundary.name), shop.charged) == ([], 0)
    assert charge(boundary, shop) == (False, "receipt")
    assert (records_of(shop.store, boundary.name), shop.charged) == ([("completed", 1)], 1)
    assert "takeover" not in told.names


@pytest.mark.fault(6)
@pytest.mark.parametrize("effects", EFFECTS)
def test_dead_before_it_could_answer_its_answer_is_replayed(effects: str, shop: Shop, died: Dying) -> None:
    boundary = died(effects, "answered")
    receipt = "receipt" if effects == "transactional" else next(iter(shop.bank.charges.values()))
    assert charge(boundary, shop) == (True, receipt)
    assert (records_of(shop.store, boundary.name), shop.charged) == ([("completed", 1)], 1)


@pytest.mark.fault(12)
def test_dead_while_its_lease_was_renewed_it_is_taken_over_a_lease_later(
    proxy: Proxy, migrated: str, make: Making, told: Told
) -> None:
    """The renewal arrives although its worker is dead."""
    boundary = make(migrated, lease="2s", concurrency=wait(PATIENCE))
    with Child("holding", proxy.url, boundary.name, "2s") as worker:
        assert worker.hears() == "holding"
        proxy.hold(b"WITH held")
        reached(proxy.held)
        worker.process.kill()
        worker.ends()
    left = f"SELECT lease_until - updated FROM retrysafe_records WHERE boundary = '{boundary.name}'"
    proxy.let_go()
    renewed = f"{left} AND version > token"
    ((lease,),) = until(lambda: ask_sql(migrated, renewed)[0])
    assert lease == 2_000_000
    with boundary.claim("key") as claim:
        assert not claim.replayed
    assert told.names["takeover"] == 1
