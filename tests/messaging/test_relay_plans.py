"""The cost of a look at an outbox: the same for any backlog, on tables without statistics."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from retrysafe.backends.driver import run
from retrysafe.backends.registry import connect
from retrysafe.backends.sql import outbox_operating
from retrysafe.backends.sql.outbox import FOREVER
from retrysafe.backends.sql.postgresql import PostgresqlStore
from retrysafe.doctor.stores import examine
from retrysafe.errors import StoreUnavailable
from retrysafe.messaging.brokers.memory.publisher import MemoryPublisher
from retrysafe.messaging.outbox import outbox_of
from retrysafe.messaging.relay.bucket import Totals, _due
from retrysafe.messaging.relay.procedures import due
from retrysafe.messaging.relay.relay import Relay
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus
from retrysafe.protocol.ordering import bucket, lane
from retrysafe.protocol.outbox_walk import ReadSpan, most
from retrysafe.protocol.requests import Query, ask
from tests.conftest import require
from tests.faults.helpers import Told, own_database
from tests.messaging.test_operating import TABLES, Message, Place
from tests.tables import each_row


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


@each_row("waiting", [3, 40])
def test_no_more_than_so_many_messages_are_counted(waiting: int, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_operating, "MOST_COUNTED", 10)
    monkeypatch.setattr("retrysafe.messaging.relay.procedures.MOST_COUNTED", 10)
    place.write(*(Message("orders", n) for n in range(waiting)))
    with place.operator() as operator:
        found = operator.status()
    assert (found.messages, found.due, found.capped) == (min(waiting, 10), min(waiting, 10), waiting > 10)


def test_messages_leave_although_nobody_can_count_them(place: Place) -> None:
    """A backlog that cannot be counted within the store's deadline is the one that must be relayed."""
    told = Told()
    place.write(Message("orders", 1, key="A"))
    relay = place.relay(observers=[told])
    backlog = relay._presence._outbox.backlog()

    with relay._working(relay._open()) as (setting, client):

        def uncounted(query: Query) -> Any:
            if query.sql == backlog.request.sql:
                raise StoreUnavailable("no answer within 10 s")
            return client(query)

        total = Totals()
        uncounted.transaction = client.transaction  # type: ignore[attr-defined]
        relay._round(setting, uncounted, total)  # type: ignore[arg-type]
    assert (told.names["backlog_uncounted"], total.left) == (1, 1)


class Fast(MemoryPublisher):
    """Remembers topics and keys alone."""

    def __init__(self) -> None:
        super().__init__()
        self.left: list[tuple[str, str | None, int]] = []

    def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        self.left += [(one.topic, one.key, json.loads(one.payload)) for one in envelopes]
        return [PublishResult(PublishStatus.ACKED)] * len(envelopes)


def payload_of(place: Place, number: int) -> str:
    digits = str(number).encode().hex()
    return f"'\\x{digits}'" if place.kind == "postgresql" else f"X'{digits}'"


def fill(place: Place, count: int, key: Callable[[int], str | None], topic: str = "big", age: int = 3600) -> None:
    """Messages that were written long ago, so quickly that there can be many."""
    made = []
    for n in range(count):
        of = lane(topic, key(n), f"{topic}{n}")
        text = "NULL" if key(n) is None else f"'{key(n)}'"
        payload = payload_of(place, n)
        made.append(f"({bucket(of)}, {of}, '{topic}{n}', '{topic}', {text}, 'v1', '/s', {age}, '{{}}', {payload}, 't')")
    columns = (
        "bucket, lane, message_id, topic, message_key, message_type, source, created, headers, payload, media_type"
    )
    for start in range(0, count, 1000):
        place.sql(f"INSERT INTO retrysafe_outbox ({columns}) VALUES {', '.join(made[start : start + 1000])}")


class Counting:
    """Counts the rows that a client's answers have."""

    def __init__(self, client: Any) -> None:
        self.client, self.rows, self.asked = client, 0, 0

    def __call__(self, query: Query) -> Any:
        answer = self.client(query)
        self.rows += len(answer.rows)
        self.asked += 1
        return answer


def drained(relay: Relay, rounds: int = 1) -> None:
    with relay._working(relay._open()) as (setting, client):
        for _ in range(rounds):
            relay._round(setting, client, Totals())


def spelled(request: Query) -> tuple[str, dict[str, Any]]:
    return re.sub(r"(?<!:):([a-z_0-9]+)\b", r"%(\1)s", request.sql), dict(request.params)


def read_rows(plan: dict[str, Any]) -> int:
    """Count the rows that the scans of a plan have read."""
    own = 0
    if "Scan" in plan["Node Type"] and plan.get("Relation Name", "").startswith("retrysafe"):
        own = (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
    return own + sum(read_rows(below) for below in plan.get("Plans", ()))


def leave_statistics(place: Place) -> None:
    """Forbid autovacuum, which may analyse in the midst of a statement."""
    for table in ("retrysafe_outbox", "retrysafe_outbox_attempts"):
        place.sql(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")


def asks(place: Place) -> dict[str, Query]:
    """Return the queries of a relay to a bucket."""
    outbox = outbox_of(connect(place.url))[0]
    of, bounds = lane("hot", "hot", ""), most(200, 1 << 20)
    return {
        "batch": outbox.due(bucket(of), ReadSpan(0, 200), bounds).request,
        "behind": outbox.due(bucket(of), ReadSpan(100, 200, 0), bounds).request,
        "lane": outbox.lane(bucket(of), of, ReadSpan(0, 50, 0, 1 << 40), bounds).request,
        "empty": outbox.due(bucket(of) ^ 1, ReadSpan(0, 200), bounds).request,
        "waiting": outbox.waiting(0).request,
        "released": outbox.lanes_released(bucket(of), 1 << 40, 8).request,
    }


@pytest.mark.parametrize("analysed", [None, "before", "after"])
def test_the_rows_that_a_look_reads_do_not_grow_with_the_backlog(analysed: str | None, postgresql: str) -> None:
    """For any statistics: there are none, they are from before the backlog, or from after it."""
    with own_database(postgresql) as url:
        place = Place("postgresql", url)
        looks = asks(place)
        read: dict[str, list[int]] = {name: [] for name in looks}
        fill(place, 64, str)
        leave_statistics(place)
        if analysed == "before":
            place.sql("ANALYZE")
        for count in (10_000, 30_000):
            names = "bucket, lane, message_id, topic, message_type, source, created, headers, payload, media_type"
            of = lane("hot", "hot", "")
            for bucket_, lane_, share in ((str(bucket(of)), str(of), 2), ("mod(n, 64)", "n", 1)):
                place.sql(
                    f"INSERT INTO retrysafe_outbox ({names}) SELECT {bucket_}, {lane_}, 'm', 't', 'v1', '/s', 1, "
                    f"'{{}}', convert_to(repeat('x', 300), 'UTF8'), 't' FROM generate_series(1, {count * share // 2}) n"
                )
            if analysed == "after":
                place.sql("ANALYZE")
            with closing(place.open()) as connection:
                for name, request in looks.items():
                    sql, params = spelled(request)
                    plan = connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", params).fetchone()[0]
                    read[name].append(read_rows(plan[0]["Plan"]))
        for name, (few, many) in read.items():
            assert many <= max(few * 1.2, 400), f"{name}: {read}"
        assert max(read["batch"]) <= 1000
        connect(url).close()


def test_a_look_reads_along_an_index_and_sorts_no_bucket(tmp_path: Path) -> None:
    place = Place("sqlite", f"sqlite:///{tmp_path}/shop.db")
    for name, request in asks(place).items():
        sql = request.sql
        with closing(place.open()) as connection:
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", dict(request.params))]
        of_outbox = [line for line in plan if re.match(r"(SCAN|SEARCH) o\b", line)]
        assert all("SEARCH" in line for line in of_outbox), f"{name}: {plan}"
        page = plan[: next((i for i, line in enumerate(plan) if "judged" in line), len(plan))]
        assert not any("TEMP B-TREE" in line for line in page[:3]), f"{name}: {plan}"


@pytest.mark.parametrize("kind", ["paused", "parked", "delayed"])
def test_messages_that_cannot_leave_are_not_read_again_with_every_batch(kind: str, place: Place) -> None:
    """Nor does it slow what was written after it."""
    key = {"paused": lambda n: None, "parked": lambda n: "hot", "delayed": lambda n: f"k{n % 3}"}[kind]
    fill(place, 6000 if kind == "paused" else 1500, key)
    if kind == "paused":
        place.sql("INSERT INTO retrysafe_outbox_paused VALUES ('big', 1)")
    else:
        columns = "id, bucket, lane, started, finished, not_before, error"
        heads = (
            "SELECT min(id), bucket, lane, 1, 1, 4611686018427387904, 'no' FROM retrysafe_outbox GROUP BY bucket, lane"
        )
        place.sql(f"INSERT INTO retrysafe_outbox_attempts ({columns}) {heads}")
    publisher = Fast()
    relay = place.relay(publisher, batch=20)
    with relay._working(relay._open()) as (setting, client):
        number = place.sql("SELECT min(bucket) FROM retrysafe_outbox")[0][0]
        for _ in range(60):
            assert run(_due(setting, number), client) == []
        place.write(Message("ok", 1, key=next(k for k in map(str, range(9999)) if bucket(lane("ok", k, "")) == number)))
        counting = Counting(client)
        found = run(_due(setting, number), counting)
        assert [one.envelope.topic for one in found] == ["ok"]
        assert counting.rows < 100, "what was passed over is read again"
    assert publisher.left == []


def test_buckets_in_which_nothing_is_new_are_not_looked_at(place: Place) -> None:
    """64 buckets of a paused topic keep what is written then waiting for as many looks."""
    fill(place, 600, lambda n: "hot")
    number = bucket(lane("big", "hot", ""))
    place.sql("INSERT INTO retrysafe_outbox_paused VALUES ('big', 1)")
    relay = place.relay(batch=20)
    other = next(k for k in map(str, range(9999)) if bucket(lane("ok", k, "")) == number)
    with relay._working(relay._open()) as (setting, client):

        def looked() -> list[int]:
            return run(ask(setting.outbox.waiting(0, relay._walks.find_passed())), client)

        assert looked() == [number]
        while relay._round(setting, client, Totals()):
            pass
        relay._round(setting, client, Totals())
        assert looked() == []
        place.write(Message("ok", 1, key=other))
        assert looked() == [number]
        relay._round(setting, client, Totals())
        assert looked() == []
        place.sql(
            "INSERT INTO retrysafe_outbox_attempts (id, bucket, lane, started, finished, not_before, error) "
            f"SELECT min(id), {number}, 1, 1, 1, 0, '' FROM retrysafe_outbox"
        )
        assert looked() == [number]
        place.sql("DELETE FROM retrysafe_outbox_attempts")
        assert looked() == []
        place.sql("DELETE FROM retrysafe_outbox_paused")
        assert number in looked()


def test_a_bucket_that_was_passed_over_is_looked_at_as_soon_as_its_destination_is_tried_again(place: Place) -> None:
    fill(place, 600, lambda n: "hot")
    number = bucket(lane("big", "hot", ""))
    relay = place.relay(batch=20)
    with relay._working(relay._open()) as (setting, client):
        for _ in range(3):
            walk = relay._walks.of(number)
            run(due(setting.outbox, number, setting.batch, 0, walk, ("big",)), client)
        for shut, found in ((("big",), []), ((), [number])):
            assert run(ask(setting.outbox.waiting(0, relay._walks.find_passed(shut))), client) == found


def test_one_key_with_many_messages_keeps_its_neighbours_from_nothing(place: Place) -> None:
    of = bucket(lane("big", "hot", ""))
    other = next(k for k in map(str, range(9999)) if bucket(lane("ok", k, "")) == of)
    fill(place, 600, lambda n: "hot")
    place.write(*(Message("ok", n, key=other) for n in range(3)))
    publisher = Fast()
    drained(place.relay(publisher, batch=20), 8)
    before = [topic for topic, _, _ in publisher.left].index("ok")
    assert before < 150, "they waited for the whole key"
    assert [n for topic, _, n in publisher.left if topic == "ok"] == [0, 1, 2]
    hot = [n for topic, _, n in publisher.left if topic == "big"]
    assert hot == list(range(len(hot)))


def test_late_commits_are_not_overtaken_by_messages_behind_the_part_passed_over(
    place: Place,
) -> None:
    """A number that was drawn early becomes visible below where a relay reads: the next one of its key waits for it."""
    fill(place, 200, lambda n: "hot")
    number = bucket(lane("big", "hot", ""))
    (head,) = place.sql("SELECT min(id) FROM retrysafe_outbox")[0]
    place.sql(
        "INSERT INTO retrysafe_outbox_attempts (id, bucket, lane, started, finished, not_before, error) "
        f"VALUES ({head}, {number}, {lane('big', 'hot', '')}, 1, 1, 4611686018427387904, 'no')"
    )
    publisher = Fast()
    clock = [0.0]
    relay = place.relay(publisher, batch=20)
    relay._walks._clock = lambda: clock[0]
    other = next(k for k in map(str, range(9999)) if bucket(lane("ok", k, "")) == number)
    with relay._working(relay._open()) as (setting, client):
        for _ in range(30):
            relay._round(setting, client, Totals())
        assert relay._walks.of(number).after > head
        place.write(Message("ok", 2, key=other))
        late = (
            "INSERT INTO retrysafe_outbox (id, bucket, lane, message_id, topic, message_key, message_type, source, "
            f"created, headers, payload, media_type) {'OVERRIDING SYSTEM VALUE' if place.kind == 'postgresql' else ''} "
        )
        place.sql(f"DELETE FROM retrysafe_outbox WHERE id = {head + 150}")
        place.sql(
            f"{late} VALUES ({head + 150}, {number}, {lane('ok', other, '')}, 'late', 'ok', '{other}', 'v1', '/s', 1, "
            f"'{{}}', {payload_of(place, 1)}, 't')"
        )
        relay._round(setting, client, Totals())
        assert publisher.left == [], "it would overtake"
        clock[0] += 60.0
        for _ in range(30):
            relay._round(setting, client, Totals())
    assert publisher.left == [("ok", other, 1), ("ok", other, 2)]


def test_a_topic_that_is_resumed_leaves_from_its_beginning(place: Place) -> None:
    fill(place, 600, lambda n: f"k{n % 2}")
    publisher = Fast()
    with place.operator() as operator:
        operator.pause("big")
        relay = place.relay(publisher, batch=50)
        with relay._working(relay._open()) as (setting, client):
            for _ in range(20):
                relay._round(setting, client, Totals())
            operator.resume("big")
            while relay._round(setting, client, Totals()):
                pass
    assert len(publisher.left) == 600
    for parity in (0, 1):
        assert [n for _, key, n in publisher.left if key == f"k{parity}"] == list(range(parity, 600, 2))


def test_a_parked_lane_that_was_passed_over_goes_on_where_it_is(place: Place) -> None:
    fill(place, 400, lambda n: "hot")
    (head,) = place.sql("SELECT min(id) FROM retrysafe_outbox")[0]
    of = lane("big", "hot", "")
    place.sql(
        "INSERT INTO retrysafe_outbox_attempts (id, bucket, lane, started, finished, not_before, error) "
        f"VALUES ({head}, {bucket(of)}, {of}, 1, 1, {FOREVER}, 'no')"
    )
    publisher = Fast()
    relay = place.relay(publisher, batch=100)
    with relay._working(relay._open()) as (setting, client), place.operator() as operator:
        for _ in range(20):
            relay._round(setting, client, Totals())
        assert publisher.left == []
        assert operator.redrive() == 1
        while relay._round(setting, client, Totals()):
            pass
    assert [n for _, _, n in publisher.left] == list(range(400))
    assert place.sql("SELECT count(*) FROM retrysafe_outbox_attempts")[0][0] == 0


def test_a_batch_is_bounded_in_bytes(place: Place) -> None:
    """A relay holds as much of a backlog of large messages as it has room for, and at least one."""
    sizes: list[int] = []

    class Weighing(MemoryPublisher):
        def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
            sizes.append(sum(len(one.payload) for one in envelopes))
            return super().publish(envelopes)

    of = {bucket(lane("big", "0", ""))}
    keys = [k for k in map(str, range(9999)) if bucket(lane("big", k, "")) in of][:40]
    place.write(*(Message("big", b"x" * (20_000 if n == 7 else 3_000), key=key) for n, key in enumerate(keys)))
    assert place.relay(Weighing(), batch_bytes=10_000).run_once().published == 40
    assert max(sizes) == 20_000
    assert all(size <= 10_000 for size in sizes if size != 20_000)
    assert len(sizes) < 20


def test_a_look_that_takes_long_makes_the_next_one_wait(place: Place) -> None:
    told, clock = Told(), [0.0]
    relay = place.relay(observers=[told])
    relay._presence._clock = lambda: clock[0]

    with relay._working(relay._open()) as (_, client):

        def slowly(query: Query) -> Any:
            clock[0] += 3.0
            return client(query)

        run(relay._presence.steps(), slowly)
        took = told.names["backlog"], clock[0]
        clock[0] += 10.0
        run(relay._presence.steps(), client)
        assert (took[0], told.names["backlog"]) == (1, 1)
        clock[0] += took[1] * 4
        run(relay._presence.steps(), client)
        assert told.names["backlog"] == 2


@contextmanager
def held_open(place: Place, *statements: str) -> Iterator[int]:
    """A transaction of another session, which has read and done this; the number of its process."""
    with closing(place.open()) as foreign:
        foreign.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        foreign.execute("SELECT count(*) FROM retrysafe_outbox")
        for statement in statements:
            foreign.execute(statement)
        yield foreign.info.backend_pid
        foreign.rollback()


def test_a_batch_does_not_walk_through_what_is_kept_by_a_snapshot(postgresql: str) -> None:
    """Statistics from a moment at which nothing was left say that any index is as short as any other way."""
    with own_database(postgresql) as url:
        place, count = Place("postgresql", url), 20_000
        names = "bucket, lane, message_id, topic, message_type, source, created, headers, payload, media_type"
        written = f"INSERT INTO retrysafe_outbox ({names}) SELECT {{}}, 'm', 't', 'v1', '/s', 1, '{{{{}}}}', 'x', 't' "
        leave_statistics(place)
        of = lane("hot", "hot", "")
        attempts = f"INSERT INTO retrysafe_outbox_attempts SELECT n, {bucket(of) ^ 1}, n, 1, 1, 1, '' "
        with held_open(place):
            place.sql(f"{written.format('mod(n, 64), n')} FROM generate_series(1, {count}) n")
            place.sql(f"{attempts} FROM generate_series(1, {count}) n")
            for table in ("", "_attempts"):
                place.sql(f"DELETE FROM retrysafe_outbox{table}")
                place.sql(f"ANALYZE retrysafe_outbox{table}")
            place.sql(f"{written.format(f'{bucket(of)}, {of}')} FROM generate_series(1, 100)")
            outbox, looks = outbox_of(connect(url))[0], asks(place)
            stretch = run(ask(outbox.due(bucket(of), ReadSpan(0, 200), most(200, 1 << 20))), connect(url).client())
            looks = {name: looks[name] for name in ("batch", "lane")} | {
                "leave": outbox.leave(stretch.queue, keep=False)[0].request
            }
            with closing(place.open()) as connection:
                for name, request in looks.items():
                    sql, params = spelled(request)
                    plan = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", params).fetchone()[0]
                    read = plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]
                    assert read < 2000, name
                connection.rollback()
        connect(url).close()


def test_a_look_does_not_walk_through_what_other_buckets_removed_under_a_snapshot(postgresql: str) -> None:
    with own_database(postgresql) as url:
        place, count = Place("postgresql", url), 20_000
        names = "bucket, lane, message_id, topic, message_type, source, created, headers, payload, media_type"
        with held_open(place):
            place.sql(
                f"INSERT INTO retrysafe_outbox ({names}) SELECT mod(n, 64), n, 'm', 't', 'v1', '/s', 1, '{{}}', "
                f"'x', 't' FROM generate_series(1, {count}) n"
            )
            place.sql("DELETE FROM retrysafe_outbox")
            with closing(place.open()) as connection:
                looks = asks(place)
                for name in ("batch", "empty", "waiting"):
                    sql, params = spelled(looks[name])
                    plan = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", params).fetchone()[0]
                    read = plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]
                    assert read < 3 * count / (1 if name == "waiting" else 8), name
        connect(url).close()


@each_row(
    ("statement", "moves"),
    [
        ("SELECT 1", True),
        ("CREATE TEMPORARY TABLE job (n int)", True),
        ("UPDATE retrysafe_outbox SET topic = topic", False),
    ],
)
def test_the_mark_waits_for_those_alone_that_have_written_messages(
    statement: str, moves: bool, postgresql: str
) -> None:
    with own_database(postgresql) as url:
        place = Place("postgresql", url)
        place.write(Message("orders", 1))
        relay = place.relay()
        with held_open(place, statement), relay._working(relay._open()) as (_, client):
            for _ in range(4):
                run(relay._low.steps(), client)
            assert (relay._low.mark > 0) == moves
        connect(url).close()


def test_a_session_that_holds_back_the_cleanup_is_told_by_name(
    postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "WHERE s.datname = current_database() AND "  # other tests have sessions too
    holders = PostgresqlStore.HOLDERS.replace("> 60", "> 0").replace("WHERE s.", f"{own}s.", 1)
    monkeypatch.setattr(PostgresqlStore, "HOLDERS", holders)
    with own_database(postgresql) as url:
        place, told = Place("postgresql", url), Told()
        with held_open(place) as pid:
            place.write(Message("orders", 1))
            drained(place.relay(observers=[told]))
            with place.operator() as operator:
                name = operator.status().holders[0].name
            found = {one.id: one.evidence for one in examine(url, 20.0, [])}
            with psycopg.connect(url, autocommit=True) as other:
                other.execute("SET ROLE pg_signal_backend")  # may not see when transactions of others began
                seen = other.execute(holders.replace("> 100000", "> 0")).fetchall()
        assert f"session {pid} of " in name
        assert f"session {pid} of " in seen[0][0]
        assert told.names["cleanup_held"] == 1
        assert str(pid) in found["postgresql-held-cleanup"]
        connect(url).close()
