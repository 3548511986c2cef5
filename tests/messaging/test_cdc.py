"""Relays that read the outbox from PostgreSQL's log, on a server of their own."""

from __future__ import annotations

import asyncio
import json
import select
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from retrysafe import ConfigurationError
from retrysafe.backends.driver import run
from retrysafe.backends.registry import connect
from retrysafe.backends.sql.envelopes import ENVELOPE
from retrysafe.backends.sql.outbox import SqlOutbox
from retrysafe.backends.sql.outbox_log import SqlOutboxLog, TableLook, Waiting
from retrysafe.cli import main
from retrysafe.messaging import Outbox
from retrysafe.messaging.brokers.memory.publisher import AsyncMemoryPublisher, MemoryPublisher
from retrysafe.messaging.cdc import Slot, stream
from retrysafe.messaging.cdc.batches import LoggedMessage, leaving, message_in, take
from retrysafe.messaging.cdc.slot import LogUnavailable, SlotInUse, SlotLag
from retrysafe.messaging.relay.relay import Relay
from retrysafe.protocol.events import Event
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus
from retrysafe.protocol.outbox_walk import Most
from tests.faults.helpers import DEADLINE, auntil, own_database, unique
from tests.faults.servers import LogicalCluster, postgresql_programs
from tests.tables import each_row

pytestmark = pytest.mark.slow  # its fixture starts a server of its own


@pytest.fixture(scope="module")
def server() -> Iterator[LogicalCluster]:
    programs = postgresql_programs()
    if programs is None:
        pytest.skip("there is no PostgreSQL server to start")
    with closing(LogicalCluster(programs)) as made:
        yield made


async def test_a_server_that_does_not_answer_keeps_nothing_but_its_thread_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """libpq's own way to connect held every thread of the process, its event loops and its leases, for ten seconds."""
    monkeypatch.setattr(stream, "CONNECT", 2)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        slot = Slot(f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/nothing")
        opening = asyncio.create_task(asyncio.to_thread(stream.open_stream, slot))
        turns = 0
        while not opening.done():
            await asyncio.sleep(0.02)
            turns += 1
        with pytest.raises(LogUnavailable):
            await opening
    assert turns > 10


class Broker(AsyncMemoryPublisher):
    """Takes what ``says`` lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.took: list[Envelope] = []
        self.away = False
        self.refuses: set[str | None] = set()

    async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        return [self._take(one) for one in envelopes]

    def _take(self, envelope: Envelope) -> PublishResult:
        if self.away:
            return PublishResult(PublishStatus.UNAVAILABLE, "nobody is there")
        if envelope.key in self.refuses:
            return PublishResult(PublishStatus.RETRYABLE, "not this one")
        self.took.append(envelope)
        return PublishResult(PublishStatus.ACKED)

    def bodies(self) -> list[int]:
        return [int(one.payload) for one in self.took]


class Place:
    """A database with an outbox, a slot, and a broker."""

    def __init__(self, server: LogicalCluster, url: str) -> None:
        self.server, self.url = server, url
        self.slot = Slot(url, name=unique("slot"), heartbeat="50ms")
        self.broker = Broker()
        self.events: list[Event] = []
        self.outbox = Outbox(url, source="/shop")

    def sql(self, text: str) -> Any:
        with psycopg.connect(self.url, autocommit=True) as connection:
            found = connection.execute(text.encode())
            return found.fetchall() if found.description else None

    def write(self, *bodies: int, key: str | None = "A") -> list[Envelope]:
        """Write messages in one transaction."""
        with psycopg.connect(self.url) as connection:
            return [self.outbox.add(connection, "orders", body, key=key) for body in bodies]

    def waiting(self) -> int:
        return int(self.sql("SELECT count(*) FROM retrysafe_outbox")[0][0])

    def confirmed(self) -> int:
        found = self.sql(
            f"SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = '{self.slot.name}'"
        )
        return int(found[0][0])

    def written(self) -> int:
        return int(self.sql("SELECT pg_current_wal_lsn() - '0/0'")[0][0])

    def told(self, name: str) -> list[Any]:
        return [event.fields for event in self.events if event.name == name]

    def relay(self, broker: Any = None, **options: Any) -> Relay:
        options = {"cdc": self.slot, "observers": [self.events.append], **options}
        return Relay(self.url, broker or self.broker, **options)

    @asynccontextmanager
    async def relaying(self, **options: Any) -> AsyncIterator[Relay]:
        """A relay that follows the log, and has made its first round."""
        relay, ended = self.relay(**options), asyncio.Event()
        around = relay._around

        async def noted(*arguments: Any) -> bool:
            try:
                return await around(*arguments)
            finally:
                ended.set()

        relay._around = noted  # type: ignore[method-assign]
        async with relay:
            await ended.wait()
            await auntil(self.is_read)
            yield relay

    def is_read(self) -> bool:
        return bool(self.sql(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{self.slot.name}' AND active"))

    async def until_took(self, number: int) -> None:
        await auntil(lambda: len(self.broker.took) >= number)
        await auntil(lambda: not self.waiting())


@pytest.fixture
def place(server: LogicalCluster) -> Iterator[Place]:
    with own_database(server.url) as url:
        made = Place(server, url)
        yield made
        made.slot.discard()


@pytest.fixture
def no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the log tells of new messages, after the first round."""
    monkeypatch.setattr("retrysafe.messaging.cdc.following.EVERY", 3600.0)


# ---------------------------------------------------------------- the log


async def test_committed_messages_leave_as_they_were_written_and_others_do_not(place: Place, no_rounds: None) -> None:
    async with place.relaying():
        with psycopg.connect(place.url) as late, psycopg.connect(place.url) as undone:
            first = place.outbox.add(late, "orders", 1, key="late", sequence=7, headers={"tenant": "Ä"})
            place.outbox.add(undone, "orders", 2, key="undone")
            undone.rollback()
            place.write(3, 4)
            await auntil(lambda: len(place.broker.took) == 2)
        binary = place.write(5)
        await place.until_took(4)
    assert place.broker.bodies() == [3, 4, 1, 5]  # as they were committed
    assert place.broker.took[2] == first
    assert place.broker.took[3] == binary[0]
    assert place.confirmed() > 0


async def test_every_kind_of_value_is_read_from_the_log(place: Place, no_rounds: None) -> None:
    async with place.relaying():
        with psycopg.connect(place.url) as tx:
            written = [
                place.outbox.add(tx, "orders", bytes(range(256)), key=None, media_type="application/x-bytes"),
                place.outbox.add(tx, "orders", {"name": "Zoë \\x00"}, key="it's", headers={"a": "b\\c"}),
                place.outbox.add(tx, "orders", b"", key="empty"),
                place.outbox.add(tx, "orders", b"x" * 200_000, key="large"),
            ]
        await auntil(lambda: len(place.broker.took) == 4)
    assert {one.id: one for one in place.broker.took} == {one.id: one for one in written}


@pytest.mark.parametrize("setting", ["bytea_output = 'escape'", "client_encoding = 'LATIN1'"])
async def test_the_log_is_read_as_it_was_written_whatever_the_database_is_set_to(
    place: Place, no_rounds: None, setting: str
) -> None:
    place.sql(f"ALTER DATABASE {place.url.rpartition('/')[2]} SET {setting}")
    async with place.relaying():
        with psycopg.connect(place.url, client_encoding="utf8") as tx:
            written = place.outbox.add(tx, "orders", b"abcd12", key="Ä")
        await auntil(lambda: place.broker.took)
    assert place.broker.took == [written]
    assert not place.told("log_unavailable")


class Counting:
    """A connection that counts how often something is taken from the network."""

    def __init__(self, connection: Any) -> None:
        self._connection, self.taken = connection, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def consume_input(self) -> None:
        self.taken += 1
        self._connection.consume_input()


async def test_no_more_of_a_large_transaction_is_taken_than_is_read(place: Place) -> None:
    """libpq keeps in memory what it has taken."""
    place.slot.create()
    place.write(*range(500))
    reading = await asyncio.to_thread(stream.open_stream, place.slot)
    reading._connection = counting = Counting(reading._connection)
    one_at_a_time = Most(1, 1 << 20, 1)

    def read() -> list[LoggedMessage]:
        return reading.read(one_at_a_time).messages

    await auntil(read)
    counting.taken, found = 0, 1
    while found < 500:
        if not (more := len(read())):
            select.select([reading._connection.socket], [], [], DEADLINE)
        found += more
    reading.close()
    assert counting.taken < 250


async def test_a_large_transaction_leaves_in_several_batches(place: Place, no_rounds: None) -> None:
    async with place.relaying(batch=7):
        place.write(*range(100))
        await place.until_took(100)
    assert place.broker.bodies() == [*range(100)]


async def test_the_server_may_forget_the_log_when_messages_have_left_and_not_before(place: Place) -> None:
    async with place.relaying():
        place.write(1)
        await place.until_took(1)
        await auntil(lambda: place.confirmed() >= place.written())
        place.broker.away = True
        before = place.written()
        place.write(2)
        await auntil(lambda: len(place.told("relay_failed")) >= 2)
        assert place.confirmed() <= before
        place.broker.away = False
        await place.until_took(2)
        await auntil(lambda: place.confirmed() > before)


async def test_a_message_that_waits_keeps_its_lane_and_not_the_log(place: Place) -> None:
    place.broker.refuses = {"A"}
    async with place.relaying(backoff_base="1ms", backoff_max="5ms", max_attempts=10_000):
        place.write(1)
        end = place.written()
        await auntil(lambda: place.told("publish_delayed"))
        place.write(2)
        place.write(3, key="B")
        await auntil(lambda: place.broker.bodies() == [3])
        await auntil(lambda: place.confirmed() >= end)
        place.broker.refuses = set()
        await place.until_took(3)
    assert place.broker.bodies() == [3, 1, 2]


async def test_the_log_of_an_idle_database_is_not_kept(place: Place) -> None:
    """The writes of other databases are in the same log."""
    async with place.relaying():
        with own_database(place.server.url) as other, psycopg.connect(other, autocommit=True) as busy:
            busy.execute("CREATE TABLE noise AS SELECT generate_series(1, 10000) AS n")
        end = place.written()
        await auntil(lambda: place.confirmed() >= end)


async def test_it_is_told_how_much_of_the_log_is_not_confirmed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrysafe.messaging.cdc.following.LOOK", 0.02)
    free = asyncio.Event()

    class Stuck(Broker):
        async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
            await free.wait()
            return await super().publish(envelopes)

    async with place.relaying(broker=Stuck()):
        place.write(1)
        place.sql("CREATE TABLE noise AS SELECT generate_series(1, 20000) AS n")
        await auntil(lambda: any(told["behind"] > 500_000 for told in place.told("log_lag")))
        free.set()
        seen = len(place.told("log_lag"))
        await auntil(lambda: any(told["behind"] < 500_000 for told in place.told("log_lag")[seen:]))
    assert all(told["slot"] == place.slot.name and told["kept"] >= told["behind"] for told in place.told("log_lag"))


async def test_commits_in_the_log_before_they_can_be_seen_are_waited_for(place: Place, no_rounds: None) -> None:
    """As long as a synchronous replica has not confirmed a commit, nobody sees it, and the log says it all the same."""
    async with place.relaying():
        before = place.confirmed()
        place.server.set(synchronous_standby_names="nobody")
        try:
            writer = threading.Thread(target=place.write, args=(1,))
            writer.start()
            unseen = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            await auntil(lambda: place.sql(unseen))
            await auntil(lambda: place.sql(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{place.slot.name}'"))
            for _ in range(20):  # as many looks
                await asyncio.sleep(0.01)
            assert place.broker.took == []
            assert place.confirmed() >= before
        finally:
            place.server.set(synchronous_standby_names="")
            writer.join()
        await place.until_took(1)


@pytest.mark.one_of("slow tests")
async def test_visible_messages_leave_while_the_log_has_invisible_ones(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retrysafe.messaging.cdc.following.EVERY", 0.05)
    async with place.relaying():
        place.server.set(synchronous_standby_names="nobody")
        try:
            writer = threading.Thread(target=place.write, args=(1,))
            writer.start()
            await auntil(lambda: place.sql("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))
            with psycopg.connect(place.url) as tx:
                tx.execute("SET synchronous_commit = local")
                place.outbox.add(tx, "orders", 2, key="B")
            await auntil(lambda: place.broker.bodies() == [2])
        finally:
            place.server.set(synchronous_standby_names="")
            writer.join()
        await place.until_took(2)


async def test_calls_of_a_polling_relay_are_waited_for(place: Place, no_rounds: None) -> None:
    async with place.relaying():
        with psycopg.connect(place.url) as polling:
            polling.execute("SELECT 1 FROM retrysafe_outbox_buckets FOR UPDATE")
            place.write(1)
            waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            await auntil(lambda: place.sql(waits))
            polling.execute("DELETE FROM retrysafe_outbox")  # it has published
        end = place.written()
        await auntil(lambda: place.confirmed() >= end)
    assert place.broker.took == []


def test_messages_behind_one_that_is_missing_in_the_log_stay(place: Place) -> None:
    place.write(1)
    place.write(2)
    columns = ("id", "lane", "created", *ENVELOPE)
    texts = ", ".join(f"CAST({name} AS text)" for name in columns)
    rows = place.sql(f"SELECT {texts} FROM retrysafe_outbox AS o ORDER BY o.id")
    batch = [message_in(1, dict(zip(columns, row, strict=True))) for row in rows]
    backend = connect(place.url)
    store: Any = backend.store
    for logged, bodies in ((batch[1:], []), (batch, [b"1", b"2"])):
        with backend.client().transaction() as opened:
            taking = take(store, SqlOutbox(store), SqlOutboxLog(store), logged, 5.0, ())
            found = run(taking, opened.execute)
        assert found is not None
        assert [queued.envelope.payload for queued in found] == bodies


# ---------------------------------------------------------------- crashes


class Crash(BaseException):
    """The end of the process, as far as the servers can tell."""


class Crashes:
    """Ends a relay at the n-th message of the protocol, before or after it is read or written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at = self.seen = 0
        for name in ("parse", "standby_status"):
            monkeypatch.setattr(stream, name, self._counting(getattr(stream, name)))

    def _counting(self, call: Any) -> Any:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.seen += 1
            if self.seen == self.at:
                raise Crash
            return call(*arguments, **options)

        return counted


async def test_a_crash_at_any_message_of_the_protocol_loses_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashes, wrote = Crashes(monkeypatch), 0
    place.slot.create()
    for at in range(1, 25):
        crashes.at, crashes.seen = at, 0
        running = asyncio.create_task(place.relay(max_crashes=1000).arun_forever())
        place.write(wrote, wrote + 1)
        place.write(wrote + 2, key="B")
        wrote += 3
        with pytest.raises(Crash):
            async with asyncio.timeout(60):
                await running
    crashes.at = 0
    async with place.relaying():
        await auntil(lambda: not place.waiting())
    for key in ("A", "B"):
        assert [n for n in place.broker.bodies() if (n % 3 == 2) == (key == "B")] == [
            n for n in range(wrote) if (n % 3 == 2) == (key == "B")
        ]


async def test_published_messages_without_a_note_leave_again_under_their_id(place: Place) -> None:
    class Dies(Broker):
        async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
            await super().publish(envelopes)
            raise Crash

    dying = Dies()
    place.slot.create()
    written = place.write(1)
    with pytest.raises(Crash):
        await place.relay(dying).arun_forever()
    async with place.relaying():
        await place.until_took(1)
    assert dying.took == place.broker.took == written


async def test_a_server_that_is_killed_is_read_again(server: LogicalCluster) -> None:
    with closing(connect(server.url)) as backend:
        backend.migrate()
    place = Place(server, server.url)
    async with place.relaying():
        place.write(1)
        await place.until_took(1)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        place.write(2)
        await place.until_took(2)
        await auntil(place.is_read)
    place.slot.drop()
    assert place.broker.bodies() == [1, 2]
    assert place.told("log_unavailable")


# ---------------------------------------------------------------- switching over


async def test_relays_are_switched_over_in_both_directions_under_load(place: Place) -> None:
    stop, wrote = threading.Event(), count()

    def write() -> None:
        while not stop.is_set():
            body = next(wrote)
            place.write(body, key=f"key {body % 5}")

    writer = threading.Thread(target=write)
    polling: dict[str, Any] = {"cdc": None}
    writer.start()
    try:
        async with place.relay(**polling):
            await auntil(lambda: len(place.broker.took) > 30)
            following = place.relay()
            await following.__aenter__()
            await auntil(lambda: len(place.broker.took) > 60)
        await auntil(place.is_read)
        await auntil(lambda: len(place.broker.took) > 120)
        async with place.relay(**polling):
            await following.__aexit__()
            await asyncio.to_thread(place.slot.drop)
            seen = len(place.broker.took)
            await auntil(lambda: len(place.broker.took) > seen + 30)
            stop.set()
            await asyncio.to_thread(writer.join)
            await auntil(lambda: not place.waiting())
    finally:
        stop.set()
        writer.join()
    bodies, total = place.broker.bodies(), next(wrote)
    assert sorted(bodies) == [*range(total)]
    for key in range(5):
        assert [body for body in bodies if body % 5 == key] == [*range(key, total, 5)]


async def test_another_relay_takes_over_when_the_one_that_reads_has_gone(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retrysafe.messaging.cdc.following.TURN", 0.05)
    standby = Place(place.server, place.url)
    standby.slot = place.slot
    async with place.relaying():
        following = standby.relay()
        running = asyncio.create_task(following.arun_forever())
        await auntil(lambda: standby.sql("SELECT 1 FROM retrysafe_outbox_relays OFFSET 1"))  # both say so
        with pytest.raises(SlotInUse):
            await asyncio.to_thread(place.slot.drop)
    await auntil(place.is_read)
    place.write(1)
    await auntil(lambda: standby.broker.bodies() == [1])
    following.stop()
    await running
    assert standby.told("log_unavailable") == []


async def test_a_server_that_does_not_say_how_much_of_the_log_is_kept_is_told_of_and_holds_up_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retrysafe.messaging.cdc.following.SILENT", 0.02)
    answers = threading.Event()

    def silent() -> SlotLag:
        answers.wait()
        raise LogUnavailable("it is over")

    monkeypatch.setattr(place.slot, "lag", silent)
    try:
        async with place.relaying():
            await auntil(lambda: bool(place.told("lag_uncounted")))
            place.write(1)
            await auntil(lambda: place.broker.bodies() == [1])
    finally:
        answers.set()


@each_row("asks", ["check", "create", "opened"])
async def test_a_relay_stops_while_the_server_of_the_log_is_silent(
    place: Place, monkeypatch: pytest.MonkeyPatch, asks: str
) -> None:
    asked, answers = threading.Event(), threading.Event()

    def silent(*_: object) -> Any:
        asked.set()
        answers.wait()
        raise LogUnavailable("it is over")

    if asks == "opened":
        monkeypatch.setattr("retrysafe.messaging.cdc.following.open_stream", silent)
    else:
        monkeypatch.setattr(place.slot, asks, silent)
    relay = place.relay()
    try:
        running = asyncio.create_task(relay.arun_forever())
        await auntil(asked.is_set)
        relay.stop()
        async with asyncio.timeout(DEADLINE):
            await running
    finally:
        answers.set()


async def test_a_relay_that_reads_the_log_no_more_says_so_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gauges had the last lag for ever, beside those of the relay that has the slot now."""
    for name, seconds in (("LOOK", 0.02), ("TURN", 0.02), ("AGAIN", 3.0)):
        monkeypatch.setattr(f"retrysafe.messaging.cdc.following.{name}", seconds)
    standby = Place(place.server, place.url)
    standby.slot = place.slot
    async with place.relaying():
        await auntil(lambda: bool(place.told("log_lag")))
        async with standby.relay() as second:
            await auntil(lambda: second._log._next > 0)  # it has looked, and the slot was not free
            reader = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active"
            place.sql(reader)
            await auntil(lambda: bool(standby.told("log_lag")))
            await auntil(lambda: place.told("log_lag")[-1] == {"slot": place.slot.name, "behind": 0, "kept": 0})


# ---------------------------------------------------------------- slots that are lost


async def test_a_slot_that_was_dropped_is_made_anew_and_what_its_log_had_is_in_the_table(place: Place) -> None:
    place.slot.create()
    place.write(1)
    place.slot.discard()
    place.write(2)
    async with place.relaying():
        await place.until_took(2)
        place.write(3)
        await place.until_took(3)
    assert place.broker.bodies() == [1, 2, 3]
    assert place.told("slot_created") == [{"slot": place.slot.name, "reason": "missing"}]


async def test_a_slot_whose_log_the_server_has_removed_is_made_anew(place: Place) -> None:
    place.slot.create()
    place.write(1)
    place.server.set(max_slot_wal_keep_size="1MB")
    try:
        for _ in range(3):
            place.sql("SELECT pg_switch_wal()")
            place.sql("CREATE TABLE noise AS SELECT 1")
            place.sql("DROP TABLE noise")
        place.sql("CHECKPOINT")
        found = place.slot.status()
        assert (found.state, found.limit_bytes) == ("lost", 1 << 20)
        assert any("lost" in problem for problem in found.problems)
        async with place.relaying():
            await place.until_took(1)
            place.write(2)
            await place.until_took(2)
            assert place.slot.status().problems == []
    finally:
        place.server.set(max_slot_wal_keep_size="-1")
    assert place.broker.bodies() == [1, 2]
    assert place.told("slot_created") == [{"slot": place.slot.name, "reason": "lost"}]


async def test_a_publication_that_was_dropped_is_made_anew(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrysafe.messaging.cdc.following.AGAIN", 0.05)
    async with place.relaying():
        place.sql("DROP PUBLICATION retrysafe_outbox")
        place.write(1)
        await place.until_took(1)
        publication = "SELECT 1 FROM pg_publication WHERE pubname = 'retrysafe_outbox'"
        await auntil(lambda: place.sql(publication) and place.is_read())
        place.write(2)
        await place.until_took(2)
    assert len(place.told("slot_created")) == 2, "the slot that looks for the one which is gone was not made anew"


async def test_messages_leave_while_a_slot_cannot_be_made(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL waits for the end of every transaction that writes."""
    monkeypatch.setattr("retrysafe.messaging.cdc.following.EVERY", 0.05)
    with psycopg.connect(place.url) as writing:
        writing.execute("CREATE TABLE lasting ()")
        async with place.relay():
            await auntil(lambda: place.sql("SELECT 1 FROM pg_replication_slots"))
            place.write(1)
            await place.until_took(1)
            assert not place.told("slot_created")
            assert not place.told("log_unavailable")
            writing.rollback()


async def test_messages_leave_when_the_log_has_what_is_no_message(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retrysafe.messaging.cdc.following.AGAIN", 0.05)
    place.sql("CREATE PUBLICATION retrysafe_outbox FOR TABLE retrysafe_outbox (id) WITH (publish = 'insert')")
    async with place.relaying():
        place.write(1)
        await auntil(lambda: place.told("log_unavailable"))
        place.sql("ALTER PUBLICATION retrysafe_outbox SET TABLE retrysafe_outbox")
        await place.until_took(1)
        await auntil(place.is_read)
        place.write(2)
        await place.until_took(2)
    assert not place.told("relay_failed")


async def test_messages_leave_when_the_server_has_become_one_without_a_log_of_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("retrysafe.messaging.cdc.following.AGAIN", 0.05)
    programs = postgresql_programs()
    if programs is None:
        pytest.skip("there is no PostgreSQL server to start")
    with closing(LogicalCluster(programs)) as server:
        with closing(connect(server.url)) as backend:
            backend.migrate()
        place = Place(server, server.url)
        async with place.relaying():
            await asyncio.to_thread(server.kill)
            for slot in (server.home / "data" / "pg_replslot").iterdir():
                shutil.rmtree(slot)
            server.settings = ("wal_level=replica",)
            await asyncio.to_thread(server.start)
            place.write(1)
            await place.until_took(1)
            await auntil(lambda: "wal_level" in str(place.told("log_unavailable")))


# ---------------------------------------------------------------- operators


def test_a_slot_of_another_database_is_left_alone(place: Place) -> None:
    place.slot.create()
    with own_database(place.server.url) as url:
        other = Slot(url, name=place.slot.name)
        for call in (other.create, other.drop, other.status, other.check):
            with pytest.raises(ConfigurationError, match="another name"):
                call()
        other.discard()
    assert place.slot.status().exists


def test_a_publication_of_another_table_is_refused(place: Place) -> None:
    place.sql("CREATE SCHEMA other")
    place.sql("CREATE TABLE other.retrysafe_outbox (id int)")
    place.sql("CREATE PUBLICATION retrysafe_outbox FOR TABLE other.retrysafe_outbox")
    for call in (place.slot.create, place.slot.check):
        with pytest.raises(ConfigurationError, match="does not have the new rows"):
            call()
    place.sql("DROP PUBLICATION retrysafe_outbox")
    assert place.slot.create() == "missing"


async def test_a_slot_has_any_name_that_the_server_takes(place: Place, no_rounds: None) -> None:
    place.slot = Slot(place.url, name=f"1_{unique('slot')}", publication="Über all", heartbeat="50ms")
    async with place.relaying():
        place.write(1)
        await place.until_took(1)
    place.slot.discard()


def test_a_slot_is_made_and_dropped_once(place: Place) -> None:
    assert [place.slot.create(), place.slot.create()] == ["missing", ""]
    found = place.slot.status()
    assert (found.exists, found.active, found.state, found.limit_bytes) == (True, False, "reserved", None)
    assert len(found.problems) == 2
    place.write(1)
    assert place.slot.status().lag_bytes > found.lag_bytes
    assert 0 < place.slot.status().lag_seconds < 60
    assert [place.slot.drop(), place.slot.drop()] == [True, False]
    assert not place.slot.status().exists
    assert place.slot.status().problems[0].startswith("the slot does not exist")


async def test_a_relay_that_cannot_read_the_log_says_so_before_it_begins(place: Place, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="hold="):
        place.relay(hold="lease")
    with pytest.raises(ConfigurationError, match="PostgreSQL store"):
        Relay(f"sqlite:///{tmp_path}/outbox.db", place.broker, cdc=place.slot)
    with pytest.raises(ConfigurationError, match="event loops"):
        place.relay(MemoryPublisher()).run_forever()
    for wrong in ({"name": "No"}, {"name": ""}, {"publication": 'a"b'}, {"publication": "a" * 64}):
        with pytest.raises(ConfigurationError):
            Slot(place.url, **wrong)


async def test_a_server_that_logs_no_rows_is_refused(postgresql: str) -> None:
    with psycopg.connect(postgresql) as connection:
        if connection.execute("SHOW wal_level").fetchone() == ("logical",):
            pytest.skip("this server logs rows")
    with pytest.raises(ConfigurationError, match="wal_level = logical"):
        await Relay(postgresql, Broker(), cdc=Slot(postgresql)).arun_forever()


def test_the_commands(server: LogicalCluster, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    def said(verb: str, *more: str) -> tuple[int, str]:
        code = main(["cdc", verb, "--store", place.url, "--slot", place.slot.name, *more])
        return code, capsys.readouterr().out

    name = place.slot.name
    assert said("status")[0] == 1
    assert said("create") == (0, f"the slot {name} was made\n")
    assert said("create") == (1, f"the slot {name} is there\n")
    code, status = said("status")
    assert code == 1
    assert f"{name}: reserved, read by no relay\nbehind by " in status
    assert "! max_slot_wal_keep_size is not set" in status
    assert json.loads(said("status", "--json")[1])["limit_bytes"] is None
    assert said("drop") == (0, f"the slot {name} was removed\n")
    assert said("drop", "--json") == (1, f'{{"slot": "{name}", "dropped": false}}\n')


def test_a_server_that_is_away_is_no_fault_of_the_slot() -> None:
    slot = Slot("postgresql://127.0.0.1:1/nowhere")
    slot.check()
    with pytest.raises(LogUnavailable):
        slot.create()


# ---------------------------------------------------------------- what leaves, without a server


def test_a_snapshot_tells_which_transactions_it_shows() -> None:
    wrapped = 3 << 32
    look = TableLook({}, 0, f"{wrapped + 5}:{wrapped + 9}:{wrapped + 5},{wrapped + 7}")
    assert [xid for xid in range(3, 12) if look.shows(xid)] == [3, 4, 6, 8]
    assert look.shows((1 << 32) - 1)  # before the numbers began anew


def logged(number: int, lane: int) -> LoggedMessage:
    row = {
        "id": str(number),
        "lane": str(lane),
        "created": "1",
        "message_id": f"m{number}",
        "topic": "t",
        "message_key": "k",
        "message_type": "t.v1",
        "source": "/s",
        "sequence": None,
        "headers": "{}",
        "payload": "\\x00ff",
        "media_type": "x/y",
    }
    return message_in(1, row)


def test_a_lane_stops_at_what_waits_and_what_has_left_is_passed_by() -> None:
    batch = [logged(5, 1), logged(2, 2), logged(4, 1), logged(3, 2), logged(6, 3), logged(7, 3)]
    there = {number: Waiting(f"m{number}", True, 0, 0, False) for number in (2, 3, 4, 5, 7)}
    there[2] = there[2]._replace(free=False)
    there[7] = there[7]._replace(message_id="of another table")
    assert [queued.id for queued in leaving(batch, TableLook(there, 9, "1:2:"))] == [4, 5]
    assert batch[0].queued.envelope.payload == b"\0\xff"
