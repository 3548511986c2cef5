"""The schema is migrated under traffic, and two versions of retrysafe work at once. FAULTS 82, 83."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from retrysafe import InProgress, KeyReused, SchemaOutdated
from retrysafe.backends import migrations
from retrysafe.backends.registry import connect, forget
from retrysafe.messaging import Envelope, Outbox, OutboxOperator, PublishResult, PublishStatus, Relay
from retrysafe.protocol.migrating import Migration
from tests.faults.conftest import Making
from tests.faults.helpers import Child, ask_sql, own_database, run_sql, unique
from tests.stores.ageing import mysql_connection

pytestmark = [pytest.mark.slow, pytest.mark.fault(82, 83)]


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def empty(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a database of this test's own, without tables."""
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite_url")
    elif request.param == "postgresql":
        with own_database(request.getfixturevalue("postgresql"), migrated=False) as url:
            yield url
    else:
        yield from _empty_mysql(request.getfixturevalue("mysql"))


def _empty_mysql(server: str) -> Iterator[str]:
    name = unique("versions")
    url = urlsplit(server)._replace(path=f"/{name}").geturl()
    with closing(mysql_connection(server, autocommit=True)) as admin, admin.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        try:
            yield url
        finally:
            backend = connect(url)
            backend.close()
            forget(backend)
            cursor.execute(f"DROP DATABASE {name}")


class Refusing:
    """A broker that takes nothing."""

    def publish(self, envelopes: Sequence[Envelope], /) -> list[PublishResult]:
        return [PublishResult(PublishStatus.REJECTED, "no") for _ in envelopes]


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is of a version of retrysafe that has one more migration than its children, which only adds."""
    known = migrations.load

    def load(dialect: str) -> tuple[Migration, ...]:
        *_, last = known(dialect)
        added = Migration(last.version + 1, "later", ("ALTER TABLE retrysafe_records ADD COLUMN later INTEGER",))
        return (*known(dialect), added)

    monkeypatch.setattr(migrations, "load", load)


@pytest.mark.usefixtures("later")
def test_a_migration_disturbs_no_worker_of_the_version_before(empty: str, make: Making) -> None:
    """It only adds: an older worker claims, holds and completes over it, and each version knows the other's records."""
    name = unique()
    with Child("older", empty, name) as older:
        assert older.hears() == "holding"
        across = f"across {older.hears()}"
        connect(empty, migrate=False).migrate()
        newer = make(empty, name=name)
        with pytest.raises(InProgress), newer.claim(across, payload="p"):
            pytest.fail("the older one holds it")
        with newer.claim("by the newer", payload="p") as claim:
            claim.result = "the newer"
        older.go_on()
        assert older.hears() == "served all: True", "a worker of the older version failed"
        assert older.hears() == "replayed True: the newer"
        assert older.hears() == "ended"
    for key in (across, "by the older"):
        with newer.claim(key, payload="p") as claim:
            assert (claim.replayed, claim.result) == (True, "the older")
        with pytest.raises(KeyReused), newer.claim(key, payload="other"):
            pytest.fail("the versions read each other's fingerprints")


@pytest.mark.usefixtures("later")
def test_a_worker_of_the_version_before_can_be_started_after_the_migration(empty: str, make: Making) -> None:
    """As while a deployment is rolled out, or rolled back."""
    name = unique()
    connect(empty, migrate=False).migrate()
    with make(empty, name=name).claim("by the newer", payload="p") as claim:
        claim.result = "the newer"
    with Child("older", empty, name) as older:
        assert older.hears() == "holding"
        older.hears()
        older.go_on()
        assert older.hears() == "served all: True"
        assert older.hears() == "replayed True: the newer"
        assert older.hears() == "ended"


@pytest.mark.usefixtures("later")
def test_the_newer_version_waits_for_its_migration(empty: str, make: Making) -> None:
    """Deployed too early it refuses before the work, until the schema is there; a file migrates itself."""
    name = unique()
    with Child("older", empty, name) as older:
        assert older.hears() == "holding"
        newer = make(empty, name=name)
        if not empty.startswith("sqlite"):
            with (
                pytest.raises(SchemaOutdated, match=r"has schema version \d+, this .*retrysafe migrate"),
                newer.claim("key"),
            ):
                pytest.fail("the handler was run")
            connect(empty).migrate()
        with newer.claim("key") as claim:
            claim.result = "the newer"
        with newer.claim("key") as claim:
            assert claim.replayed


def test_records_of_0_1_are_there_after_its_names_have_changed(empty: str, make: Making) -> None:
    """Undone and made again, migration 6 keeps records, messages, attempts and dead letters."""
    connect(empty, migrate=False).migrate()
    boundary = make(empty, effects="transactional")
    with boundary.claim("key", payload="p") as claim:
        claim.result = "the older"
        Outbox(empty, source="/shop").add(claim.tx, "orders", {"order": 1}, key="1")
    assert Relay(empty, Refusing(), observers=()).run_once().dead == 1

    for version in range(len(migrations.load(connect(empty).kind)), 5, -1):
        for statement in migrations.backward(connect(empty).kind, version):
            run_sql(empty, statement)
    assert ask_sql(empty, "SELECT forget FROM retrysafe_records")[0]
    assert len(ask_sql(empty, "SELECT died FROM retrysafe_outbox_dead")[0]) == 1
    connect(empty).migrate()

    with boundary.claim("key", payload="p") as claim:
        assert (claim.replayed, claim.result) == (True, "the older")
    (letter,) = OutboxOperator(empty, observers=()).dead()
    assert (letter.envelope.topic, letter.error, letter.dead_at <= letter.now) == ("orders", "no", True)
