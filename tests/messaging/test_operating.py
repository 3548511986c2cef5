"""Looking after an outbox: how it stands, who relays it, topics, dead letters, what is kept. On every dialect."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from retrysafe import ConfigurationError, LeaseLost, RetryTransaction
from retrysafe.admin.archive import JsonLines
from retrysafe.backends.driver import run
from retrysafe.backends.registry import connect
from retrysafe.backends.sql.outbox import FOREVER
from retrysafe.backends.sql.outbox_operating import OperableSqlOutbox
from retrysafe.claims.observers import LoggingObserver, Observers
from retrysafe.cli import main
from retrysafe.errors import SchemaOutdated, StoreUnavailable
from retrysafe.messaging import BrokerUnavailable, Message, Outbox
from retrysafe.messaging.brokers.base import broker_address_of
from retrysafe.messaging.brokers.memory.publisher import AsyncMemoryPublisher, MemoryPublisher
from retrysafe.messaging.relay.bucket import Totals, drain
from retrysafe.messaging.relay.operator import OutboxOperator, OutboxSweeper, line
from retrysafe.messaging.relay.poll_schedule import Polls
from retrysafe.messaging.relay.procedures import redrive
from retrysafe.messaging.relay.relay import Relay, Relayed
from retrysafe.protocol.events import Event
from retrysafe.protocol.messages import DeadLetter, DeadLetterFilter, Envelope, PublishResult, PublishStatus
from retrysafe.protocol.ordering import bucket, lane
from retrysafe.protocol.requests import ask
from retrysafe.stop_signal import StopSignal
from tests.conftest import require
from tests.faults.helpers import DEADLINE, Told, auntil, until
from tests.stores.ageing import mysql_connection
from tests.tables import each_row

ACKED = PublishResult(PublishStatus.ACKED)
TABLES = ("", "_attempts", "_dead", "_published", "_paused", "_relays")


class Place:
    """A database of one kind: how to write, and to look."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind, self.url = kind, url
        connect(url).migrate()
        self.outbox = Outbox(url, source="/shop")

    def open(self) -> Any:
        if self.kind == "sqlite":
            import sqlite3

            return sqlite3.connect(self.url.removeprefix("sqlite:///"))
        if self.kind == "mysql":
            return mysql_connection(self.url)
        import psycopg

        return psycopg.connect(self.url)

    def sql(self, statement: str) -> list[Any]:
        with closing(self.open()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(statement)
            rows = list(cursor.fetchall()) if cursor.description else []
            connection.commit()
            return rows

    def write(self, *messages: Message) -> list[str]:
        with closing(self.open()) as connection:
            if self.kind == "mysql":
                connection.begin()
            written = self.outbox.add_many(connection, messages)
            connection.commit()
        return [one.id for one in written]

    def relay(self, publisher: Any = None, **options: Any) -> Relay:
        return Relay(self.url, publisher or MemoryPublisher(), **{"observers": (), **options})

    def operator(self, **options: Any) -> OutboxOperator:
        return OutboxOperator(self.url, **{"observers": (), "actor": "test", **options})


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "sqlite":
        yield Place("sqlite", f"sqlite:///{tmp_path}/shop.db")
        return
    require(request.param)
    made = Place(request.param, request.getfixturevalue(request.param))
    for table in TABLES:
        made.sql(f"DELETE FROM retrysafe_outbox{table}")
    yield made
    connect(made.url).close()


class Judging(MemoryPublisher):
    """Says what ``judge`` says."""

    def __init__(self, judge: Callable[[Envelope], PublishResult]) -> None:
        super().__init__()
        self.judge = judge
        self.offered: list[str] = []

    def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        self.offered += [one.id for one in envelopes]
        said = [self.judge(one) for one in envelopes]
        self.published += [one for one, word in zip(envelopes, said, strict=True) if word.status == "acked"]
        return said


def refusing(*topics: str) -> Judging:
    return Judging(
        lambda one: PublishResult(PublishStatus.REJECTED, f"no {one.topic}") if one.topic in topics else ACKED
    )


# ---------------------------------------------------------------- how it stands


def test_backlogs_are_told_by_topic(place: Place) -> None:
    place.write(Message("orders", 1, key="A"), Message("orders", 2, key="A"), Message("mails", 3))
    with place.operator() as operator:
        operator.pause("mails")
        found = operator.status()
        assert [(one.topic, one.messages, one.due, one.paused) for one in found.backlog] == [
            ("mails", 1, 0, True),
            ("orders", 2, 2, False),
        ]
        busy = Judging(lambda one: PublishResult(PublishStatus.RETRYABLE, "busy"))
        assert place.relay(busy, backoff_base="30d", backoff_max="30d").run_once() == Relayed(0, 1, 0)
        found = operator.status()
        assert (found.messages, found.due, found.paused, found.relays) == (3, 0, ["mails"], [])
        assert found.oldest > 0 == found.oldest_due


def test_relays_are_seen_and_those_that_died_are_forgotten(place: Place) -> None:
    clock = [0.0]
    first, second = place.relay(), place.relay()
    for relay in (first, second):
        relay._presence._clock = lambda: clock[0] + 1
        run(relay._presence.steps(), connect(place.url).client())
    with place.operator() as operator:
        assert operator.status().alive == 2
        place.sql("UPDATE retrysafe_outbox_relays SET last_seen_at = last_seen_at - 61000000")
        assert [relay.silent >= 61 for relay in operator.status().relays] == [True, True]
        assert operator.status().alive == 0
        told = Told()
        first._reporter._observers = Observers((told,))
        run(first._presence.steps(), connect(place.url).client())
        (lost,) = [one.fields for one in told.occurrences if one.name == "relay_lost"]
        assert (lost["relay"], lost["silent"] >= 61) == (f"{second._presence._name}@memory", True)
        (only,) = operator.status().relays
        assert only.silent < 60
        run(first._presence.farewell(), connect(place.url).client())
        assert operator.status().relays == []


def test_a_relay_that_ends_by_an_error_takes_leave(place: Place) -> None:
    away = PublishResult(PublishStatus.UNAVAILABLE, "away")
    place.write(Message("orders", 1, key="A"))
    with pytest.raises(BrokerUnavailable, match="away"):
        place.relay(Judging(lambda _: away)).run_once()
    with place.operator() as operator:
        assert operator.status().relays == []


@each_row("mine", ["transaction", "lease"])
def test_relays_that_hold_buckets_in_different_ways_do_not_work_together(mine: Any, place: Place) -> None:
    """Neither sees what the other one holds: both would publish every message, out of order."""
    if place.kind == "sqlite":
        pytest.skip("it has leases only")
    theirs = "lease" if mine == "transaction" else "transaction"
    first, publisher = place.relay(hold=theirs), MemoryPublisher()
    with first._working(first._open()) as (setting, client):
        first._round(setting, client, Totals())
        place.write(Message("orders", 1, key="A"))
        second = place.relay(publisher, hold=mine)
        with second._working(second._open()) as (its, other):
            for _ in range(2):
                with pytest.raises(ConfigurationError, match=f"hold='{theirs}'"):
                    second._round(its, other, Totals())
        assert publisher.published == []
        assert place.relay(hold=theirs).run_once().published == 1
    place.write(Message("orders", 2, key="A"))
    assert place.relay(publisher, hold=mine).run_once().published == 1


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
async def test_a_publisher_that_never_answers_is_not_waited_for(place: Place) -> None:
    class Deaf(AsyncMemoryPublisher):
        async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
            await asyncio.Event().wait()
            raise AssertionError

    place.write(Message("orders", 1, key="A"))
    relay = place.relay(Deaf(), publish_timeout="50ms", backoff_base="30d", backoff_max="30d")
    assert await relay.arun_once() == Relayed(0, 1, 0)


def test_nobody_relays_and_that_is_told(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    told = Told()
    place.write(Message("orders", 1, key="A"))
    assert main(["outbox", "status", "--store", place.url, "--json"]) == 0
    place.sql("UPDATE retrysafe_outbox SET created = created - 120000000")
    with place.operator(observers=[told]) as operator:
        operator.report()
    fields = {one.name: one.fields for one in told.occurrences}
    assert fields["backlog"]["messages"] == 1
    stalled = fields["backlog_stalled"]
    assert (stalled["relays"], stalled["topic"], stalled["error"]) == (0, "orders", "no relay is running")
    capsys.readouterr()
    assert main(["outbox", "status", "--store", place.url, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["stalled"], found["relays"], found["topics"][0]["topic"]) == (True, [], "orders")
    assert main(["outbox", "status", "--store", place.url]) == 1
    assert "no relay is running" in capsys.readouterr().out
    assert main(["outbox", "status", "--store", place.url, "--stalled-after", "5m"]) == 0


def test_a_stall_is_logged_once_for_each_topic_and_reason(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.write(Message("orders", 1, key="A"))
    place.sql("UPDATE retrysafe_outbox SET created = created - 120000000")
    with place.operator(observers=[LoggingObserver()]) as operator:
        for _ in range(3):
            operator.report()
        place.write(Message("mails", 1, key="A"))
        place.sql("UPDATE retrysafe_outbox SET created = created - 120000000 WHERE topic = 'mails'")
        place.sql("UPDATE retrysafe_outbox SET created = created - 60000000 WHERE topic = 'mails'")
        operator.report()
    told = [one.getMessage() for one in caplog.records if one.getMessage().startswith("backlog_stalled")]
    assert ["topic=orders" in one for one in told] == [True, False]
    assert all('error="no relay is running"' in one for one in told)


def test_a_running_relay_does_not_read_like_a_fault(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    outbox = OperableSqlOutbox(place.relay().backend.store)
    with closing(place.relay().backend.new_client()) as client:
        run(ask(outbox.beat("host:1@sqlite", "lease")), client)
        run(ask(outbox.beat("host:2@sqlite", "lease")), client)
    place.sql("UPDATE retrysafe_outbox_relays SET last_seen_at = last_seen_at - 120000000 WHERE name = 'host:2@sqlite'")
    assert main(["outbox", "status", "--store", place.url]) == 0
    said = capsys.readouterr().out
    assert "relay host:1@sqlite  hold=lease  running, last sign of life 0" in said
    assert "relay host:2@sqlite  hold=lease  no sign of life for 2 m: considered dead" in said


def test_one_relay_tells_how_things_stand(place: Place) -> None:
    told = Told()
    relays = [place.relay(observers=[told]) for _ in range(3)]
    for relay in relays:
        run(relay._presence.steps(), connect(place.url).client())
    for relay in relays:
        run(relay._presence.steps(), connect(place.url).client())
    names = [str(relay._presence._name) for relay in relays]
    first, tellers = min(names), sum(name == min(names[: at + 1]) for at, name in enumerate(names))
    assert told.names["backlog"] == 2 * tellers  # the one that was not first in the end says so; that one tells again
    told.occurrences.clear()
    for relay in relays:
        before = told.names["backlog"]
        run(relay._presence.steps(), connect(place.url).client())
        assert told.names["backlog"] - before == (str(relay._presence._name) == first)


def test_a_relay_that_reports_no_more_says_so_once(place: Place) -> None:
    """Its gauges had the last outage for ever."""
    told = [Told(), Told()]
    late, early = (place.relay(observers=[one]) for one in told)
    late._presence._name, early._presence._name = "b", "a"
    client = connect(place.url).client()
    place.write(Message("orders", 1))
    for relay in (late, early, late, late):
        run(relay._presence.steps(), client)
    figures = [[event.fields["messages"] for event in one.occurrences if event.name == "backlog"] for one in told]
    assert figures == [[1, 0], [1]]


def test_a_message_that_waited_and_left_in_one_run_is_not_delayed(place: Place) -> None:
    place.write(Message("a", 1), Message("b", 2))
    publisher = Judging(lambda one: PublishResult(PublishStatus.RETRYABLE, "later", 0.001))
    relay, total = place.relay(publisher, backoff_base="1ms", backoff_max="1ms"), Totals()
    client = connect(place.url).client()
    with relay._working(client) as (setting, client):
        relay._round(setting, client, total)
        assert (total.left, total.delayed > 0) == (0, True)  # a slow machine tries them again in one round
        publisher.judge = lambda one: ACKED
        until(lambda: relay._round(setting, client, total) is not None and total.left == 2)
    assert (total.left, total.delayed, total.dead) == (2, 0, 0)


def test_a_relay_makes_the_buckets_that_somebody_has_removed(place: Place) -> None:
    place.write(Message("orders", 1, key="A"))
    place.sql("DELETE FROM retrysafe_outbox_buckets")
    assert place.relay().run_once().published == 1
    assert len(place.sql("SELECT bucket FROM retrysafe_outbox_buckets")) == 64


# ---------------------------------------------------------------- topics


def test_a_paused_topic_waits_and_no_other(place: Place) -> None:
    publisher = MemoryPublisher()
    place.write(Message("orders", 1, key="A"), Message("mails", 2, key="A"))
    assert main(["outbox", "pause", "orders", "--store", place.url]) == 0
    assert place.relay(publisher).run_once().published == 1
    assert [one.topic for one in publisher.published] == ["mails"]
    assert main(["outbox", "resume", "orders", "--store", place.url]) == 0
    assert place.relay(publisher).run_once().published == 1
    assert main(["outbox", "resume", "orders", "--store", place.url]) == 1


# ---------------------------------------------------------------- dead letters


def test_dead_letters_are_found_and_redriven(place: Place) -> None:
    ids = place.write(*(Message(topic, n, key=f"k_{n}") for n, topic in enumerate(["a", "a", "b", "c"])))
    assert place.relay(refusing("a", "b")).run_once() == Relayed(1, 0, 3)
    with place.operator() as operator:
        assert [letter.envelope.id for letter in operator.dead()] == ids[:3]
        assert operator.count() == {("a", "a.v1", "no a"): 2, ("b", "b.v1", "no b"): 1}
        assert operator.count(DeadLetterFilter(error="no a")) == {("a", "a.v1", "no a"): 2}
        assert operator.count(DeadLetterFilter(error="%")) == operator.count(DeadLetterFilter(error="o_a")) == {}
        (one,) = operator.dead(DeadLetterFilter(topic="a", key="k_1"))
        assert (one.envelope.id, one.finished, one.error, one.parked) == (ids[1], 1, "no a", False)
        assert operator.redrive(DeadLetterFilter(ids=(ids[1],))) == 1
        assert operator.redrive(DeadLetterFilter(type="b.v1")) == 1
        assert operator.redrive(DeadLetterFilter(topic="c")) == 0
        publisher = MemoryPublisher()
        assert place.relay(publisher).run_once().published == 2
        assert {one.id for one in publisher.published} == {ids[1], ids[2]}
        assert operator.redrive(limit=5) == 1
        assert operator.status().dead == 0


def test_redriving_begins_again_after_a_deadlock(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write(*(Message("a", n, key=str(n)) for n in range(3)))
    place.relay(refusing("a")).run_once()
    with place.operator() as operator:
        redriven, tries = operator._outbox.redrive, []

        def redrive(letters: Any) -> Any:
            yield from redriven(letters)
            tries.append(letters)
            if len(tries) == 1:
                raise RetryTransaction("deadlock")

        monkeypatch.setattr(operator._outbox, "redrive", redrive)
        assert operator.redrive() == 3
    assert place.relay().run_once().published == 3
    assert len(tries) == 2


def test_letters_that_die_again_are_not_redriven_for_ever(place: Place) -> None:
    ids = place.write(*(Message("a", n, key=str(n)) for n in range(5)))
    place.relay(refusing("a")).run_once()
    with place.operator() as operator:
        letters = list(operator.dead())
        place.sql(
            "UPDATE retrysafe_outbox_dead SET dead_at = dead_at + 3600000000 "
            f"WHERE finished = 1 AND message_id = '{ids[4]}'"
        )
        assert [one.envelope.id for one in letters] == ids
        assert operator.redrive() == 4, "the last one died after this began"


def test_two_who_redrive_at_once_redrive_each_letter_once(place: Place) -> None:
    place.write(*(Message("a", n, key=str(n)) for n in range(120)))
    assert place.relay(refusing("a")).run_once().dead == 120
    start = threading.Barrier(2)

    def redrive(_: int) -> int:
        with place.operator() as operator:
            start.wait(DEADLINE)
            return operator.redrive()

    with ThreadPoolExecutor(2) as pool:
        assert sum(pool.map(redrive, range(2))) == 120
    assert place.sql("SELECT count(*), count(DISTINCT message_id) FROM retrysafe_outbox")[0][:2] == (120, 120)


WAITS = {
    "postgresql": "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%outbox_dead%'",
    "mysql": "SELECT 1 FROM information_schema.processlist WHERE info LIKE 'SELECT id FROM retrysafe_outbox_dead%'",
}


@pytest.mark.parametrize("place", ["postgresql", "mysql"], indirect=True)
def test_redriving_waits_for_another_one_under_way(place: Place) -> None:
    """One has copied the letters and not removed them yet: the other must not copy them too."""
    place.write(*(Message("a", n, key=str(n)) for n in range(3)))
    assert place.relay(refusing("a")).run_once().dead == 3
    backend = connect(place.url)
    store: Any = backend.store
    copied, go = threading.Event(), threading.Event()

    def first() -> int:
        with backend.client().transaction() as opened:

            def execute(request: Any) -> Any:
                answer = opened.execute(request)
                if request.sql.startswith("INSERT INTO"):
                    copied.set()
                    assert go.wait(DEADLINE)
                return answer

            with place.operator() as operator:
                letters = list(operator.dead())
            return run(redrive(store, OperableSqlOutbox(store), letters), execute)

    def second() -> int:
        with place.operator() as operator:
            return operator.redrive()

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(first)
        assert copied.wait(DEADLINE)
        other = pool.submit(second)
        until(lambda: other.done() or place.sql(WAITS[place.kind]))
        go.set()
        assert (one.result(DEADLINE), other.result(DEADLINE)) == (3, 0)
    assert place.sql("SELECT count(*), count(DISTINCT message_id) FROM retrysafe_outbox")[0][:2] == (3, 3)


def test_a_parked_lane_goes_on_where_it_was(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    ids = place.write(Message("a", 1, key="A"), Message("a", 2, key="A"))
    place.relay(refusing("a"), on_dead="park").run_once()
    publisher = MemoryPublisher()
    assert place.relay(publisher).run_once().published == 0
    with place.operator() as operator:
        (head,) = operator.dead()
        assert (head.envelope.id, head.parked, head.error) == (ids[0], True, "no a")
        assert operator.discard() == 0
        assert operator.status().parked == 1
        for command in (["outbox", "status"], ["status"], ["doctor"], ["outbox", "dead", "discard", "--all", "--yes"]):
            capsys.readouterr()
            code = main([*command, "--store", place.url])
            told = capsys.readouterr()
            assert code == 1, (command, told)
            assert "parked lane" in (said := told.out + told.err) or "1 lane is parked" in said, command
        assert operator.redrive(DeadLetterFilter(ids=(ids[0],))) == 1
        assert operator.status().parked == 0
    assert place.relay(publisher).run_once().published == 2
    assert [one.id for one in publisher.published] == ids


def test_the_commands_of_dead_letters(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    secret = Message("a", {"card": "4242"}, key="A", headers={"tenant": "x"})
    ids = place.write(secret, Message("b", 1, key="B"))
    place.relay(refusing("a", "b")).run_once()

    def told(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        assert main(["outbox", "dead", *arguments, "--store", place.url]) == code
        return capsys.readouterr().out

    assert all(id_ in told("list") for id_ in ids)
    assert [json.loads(one)["id"] for one in told("list", "--topic", "b", "--json").splitlines()] == [ids[1]]
    assert json.loads(told("list", "--groups", "--topic", "a", "--json"))["messages"] == 1
    assert "4242" not in told("show", ids[0])
    assert "4242" in told("show", ids[0], "--payload")
    told("show", "nothing", code=1)
    assert "2 chosen, nothing changed" in told("redrive", "--all", "--dry-run")
    told("redrive", code=2)
    told("redrive", "--topic", "a", code=2)  # there is nobody to ask
    assert "redriven: 1" in told("redrive", "--topic", "a", "--yes", "--reason", "mended")
    assert json.loads(told("redrive", "--topic", "a", "--yes", "--json", code=1))["redriven"] == 0
    assert ids[0] not in told("list")
    told("discard", code=2)
    assert "discarded: 1" in told("discard", "--topic", "b", "--yes", "--reason", "nobody wants it")
    assert "no dead letters" in told("list")
    assert place.sql("SELECT message_id FROM retrysafe_outbox") == [(ids[0],)]


# ---------------------------------------------------------------- what is kept


def test_kept_messages_are_archived_and_removed_when_they_are_old(place: Place, tmp_path: Path) -> None:
    ids = place.write(*(Message("a", n, key=str(n), headers={"n": str(n)}) for n in range(25)))
    place.relay(keep_published=True).run_once()
    archive = tmp_path / "sent.jsonl"
    sweeper = OutboxSweeper(place.url, older_than="1h", batch=10, archive=JsonLines(archive, line=line), observers=())
    assert sweeper.run_once().removed == 0
    place.sql(
        "UPDATE retrysafe_outbox_published SET published = published - 7200000000 WHERE id <= "
        "(SELECT m FROM (SELECT max(id) - 5 AS m FROM retrysafe_outbox_published) AS x)"
    )
    assert sweeper.run_once()[:2] == (20, 20)
    lines = [json.loads(one) for one in archive.read_text().splitlines()]
    assert sorted(one["id"] for one in lines) == sorted(ids[:20])
    assert {one["id"]: one["headers"] for one in lines}[ids[3]] == {"n": "3"}
    assert main(["outbox", "sweep", "--older-than", "1h", "--store", place.url]) == 0
    assert len(place.sql("SELECT id FROM retrysafe_outbox_published")) == 5
    place.sql("UPDATE retrysafe_outbox_published SET published = 1")
    assert main(["outbox", "sweep", "--older-than", "1h", "--store", place.url]) == 0
    assert place.sql("SELECT id FROM retrysafe_outbox_published") == []


@pytest.mark.parametrize("keep", [True, "7d"])
def test_a_relay_removes_what_it_has_kept_for_long_enough(place: Place, keep: bool | str) -> None:
    place.write(*(Message("a", n) for n in range(3)))
    place.relay(keep_published=keep).run_once()
    kept = place.sql("SELECT id FROM retrysafe_outbox_published ORDER BY id")
    place.sql(f"UPDATE retrysafe_outbox_published SET published = published - 604800000000 WHERE id <> {kept[0][0]}")
    told: list[Event] = []
    place.relay(keep_published=keep, observers=[told.append]).run_once()
    assert place.sql("SELECT id FROM retrysafe_outbox_published") == kept[:1]
    assert [one.fields["removed"] for one in told if one.name == "swept"] == [2]


def test_large_messages_are_looked_up_and_archived_by_bytes_not_by_rows(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 dead letters of a megabyte killed whoever looked at them, and 1000 that were kept the sweeper."""
    monkeypatch.setattr("retrysafe.backends.sql.outbox_operating.PAGE_BYTES", 4000)
    held: list[int] = []

    def redriven(store: Any, outbox: Any, letters: Sequence[DeadLetter]) -> Any:
        held.append(sum(len(one.envelope.payload) for one in letters))
        return redrive(store, outbox, letters)

    monkeypatch.setattr("retrysafe.messaging.relay.operator.redrive", redriven)
    ids = place.write(*(Message("a", "x" * size, key=str(n)) for n, size in enumerate([1500] * 4 + [9000, 1500])))
    assert place.relay(refusing("a")).run_once().dead == 6
    with place.operator() as operator:
        assert len(operator._do(ask(operator._outbox.letters(DeadLetterFilter(), 0, 200)))) == 2
        assert [(one.envelope.id, len(one.envelope.payload)) for one in operator.dead()] == [
            (one, size + 2) for one, size in zip(ids, [1500] * 4 + [9000, 1500], strict=True)
        ]
        assert operator.redrive() == 6
    assert held == [0]
    assert place.relay(keep_published=True).run_once().published == 6
    place.sql("UPDATE retrysafe_outbox_published SET published = id")
    archived: list[list[int]] = []
    sweeper = OutboxSweeper(
        place.url,
        older_than="1h",
        archive=lambda kept: archived.append([len(one.payload) for _, one in kept]),
        observers=(),
    )
    assert sweeper.run_once(5)[:2] == (5, 5)
    assert sweeper.run_once()[:2] == (1, 1)
    assert archived == [[1502] * 2, [1502] * 2, [9002], [1502]]


# ---------------------------------------------------------------- publishers that behave oddly


@pytest.mark.parametrize("hold", [None, "lease"])
@pytest.mark.fault(53)
def test_a_poisoned_head_is_given_up_and_burns_no_others_attempts(hold: Any, place: Place) -> None:
    ids = place.write(*(Message("a", n, key="A") for n in range(4)))
    publisher = Judging(
        lambda one: PublishResult(PublishStatus.RETRYABLE, "x\0y\ud800" * 9000) if one.id == ids[0] else ACKED
    )
    relay = place.relay(publisher, hold=hold, max_attempts=3, backoff_base="1ms", backoff_max="1ms")
    until(lambda: relay.run_once().dead)
    assert publisher.offered == [ids[0]] * 3 + ids[1:]
    with place.operator() as operator:
        (dead,) = operator.dead()
        assert (dead.envelope.id, dead.started, dead.finished) == (ids[0], 3, 3)
        assert dead.error.startswith("x\ufffdy")


@pytest.mark.parametrize("hold", [None, "lease"])
def test_a_publisher_that_says_too_little_has_said_nothing(hold: Any, place: Place) -> None:
    class Silent(MemoryPublisher):
        def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
            return [ACKED] * (len(envelopes) - 1)

    place.write(*(Message("a", n, key="A") for n in range(2)))
    assert place.relay(Silent(), hold=hold, backoff_base="30d", backoff_max="30d").run_once() == Relayed(0, 1, 0)
    assert len(place.sql("SELECT id FROM retrysafe_outbox")) == 2


@each_row("hold", [None, "lease"])
def test_postponed_messages_cost_no_attempt(hold: Any, place: Place) -> None:
    place.write(Message("a", 1, key="A"))
    publisher = Judging(lambda one: PublishResult(PublishStatus.POSTPONED, "busy"))
    relay = place.relay(publisher, hold=hold, max_attempts=2)
    for _ in range(5):
        assert relay.run_once() == Relayed(0, 1, 0)
    assert place.sql("SELECT started, finished FROM retrysafe_outbox_attempts")[0][:2] == (0, 0)
    publisher.judge = lambda one: ACKED
    assert relay.run_once() == Relayed(1, 0, 0)
    assert place.sql("SELECT id FROM retrysafe_outbox_attempts") == []


def test_a_broker_that_wants_to_be_left_alone_is(place: Place) -> None:
    place.write(Message("a", 1, key="A"))
    publisher = Judging(lambda one: PublishResult(PublishStatus.RETRYABLE, "later", 3600.0))
    relay = place.relay(publisher, backoff_base="1ms", backoff_max="1ms")
    assert (relay.run_once().delayed, relay.run_once().delayed) == (1, 0)


class AwaitProbe(MemoryPublisher):
    """Says the same, whatever it is given."""

    def __init__(self, said: Any) -> None:
        super().__init__()
        self.said = said

    def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        self.published += envelopes
        return self.said if isinstance(self.said, list) else [self.said] * len(envelopes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "said",
    [
        None,
        [None],
        PublishResult(PublishStatus.RETRYABLE, "x", float("inf")),
        PublishResult(PublishStatus.POSTPONED, "x", float("inf")),
        PublishResult(PublishStatus.RETRYABLE, "x", float("nan")),
        PublishResult(PublishStatus.RETRYABLE, "x", 1e300),
        PublishResult("taken", "x"),  # type: ignore[arg-type]
        PublishResult(PublishStatus.RETRYABLE, ValueError("x")),  # type: ignore[arg-type]
    ],
    ids=str,
)
@pytest.mark.parametrize("hold", [None, "lease"])
def test_all_results_of_a_publisher_are_written_down(hold: Any, said: Any, place: Place) -> None:
    """Else what has left leaves again, and again."""
    place.write(Message("a", 1, key="A"))
    relay = place.relay(AwaitProbe(said), hold=hold, backoff_base="30d", backoff_max="30d")
    assert relay.run_once() == Relayed(0, 1, 0)
    assert relay.run_once() == Relayed(0, 0, 0)


@each_row("hold", [None, "lease"])
@pytest.mark.fault(51)
def test_a_broker_that_is_away_costs_no_attempt(hold: Any, place: Place) -> None:
    """However long: what had left has left, what had not is where it was, and no lane waits for a back-off."""
    told = Told()
    ids = place.write(*(Message("a", n, key="A") for n in range(4)), Message("a", 0, key="B"))
    bucket = place.sql(f"SELECT bucket FROM retrysafe_outbox WHERE message_id = '{ids[0]}'")[0][0]
    place.sql(f"UPDATE retrysafe_outbox SET bucket = {bucket}")  # one batch
    away = PublishResult(PublishStatus.UNAVAILABLE, "connection refused")
    publisher = Judging(lambda one: ACKED if one.id in (ids[0], ids[4]) else away)
    relay = place.relay(publisher, hold=hold, max_attempts=1, max_crashes=1, observers=[told])
    for _ in range(3):
        with pytest.raises(BrokerUnavailable, match="connection refused"):
            relay.run_once()
    assert [one.id for one in publisher.published] == [ids[0], ids[4]]
    assert place.sql("SELECT id FROM retrysafe_outbox_attempts") == []
    assert place.sql("SELECT count(*) FROM retrysafe_outbox_dead") == [(0,)]
    with place.operator() as operator:
        assert operator.status().due == 3
    assert [one.fields["messages"] for one in told.occurrences if one.name == "relayed"] == [2]
    publisher.judge = lambda one: ACKED
    assert relay.run_once() == Relayed(3, 0, 0)
    assert [one.key for one in publisher.published] == ["A", "B", "A", "A", "A"]


def test_a_relay_that_was_stalled_concludes_nothing(place: Place) -> None:
    """It published, slept, and wakes when another one has parked the lane: the lane stays parked."""
    place.write(Message("a", 1, key="A"))

    def judge(envelope: Envelope) -> PublishResult:
        place.sql("UPDATE retrysafe_records SET attempt = 'another', token = token + 1 WHERE state = 'running'")
        place.sql(f"UPDATE retrysafe_outbox_attempts SET finished = 1, not_before = {FOREVER}, error = 'no'")
        return ACKED

    with pytest.raises(LeaseLost):
        place.relay(Judging(judge), hold="lease").run_once()
    place.sql("DELETE FROM retrysafe_records WHERE attempt = 'another'")
    assert place.sql("SELECT finished, error FROM retrysafe_outbox_attempts") == [(1, "no")]
    with place.operator() as operator:
        assert [one.parked for one in operator.dead()] == [True]


def test_a_relay_leases_no_bucket_that_has_nothing_due(place: Place) -> None:
    place.sql("DELETE FROM retrysafe_records WHERE boundary = 'retrysafe.relay'")
    place.write(Message("a", 1, key="A"))
    with place.operator() as operator:
        operator.pause("a")
    relay = place.relay(hold="lease")
    assert relay.run_once() == Relayed(0, 0, 0)
    assert place.sql("SELECT count(*) FROM retrysafe_records WHERE boundary = 'retrysafe.relay'") == [(0,)]


def test_a_relay_that_lost_the_reply_to_its_lease_gives_the_bucket_back(place: Place) -> None:
    """It does not know that it has it, and nothing renews it: others need not wait for its end."""
    place.sql("DELETE FROM retrysafe_records WHERE boundary = 'retrysafe.relay'")
    place.write(Message("a", 1, key="A"))
    relay, lost = place.relay(hold="lease", lease="10m"), [StoreUnavailable("no reply")]
    client = relay._backend.new_client()

    class Losing:
        """Performs requests, and loses the reply to the first commit."""

        def __call__(self, request: Any, /) -> Any:
            return client(request)

        @contextmanager
        def transaction(self) -> Iterator[Any]:
            with client.transaction() as opened:

                def execute(request: Any) -> Any:
                    rows = opened.execute(request)
                    if request.control == "commit" and lost:
                        raise lost.pop()
                    return rows

                yield SimpleNamespace(execute=execute)

    with closing(client):
        with pytest.raises(StoreUnavailable, match="no reply"):
            drain(relay._setting, Losing(), bucket(lane("a", "A", "")))
        state = "SELECT state FROM retrysafe_records WHERE boundary = 'retrysafe.relay'"
        until(lambda: place.sql(state) == [("released",)])
    assert place.relay(hold="lease").run_once() == Relayed(1, 0, 0)


async def test_a_publisher_of_the_other_colour_is_refused(place: Place) -> None:
    """Each message would leave time and again, and end as a dead letter."""
    place.write(Message("a", 1))
    sync, other = MemoryPublisher(), AsyncMemoryPublisher()
    with pytest.raises(ConfigurationError, match="is for sync code"):
        await place.relay(sync).arun_once()
    with pytest.raises(ConfigurationError, match="is for sync code"):
        async with place.relay(sync):
            pass
    with pytest.raises(ConfigurationError, match="is for async code"):
        place.relay(other).run_once()
    with pytest.raises(ConfigurationError, match="is for async code"), place.relay(other):
        pass
    assert sync.published == other.published == []


def test_the_command_spreads_a_topic_over_partitions(tmp_path: Path) -> None:
    import redis

    require("redis")
    place = Place("sqlite", f"sqlite:///{tmp_path}/shop.db")
    place.write(*(Message("a", n, key=str(n)) for n in range(20)))
    prefix = f"tests:{secrets.token_hex(6)}:"
    broker = os.environ["RETRYSAFE_TEST_REDIS"]
    options = ["--broker", broker, "--prefix", prefix, "--partitions", "2", "--once", "--store", place.url]
    assert main(["relay", *options]) == 0
    with redis.Redis.from_url(broker) as client:
        lengths = [client.xlen(f"{prefix}{{a.{number}}}") for number in range(2)]
        for key in client.scan_iter(f"{prefix}*"):
            client.delete(key)
    assert all(lengths)
    assert sum(lengths) == 20


def rejecting() -> Judging:
    return Judging(lambda one: PublishResult(PublishStatus.REJECTED, "no"))


class Plain:
    """A publisher that has nothing to close."""

    def publish(self, envelopes: Any) -> Any:
        return [PublishResult(PublishStatus.REJECTED, "no")] * len(envelopes)


class Coroutine:
    """The same for async code."""

    async def publish(self, envelopes: Any) -> Any:
        return [PublishResult(PublishStatus.REJECTED, "no")] * len(envelopes)


@each_row("publisher", ["Plain", "Coroutine"])
def test_a_publisher_needs_nothing_to_close(publisher: str, tmp_path: Path) -> None:
    place = Place("sqlite", f"sqlite:///{tmp_path}/shop.db")
    place.write(Message("a", 1))
    assert main(["relay", "--store", place.url, "--publisher", f"{__name__}:{publisher}", "--once"]) == 1


def test_the_command_ends_with_1_when_a_message_did_not_leave(tmp_path: Path) -> None:
    place = Place("sqlite", f"sqlite:///{tmp_path}/shop.db")
    place.write(Message("a", 1))
    told = ["relay", "--store", place.url, "--publisher", f"{__name__}:rejecting", "--once"]
    assert [main(told), main(told)] == [1, 0], "it is a dead letter now"


@each_row("kind", ["sync", "async"])
async def test_a_relay_does_not_wait_for_tables(kind: str, tmp_path: Path) -> None:
    """It logged the same warning for ever, while nothing left."""
    place = Place("sqlite", f"sqlite:///{tmp_path}/shop.db")
    relay = place.relay(MemoryPublisher() if kind == "sync" else AsyncMemoryPublisher())
    place.sql("DROP TABLE retrysafe_schema")
    with pytest.raises(SchemaOutdated, match="retrysafe migrate"):
        await (asyncio.to_thread(relay.run_forever) if kind == "sync" else relay.arun_forever())
    with pytest.raises(SchemaOutdated):
        if kind == "sync":
            relay.__enter__()
        else:
            await relay.__aenter__()


# ---------------------------------------------------------------- beside an application


def test_a_writer_wakes_the_relay_in_a_thread(place: Place) -> None:
    """It has looked in vain for so long that it would not look again today."""
    publisher = MemoryPublisher()
    relay = place.relay(publisher)
    relay._polls = Polls(longest=86400.0, idle=60)
    with relay:
        until(lambda: relay._polls.idle > 60)
        (id_,) = place.write(Message("a", 1, key="A"))
        until(lambda: [one.id for one in publisher.published] == [id_])


async def test_a_writer_wakes_the_relay_on_the_loop(place: Place) -> None:
    publisher = AsyncMemoryPublisher()
    relay = place.relay(publisher)
    relay._polls = Polls(longest=86400.0, idle=60)
    async with relay:
        await auntil(lambda: relay._polls.idle > 60)
        (id_,) = await asyncio.to_thread(place.write, Message("a", 1, key="A"))
        await auntil(lambda: [one.id for one in publisher.published] == [id_])


def test_a_relay_works_after_it_was_stopped(place: Place) -> None:
    relay = place.relay()
    with relay:
        pass
    place.write(Message("a", 1))
    assert relay.run_once() == Relayed(1, 0, 0)


def test_a_stop_between_two_runs_is_for_neither(place: Place) -> None:
    """As `finally: relay.stop()` rings it, and a signal that comes a second time."""
    relay = place.relay()
    with relay:
        relay.stop()
    relay.stop()
    place.write(Message("a", 1))
    assert relay.run_once() == Relayed(1, 0, 0)


def test_a_relay_runs_once_at_a_time(place: Place) -> None:
    """One run reset what the other needed, and a stop ended one of them."""
    relay = place.relay()
    place.write(Message("a", 1))
    with relay:
        for again in (relay.run_once, relay.run_forever, relay.__enter__):
            with pytest.raises(ConfigurationError, match="This Relay is running already"):
                again()
    relay.run_once()
    assert place.sql("SELECT count(*) FROM retrysafe_outbox")[0][0] == 0


def test_a_relay_whose_thread_could_not_be_started_runs_when_it_can(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    relay = place.relay()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            relay.__enter__()
    place.write(Message("a", 1))
    assert relay.run_once() == Relayed(1, 0, 0)


@pytest.mark.slow
async def test_one_run_of_a_relay_is_stopped_while_its_destination_is_silent(place: Place) -> None:
    waits = asyncio.Event()

    class Silent:
        def destination(self, envelope: Envelope) -> str:
            return envelope.topic

        async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
            await asyncio.Event().wait()
            raise AssertionError

    place.write(Message("a", 1))
    driver = {"sqlite": "", "postgresql": "+asyncpg", "mysql": "+asyncmy"}[place.kind]
    relay = Relay(place.url.replace(":", f"{driver}:", 1), Silent(), observers=(), publish_timeout="1h")
    settled = relay._dispatch.settle

    async def noted(stop: StopSignal) -> bool:
        waits.set()
        return await settled(stop)

    relay._dispatch.settle = noted  # type: ignore[method-assign]
    running = asyncio.create_task(relay.arun_once())
    await waits.wait()
    relay.stop()
    async with asyncio.timeout(20):
        assert (await running).published == 0
    await relay.backend.aclose()


def test_a_relay_that_cannot_work_says_so_at_once(postgresql: str) -> None:
    with pytest.raises(ConfigurationError, match="lease="):
        Relay(postgresql, MemoryPublisher(), lease="soon")
    url = postgresql.replace("postgresql:", "postgresql+asyncpg:")
    with pytest.raises(ConfigurationError, match="async"), Relay(url, MemoryPublisher(), observers=()):
        pass


async def test_a_database_that_is_cancelled_within_ends_no_relay(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a driver does whose connection's task ends under it: when the relay begins, and in its first round."""
    relay, torn = place.relay(AsyncMemoryPublisher()), ["begins", "round"]
    check = relay._backend.acheck

    async def acheck(client: Any) -> None:
        if torn:
            torn.pop()
            raise asyncio.CancelledError
        await check(client)

    monkeypatch.setattr(relay._backend, "acheck", acheck)
    place.write(Message("a", 1))
    async with relay:
        await auntil(lambda: relay._task.done() or not place.sql("SELECT 1 FROM retrysafe_outbox"))
        assert not relay._task.done()
    assert torn == []


async def test_a_publisher_that_is_cancelled_within_ends_no_relay(place: Place) -> None:
    """As a client does whose connection's task ends under it: nobody can tell what became of the messages."""

    class Torn(AsyncMemoryPublisher):
        async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
            raise asyncio.CancelledError

    place.write(Message("a", 1))
    assert await place.relay(Torn(), backoff_base="30d", backoff_max="30d").arun_once() == Relayed(0, 1, 0)
    running = asyncio.create_task(place.relay(Torn()).arun_forever())
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_slow_bucket_keeps_no_other(place: Place) -> None:
    """Several are under way together."""
    gate = asyncio.Event()
    taken: list[str] = []

    class Slow(AsyncMemoryPublisher):
        async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
            if any(one.topic == "slow" for one in envelopes):
                await gate.wait()
            taken.extend(one.topic for one in envelopes)
            return [ACKED] * len(envelopes)

    place.write(Message("slow", 0, key="A"), *(Message("quick", n, key=str(n)) for n in range(20)))
    slow_bucket = place.sql("SELECT bucket FROM retrysafe_outbox WHERE topic = 'slow'")[0][0]
    others = place.sql(f"SELECT count(*) FROM retrysafe_outbox WHERE bucket <> {slow_bucket}")[0][0]
    relay = place.relay(Slow(), hold="lease")
    running = asyncio.create_task(relay.arun_once())
    await auntil(lambda: taken.count("quick") == others)
    assert "slow" not in taken
    gate.set()
    assert (await running).published == 21


def test_events_tell_what_left_and_what_did_not(place: Place) -> None:
    told = Told()
    ids = place.write(Message("ok", 1, key="A"), Message("bad", 2, key="B"), Message("busy", 3, key="C"))
    answers = {
        "ok": ACKED,
        "bad": PublishResult(PublishStatus.REJECTED, "no"),
        "busy": PublishResult(PublishStatus.RETRYABLE, "lost"),
    }
    relay = place.relay(
        Judging(lambda one: answers[one.topic]), backoff_base="30d", backoff_max="30d", observers=[told]
    )
    relay.run_once()
    found = {one.name: one for one in told.occurrences}
    assert found["relayed"].fields["messages"] == 1
    assert found["relayed"].fields["lag"] > 0
    assert [one.name for one in told.occurrences].count("message_relayed") == 1
    confirmed = found["message_relayed"]
    assert (confirmed.operation, confirmed.fields["topic"], confirmed.fields["message_id"]) == ("ok.v1", "ok", ids[0])
    assert confirmed.fields["lag"] > 0
    assert dict(found["dead_lettered"].fields) == {"side": "outbox", "topic": "bad", "error": "no", "attempts": 1}
    assert dict(found["publish_delayed"].fields) == {"topic": "busy", "error": "lost", "attempts": 1}
    assert found["dead_lettered"].operation == "bad.v1"


def test_stopping_ends_an_idle_relay_and_says_goodbye(place: Place) -> None:
    relay = place.relay()
    with relay, place.operator() as operator:
        until(lambda: operator.status().alive == 1)
    with place.operator() as operator:
        assert operator.status().relays == []


def test_a_relay_publishes_what_it_was_given(place: Place) -> None:
    """Two services of one database, whose messages share topics and keys."""
    mail = Outbox(place.url, source="/mail", observers=())
    place.write(*(Message("shared", n, key=f"k{n % 3}") for n in range(6)), Message("orders", 0))
    with closing(place.open()) as connection:
        if place.kind == "mysql":
            connection.begin()
        mail.add_many(connection, [Message("shared", n, key=f"k{n % 3}") for n in range(5)])
        connection.commit()
    for options, left in (
        ({"sources": ["/none"]}, 0),
        ({"sources": ["/mail"], "topics": ["orders"]}, 0),
        ({"sources": ["/mail"]}, 5),
        ({"topics": ["orders"]}, 1),
        ({"sources": ["/shop", "/mail"]}, 6),
    ):
        assert place.relay(**options).run_once().published == left, options
    for wrong in ({"sources": "/mail"}, {"topics": []}):
        with pytest.raises(ConfigurationError):
            place.relay(**wrong)


def test_relays_of_different_brokers_on_one_outbox_are_told(place: Place) -> None:
    class Other(MemoryPublisher):
        pass

    class Placed(MemoryPublisher):
        def __init__(self, place: str) -> None:
            super().__init__()
            self.broker_address = broker_address_of(place)

    here, login, there = (Placed(f"amqp://{at}") for at in ("h/a", "u:p@H/a?heartbeat=9", "h/b"))
    for one, another, options, told_of in (
        (Other(), MemoryPublisher(), {}, 1),
        (Other(), MemoryPublisher(), {"sources": ["/shop"]}, 0),
        (here, there, {}, 1),
        (here, login, {}, 0),
    ):
        told = Told()
        first = place.relay(one, **options)
        second = place.relay(another, observers=[told], **options)
        with first._working(first._open()) as (setting, client):
            first._round(setting, client, Totals())
            second.run_once()
        assert told.names["relays_differ"] == told_of
