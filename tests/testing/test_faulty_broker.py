"""`FaultyBroker`: an outage, and a relay that dies between publishing and marking."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from retrysafe.messaging import BrokerUnavailable, Outbox, Relay
from retrysafe.testing import FaultyBroker


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/shop.db"
    outbox = Outbox(url, source="/shop")
    with sqlite3.connect(tmp_path / "shop.db") as db:
        outbox.add(db, "orders", {"order": 1})
    return url


def test_in_an_outage_messages_stay(url: str) -> None:
    broker = FaultyBroker()
    with broker.outage(), pytest.raises(BrokerUnavailable):
        Relay(url, broker.publisher(), observers=()).run_once()
    assert broker.depth() == 0
    assert Relay(url, broker.publisher(), observers=()).run_once().published == 1


async def test_the_messages_of_a_relay_that_dies_are_published_again(url: str) -> None:
    broker = FaultyBroker()
    with broker.relay_dies():
        Relay(url, broker.publisher(), observers=()).run_once()
    with broker.relay_dies():
        await Relay(url, broker.apublisher(), observers=()).arun_once()
    assert broker.depth() == 2
    assert Relay(url, broker.publisher(), observers=()).run_once().published == 1
    assert broker.depth() == 3


def test_a_relay_that_publishes_nothing_does_not_die(url: str) -> None:
    broker = FaultyBroker()
    Relay(url, broker.publisher(), observers=()).run_once()
    with pytest.raises(AssertionError, match="no relay has died"), broker.relay_dies():
        Relay(url, broker.publisher(), observers=()).run_once()
