"""The outbox's metrics under the names that the literature uses."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from retrysafe.backends.registry import connect
from retrysafe.messaging import Message, Outbox
from retrysafe.messaging.brokers.memory.publisher import MemoryPublisher
from retrysafe.messaging.relay.operator import OutboxOperator
from retrysafe.messaging.relay.relay import Relay
from retrysafe.protocol.events import Event
from tests.observing.telemetry import Telemetry


def test_an_outbox_has_the_names_of_the_literature(tmp_path: Path, telemetry: Telemetry) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    connect(url).migrate()
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db, db:
        Outbox(url, source="/shop").add_many(db, [Message("orders", number) for number in range(3)])
    with OutboxOperator(url, observers=[telemetry.observer]) as operator:
        operator.report()
    waiting = telemetry.points()
    assert [value for _, value in waiting["outbox.queue.depth"]] == [3]
    assert waiting["outbox.queue.depth"] == waiting["retrysafe.outbox.depth"]
    assert "outbox.messages.processed" not in waiting
    Relay(url, MemoryPublisher(), observers=[telemetry.observer]).run_once()
    assert telemetry.total("outbox.messages.processed") == telemetry.total("retrysafe.outbox.published") == 3


def test_a_relay_asks_once_whether_anybody_wants_an_event_for_each_message(tmp_path: Path) -> None:
    class Counting:
        asked: list[str]
        told: list[str]

        def __init__(self) -> None:
            self.asked, self.told = [], []

        def is_enabled(self, name: str) -> bool:
            self.asked.append(name)
            return name != "message_relayed"

        def __call__(self, event: Event, /) -> None:
            self.told.append(event.name)

    url = f"sqlite:///{tmp_path}/shop.db"
    connect(url).migrate()
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db, db:
        Outbox(url, source="/shop").add_many(db, [Message("orders", number) for number in range(500)])
    observer = Counting()
    Relay(url, MemoryPublisher(), observers=[observer]).run_once()
    assert observer.told.count("relayed") < 500, "waves have several messages"
    assert observer.asked.count("message_relayed") == observer.told.count("relayed")
    assert "message_relayed" not in observer.told


def test_a_wave_counts_for_all_its_messages(telemetry: Telemetry) -> None:
    fields = {"messages": 3, "lag": 0.1, "seconds": 0.1}
    telemetry.observer(Event("relayed", "retrysafe.outbox", "", "", "", fields))
    assert telemetry.total("outbox.messages.processed") == 3
