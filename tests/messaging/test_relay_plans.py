"""What a look at an outbox costs: the same however much waits, on tables whose statistics nobody has made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retrysafe.errors import StoreUnavailable
from retrysafe.messaging.draining import Sum
from retrysafe.ports import Query
from retrysafe.programs.drivers import run
from retrysafe.stores import outbox_operating
from tests.conftest import require
from tests.faults.helpers import Told, own_database
from tests.messaging.test_operating import TABLES, Message, Place


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """On PostgreSQL a database that nobody has analysed; on MySQL tables that are emptied."""
    if request.param == "sqlite":
        yield Place("sqlite", f"sqlite:///{tmp_path}/shop.db")
        return
    require(request.param)
    server = request.getfixturevalue(request.param)
    if request.param == "postgresql":
        with own_database(server) as url:
            yield Place("postgresql", url)
        return
    made = Place("mysql", server)
    for table in TABLES:
        made.sql(f"DELETE FROM retrysafe_outbox{table}")
    yield made
    for table in TABLES:
        made.sql(f"DELETE FROM retrysafe_outbox{table}")


@pytest.mark.parametrize("waiting", [3, 40])
def test_no_more_than_so_many_messages_are_counted(waiting: int, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_operating, "MOST_COUNTED", 10)
    monkeypatch.setattr("retrysafe.programs.relaying.MOST_COUNTED", 10)
    place.write(*(Message("orders", n) for n in range(waiting)))
    with place.operator() as operator:
        found = operator.standing()
    assert (found.messages, found.due, found.capped) == (min(waiting, 10), min(waiting, 10), waiting > 10)


def test_messages_leave_although_nobody_can_count_them(place: Place) -> None:
    """A backlog that cannot be counted within the store's deadline is the one that must be relayed."""
    told = Told()
    place.write(Message("orders", 1, key="A"))
    relay = place.relay(observers=[told])
    backlog = relay._attendance._outbox.backlog()

    with relay._working(relay._opened()) as (setting, client):

        def uncounted(query: Query) -> Any:
            if query.sql == backlog.request.sql:
                raise StoreUnavailable("no answer within 10 s")
            return client(query)

        total = Sum()
        uncounted.transaction = client.transaction  # type: ignore[attr-defined]
        relay._round(setting, uncounted, total)  # type: ignore[arg-type]
    assert (told.names["backlog_uncounted"], total.left) == (1, 1)


def test_a_look_that_takes_long_makes_the_next_one_wait(place: Place) -> None:
    told, clock = Told(), [0.0]
    relay = place.relay(observers=[told])
    relay._attendance._clock = lambda: clock[0]

    with relay._working(relay._opened()) as (_, client):

        def slowly(query: Query) -> Any:
            clock[0] += 3.0
            return client(query)

        run(relay._attendance.steps(), slowly)
        took = told.names["backlog"], clock[0]
        clock[0] += 10.0
        run(relay._attendance.steps(), client)
        assert (took[0], told.names["backlog"]) == (1, 1)
        clock[0] += took[1] * 4
        run(relay._attendance.steps(), client)
        assert told.names["backlog"] == 2
