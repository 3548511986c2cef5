"""Alerts straight from PostgreSQL: each query has rows when its fault is there, and none of them in a quiet system."""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn
from urllib.parse import quote

import psycopg
import pytest

from retrysafe import Boundary
from retrysafe.backends import registry
from retrysafe.cli import main
from retrysafe.messaging import Inbox, InboxMessage, Message, Outbox, Relay
from retrysafe.messaging.brokers.memory.publisher import MemoryPublisher
from retrysafe.messaging.inbox.operator import InboxOperator
from retrysafe.messaging.relay.operator import OutboxOperator
from retrysafe.observability.alerts import ALERTS
from retrysafe.observability.postgresql_alerts import QUERIES, WITHOUT_ROWS
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus

LATE = "UPDATE retrysafe_outbox SET created = created - 61000000"
DIES = """
import os, sys
from retrysafe import Boundary

with Boundary("b", store=sys.argv[1], effects="keyed", observers=()).claim("k", operation="pay"):
    os._exit(0)
"""
MANY = 200_000


class World:
    """A schema of its own with all tables."""

    def __init__(self, server: str, partitions: int | None = None) -> None:
        self.schema = f"alerts_{secrets.token_hex(6)}"
        self.db = psycopg.connect(server, autocommit=True)
        self.db.execute(f"CREATE SCHEMA {self.schema}".encode())
        self.db.execute(f"SET search_path = {self.schema}".encode())
        self.url = f"{server}?options={quote(f'-csearch_path={self.schema}')}"
        self.backend = registry.connect(self.url)
        self.backend.migrate(partitions)
        self.outbox = Outbox(self.url, source="/shop", observers=())

    def boundary(self, **settings: Any) -> Boundary:
        return Boundary(f"b-{secrets.token_hex(4)}", store=self.url, observers=(), **settings)

    def write(self, *topics: str) -> None:
        with psycopg.connect(self.url) as tx:
            self.outbox.add_many(tx, [Message(topic, 1, "key") for topic in topics])

    def relay(self, publisher: Any, **settings: Any) -> None:
        Relay(self.url, publisher, observers=(), **settings).run_once()

    def alerts(self) -> set[str]:
        """The names of the alerts whose query has rows."""
        return {name for name, query in QUERIES.items() if self.db.execute(query.sql.encode()).fetchall()}

    def set_database(self, setting: str) -> None:
        """Set something for the sessions to come of the database, which the tests of this process share."""
        self.db.execute(f"ALTER DATABASE {self.db.info.dbname} {setting}".encode())

    def close(self) -> None:
        self.backend.close()
        self.set_database("RESET ALL")
        self.db.execute(f"DROP SCHEMA {self.schema} CASCADE".encode())
        self.db.close()


@pytest.fixture
def world(postgresql: str) -> Iterator[World]:
    made = World(postgresql)
    yield made
    made.close()


class Says:
    """A publisher that says the same of each message."""

    by_topic = False

    def __init__(self, status: PublishStatus) -> None:
        self._status = status

    def destination(self, envelope: Envelope, /) -> str:
        return envelope.topic

    def publish(self, envelopes: Sequence[Envelope], /) -> list[PublishResult]:
        return [PublishResult(self._status, "no")] * len(envelopes)

    def close(self) -> None:
        pass


def unknown(world: World) -> None:
    with pytest.raises(ConnectionError), world.boundary(effects="external").claim("k", operation="pay"):
        raise ConnectionError


def attempt_died(world: World) -> None:
    subprocess.run([sys.executable, "-c", DIES, world.url], check=True, timeout=60)
    world.db.execute("UPDATE retrysafe_records SET lease_until = lease_until - 600000000")


def run_stranded(world: World) -> None:
    with pytest.raises(TimeoutError), world.boundary(effects="keyed").claim("k", operation="pay") as claim:
        claim.step("charge", str)
        raise TimeoutError
    world.db.execute("UPDATE retrysafe_records SET updated = updated - 3601000000")


def outdated(world: World) -> None:
    world.db.execute("DELETE FROM retrysafe_schema WHERE version = (SELECT max(version) FROM retrysafe_schema)")


def read_only(world: World) -> None:
    world.set_database("SET default_transaction_read_only = on")


def weak_for_all(world: World) -> None:
    world.set_database("SET synchronous_commit = off")


def weak_server(world: World) -> None:
    world.db.execute("SET synchronous_commit = off")


def jump(world: World) -> None:
    claim_many(world, 402)
    age_keys(world, 100, by=1_900_000_000)


def claim_many(world: World, number: int) -> None:
    """Keys of one boundary."""
    boundary = world.boundary()
    for one in range(number):
        with boundary.claim(f"k{one}", operation="pay") as claim:
            claim.result = 1


def age_keys(world: World, number: int, *, by: int) -> None:
    """Let time pass for some of them, and more of it for one."""
    for of, order in ((by, f"key_hash LIMIT {number}"), (3_600_000_000, "key_hash DESC LIMIT 1")):
        chosen = f"SELECT key_hash FROM retrysafe_records ORDER BY {order}"
        world.db.execute(f"UPDATE retrysafe_records SET created = created - {of} WHERE key_hash IN ({chosen})".encode())


def copy_keys(world: World, number: int) -> None:
    """So many more records of a key that is the only one, under other hashes."""
    names = "boundary, scope, operation, fingerprint, state, attempt, token, attempts, effects, lease_until, created, "
    names += "updated, expires, tombstone_until, version, result, media_type, codec_version"
    copied = f"SELECT sha256(CAST(CAST(n AS text) AS bytea)), {names} FROM retrysafe_records"
    world.db.execute(
        f"INSERT INTO retrysafe_records (key_hash, {names}) {copied}, generate_series(1, {number}) AS n".encode()
    )


def late(world: World) -> None:
    world.write("orders")
    world.db.execute(LATE)


def deep(world: World) -> None:
    world.write("orders")
    columns = "bucket, lane, message_id, topic, message_type, source, created, headers, payload, media_type"
    sql = f"INSERT INTO retrysafe_outbox ({columns}) SELECT {columns} FROM retrysafe_outbox, generate_series(1, 10000)"
    world.db.execute(sql.encode())


def relay_gone(world: World) -> None:
    sql = "INSERT INTO retrysafe_outbox_relays SELECT 'gone', 'lease', n, n FROM "
    world.db.execute(sql + "(SELECT CAST(extract(epoch FROM now() - interval '61 s') * 1000000 AS bigint) AS n) AS t")


def given_up(world: World) -> None:
    world.write("orders")
    world.relay(Says(PublishStatus.REJECTED))


def parked(world: World) -> None:
    world.write("orders")
    world.relay(Says(PublishStatus.REJECTED), on_dead="park")


def stalled(world: World) -> None:
    world.write("orders")
    world.relay(Says(PublishStatus.STALLED))
    pass_minutes(world)


def refused(world: World) -> None:
    world.write("orders")
    world.relay(Says(PublishStatus.RETRYABLE), backoff_base="1h", backoff_max="1h")
    pass_minutes(world)


def pass_minutes(world: World) -> None:
    """Ten of them, and a second; the next attempt is an hour away still."""
    world.db.execute("UPDATE retrysafe_outbox SET created = created - 601000000")
    world.db.execute("UPDATE retrysafe_outbox_attempts SET not_before = not_before + 3600000000")


def handle(world: World, max_attempts: int) -> None:
    """One message, by a consumer that fails."""

    @Inbox(world.boundary(effects="transactional", window="7d")).handler("stock", max_attempts=max_attempts)
    def failing(message: InboxMessage[Any]) -> NoReturn:
        raise ValueError

    failing.handle(Envelope("1", "orders", "o-1", "placed.v1", "/shop", None, {}, b"1", "application/json"))


def dead_letter(world: World) -> None:
    handle(world, 1)


def left_alone(world: World) -> None:
    handle(world, 5)
    world.db.execute("UPDATE retrysafe_inbox_attempts SET updated = updated - 901000000")


def redriven_in_vain(world: World) -> None:
    handle(world, 1)
    with InboxOperator(world.url, observers=()) as operator:
        assert operator.redrive() == 1
    world.db.execute("UPDATE retrysafe_inbox_dead SET redrive = redrive - 901000000")


FAULTS: dict[Callable[[World], None], str] = {
    unknown: "RetrysafeOutcomesUnknown",
    attempt_died: "RetrysafeLeasesLost",
    run_stranded: "RetrysafeRunsStranded",
    outdated: "RetrysafeStoreFailing",
    read_only: "RetrysafeStoreFailing",
    weak_for_all: "RetrysafeSettingsWeak",
    weak_server: "RetrysafeSettingsWeak",
    jump: "RetrysafeNewKeysJump",
    stalled: "RetrysafeDestinationStalled",
    refused: "RetrysafeDestinationStalled",
    left_alone: "RetrysafeConsumerBehind",
    redriven_in_vain: "RetrysafeConsumerBehind",
    late: "RetrysafeOutboxLate",
    deep: "RetrysafeOutboxDeep",
    relay_gone: "RetrysafeRelayFailing",
    given_up: "RetrysafeMessagesGivenUp",
    parked: "RetrysafeMessagesGivenUp",
    dead_letter: "RetrysafeDeadLetters",
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_its_fault_fires_an_alert_and_no_other_does(world: World, fault: Callable[[World], None]) -> None:
    assert world.alerts() == set()
    fault(world)
    assert world.alerts() == {FAULTS[fault]}


def test_a_claim_that_waits_for_a_lock_fires(world: World) -> None:
    boundary = world.boundary()
    waiting = threading.Thread(target=lambda: boundary.once(key="of", operation="pay")(lambda of: None)("k"))
    with psycopg.connect(world.url) as locking:
        locking.execute("LOCK TABLE retrysafe_records")
        waiting.start()
        sql = QUERIES["RetrysafeStoreSlow"].sql.encode()
        tries = (world.db.execute(b"SELECT pg_sleep(0.1)") and world.db.execute(sql).fetchall() for _ in range(300))
        assert next(filter(None, tries), None)
    waiting.join()
    assert world.alerts() == set()


def test_every_query_has_its_fault() -> None:
    assert {*FAULTS.values(), "RetrysafeStoreSlow"} == QUERIES.keys()


def test_every_alert_has_a_query_or_a_reason() -> None:
    assert sorted([*QUERIES, *WITHOUT_ROWS]) == sorted(alert.name for alert in ALERTS)


def test_a_quiet_system_fires_nothing(world: World) -> None:
    claim_many(world, 405)
    age_keys(world, 101, by=1_900_000_000)
    handle(world, 5)
    world.write("orders", "paused", "delayed")
    with OutboxOperator(world.url, observers=()) as operator:
        operator.pause("paused")
    world.relay(MemoryPublisher())
    world.write("delayed")
    world.relay(Says(PublishStatus.RETRYABLE), backoff_base="1h", backoff_max="1h")
    world.db.execute(LATE)
    world.write("orders")
    with world.boundary(effects="keyed").claim("k", operation="pay"):
        assert world.alerts() == set()


def test_they_read_as_much_of_a_large_table_as_of_a_small_one(world: World) -> None:
    claim_many(world, 1)
    copy_keys(world, MANY)
    world.db.execute("ANALYZE retrysafe_records")
    world.db.execute("SET random_page_cost = 1.1")  # of a disk without a head
    whole = {name for name, query in QUERIES.items() if reads_all_records(world, query.sql)}
    assert whole == {name for name, query in QUERIES.items() if query.needs} == {"RetrysafeLeasesLost"}
    for query in QUERIES.values():
        if query.needs:
            world.db.execute(query.needs.encode())
            assert not reads_all_records(world, query.sql)


def reads_all_records(world: World, sql: str) -> bool:
    """Tell whether the plan of a query has a sequential scan of the table of records."""
    row = world.db.execute(f"EXPLAIN (FORMAT JSON) {sql}".encode()).fetchone()
    assert row is not None
    plans, (top,) = [], row[0]
    waiting = [top["Plan"]]
    while waiting:
        plans.append(plan := waiting.pop())
        waiting += plan.get("Plans", [])
    return any(plan["Node Type"] == "Seq Scan" and plan["Relation Name"] == "retrysafe_records" for plan in plans)


def test_a_jump_among_the_keys_of_a_table_in_partitions_is_told(postgresql: str) -> None:
    """Only its partitions know how many keys it has: nothing but an ANALYZE by hand counts them for the whole."""
    world = World(postgresql, partitions=4)
    try:
        claim_many(world, 1)
        copy_keys(world, 40_000)
        sql = "UPDATE retrysafe_records SET created = created - 3600000000 WHERE get_byte(key_hash, 31) > 2"
        world.db.execute(sql)  # all but one in 85, whatever their order
        for (partition,) in world.db.execute("SELECT relid FROM pg_partition_tree('retrysafe_records') WHERE isleaf"):
            world.db.execute(f"ANALYZE {partition}".encode())
        assert world.alerts() == {"RetrysafeNewKeysJump"}
    finally:
        world.close()


def test_counts_end_where_they_tell_nothing_more(world: World) -> None:
    """A table of dead letters, or of unknown keys, may be as long as an outage was."""
    for name in ("RetrysafeOutcomesUnknown", "RetrysafeMessagesGivenUp", "RetrysafeDeadLetters"):
        row = world.db.execute(f"EXPLAIN (FORMAT JSON) {QUERIES[name].sql}".encode()).fetchone()
        assert row is not None
        assert all("Limit" in path for path in paths_to_scans(row[0][0]["Plan"])), name


def paths_to_scans(plan: dict[str, Any]) -> Iterator[list[str]]:
    """The kinds of nodes from the top of a plan to each scan of a table."""
    below = plan.get("Plans", [])
    for path in [one for inner in below for one in paths_to_scans(inner)] if below else [[]]:
        yield [plan["Node Type"], *path]


def test_the_index_that_is_recommended_lets_claims_go_on_while_it_is_made() -> None:
    for query in QUERIES.values():
        assert query.needs == "" or query.needs.startswith("CREATE INDEX CONCURRENTLY ")


def test_the_command_prints_them_as_one_file(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alerts", "--sql"]) == 0
    printed = capsys.readouterr().out
    assert re.findall(r"^-- (Retrysafe\w+) \(", printed, re.MULTILINE) == [
        alert.name for alert in ALERTS if alert.name in QUERIES
    ]
    world.db.execute(printed.encode())
    for name, reason in WITHOUT_ROWS.items():
        assert f"-- {name}: {reason}" in printed
