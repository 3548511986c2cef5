"""The schema is migrated under traffic, and two versions of retrysafe work at once. FAULTS 82, 83."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from retrysafe import InProgress, KeyReused, Quota, SchemaOutdated
from retrysafe.connect import connect, forget
from tests.faults.conftest import Making
from tests.faults.helpers import Child, own_database, unique
from tests.stores.ageing import mysql_connection

pytestmark = [pytest.mark.fault(82, 83), pytest.mark.prove]


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


def test_a_migration_disturbs_no_worker_of_the_version_before(empty: str, make: Making) -> None:
    """It only adds: an older worker claims, holds and completes over it, and each version knows the other's records."""
    name = unique()
    with Child("older", empty, name) as older:
        assert older.hears() == "holding"
        across = f"across {older.hears()}"
        connect(empty, migrate=False).migrate()
        newer = make(empty, name=name, quota=Quota(outstanding=1000))
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


def test_the_newer_version_waits_for_its_migration(empty: str, make: Making) -> None:
    """Deployed too early it refuses before the work, until the schema is there; a file migrates itself."""
    name = unique()
    with Child("older", empty, name) as older:
        assert older.hears() == "holding"
        newer = make(empty, name=name)
        if not empty.startswith("sqlite"):
            with pytest.raises(SchemaOutdated, match=r"has schema version 1.*retrysafe migrate"), newer.claim("key"):
                pytest.fail("the handler was run")
            connect(empty).migrate()
        with newer.claim("key") as claim:
            claim.result = "the newer"
        with newer.claim("key") as claim:
            assert claim.replayed
