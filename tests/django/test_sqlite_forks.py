"""An alias on a SQLite file over a fork: what a child claims stays claimed, or it is refused the file. FAULTS 87."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Boundary
from retrysafe.backends.registry import connect
from retrysafe.backends.sql.drivers import sqlite_pool
from tests.django.aliases import add_alias, remove_alias, set_up
from tests.faults.test_sqlite_cursors import descriptors
from tests.faults.test_sqlite_forks import REFUSED, forked, refused

set_up()

from django.db import connections  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.fault(87)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of the alias's file, in WAL mode, as a URL's boundary makes it."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    return tmp_path / "shop.db"


@pytest.fixture
def alias(path: Path) -> Iterator[str]:
    """A migrated alias that keeps its connections; Django's own are closed."""
    name = add_alias("sqlite", NAME=str(path), CONN_MAX_AGE=60)
    connect(name).migrate()
    connections.close_all()
    yield name
    remove_alias(name)


@contextmanager
def boundary_on(store: str, effects: Any = "keyed") -> Iterator[Boundary[Any]]:
    """A boundary of the shop, closed in the end."""
    boundary = Boundary("shop", store=store, effects=effects, observers=(), shared=True)
    yield boundary
    boundary.close()


def claim(boundary: Boundary[Any], name: str) -> bool:
    """Claim a key; whether it was there already."""
    with boundary.claim(name) as claim:
        if not claim.replayed:
            claim.result = 1
        return claim.replayed


def test_claims_of_a_child_stay_when_its_parent_closes_the_file(alias: str, path: Path) -> None:
    (told, tell), (waits, go_on) = os.pipe(), os.pipe()

    def child() -> int:
        claim(boundary, "first")
        os.write(tell, b".")
        os.read(waits, 1)
        claim(boundary, "second")
        return 0

    def parent() -> None:
        assert os.read(told, 1)
        boundary.close()
        with closing(sqlite3.connect(path)) as other:  # the last to close the file removes its log
            other.execute("SELECT * FROM sqlite_master").fetchall()
        os.write(go_on, b".")

    with boundary_on(alias) as boundary:
        claim(boundary, "before")
        thread = threading.Thread(target=parent)
        thread.start()
        assert forked(child) == 0
        thread.join()
    with boundary_on(alias) as later:
        assert [claim(later, name) for name in ("before", "first", "second")] == [True] * 3
    for end in (told, tell, waits, go_on):
        os.close(end)


@pytest.mark.parametrize("by", ["the alias", "a URL"])
def test_a_child_is_refused_a_file_on_which_a_claim_of_the_alias_was_at_work(by: str, alias: str, path: Path) -> None:
    """Here it waits for another writer."""
    with boundary_on(alias) as boundary, boundary_on(f"sqlite:///{path}") as of_url:
        claim(boundary, "before")
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            thread = threading.Thread(target=claim, args=[boundary, "of the parent"])
            thread.start()
            while not any(connections.uses for connections in list(sqlite_pool._all)):
                time.sleep(0)
            assert forked(refused(boundary if by == "the alias" else of_url)) == REFUSED
        thread.join()
        assert claim(boundary, "of the parent")


@pytest.mark.parametrize("effects", ["keyed", "transactional"])
def test_an_alias_does_not_help_a_child_that_is_refused(effects: str, alias: str, path: Path) -> None:
    with (
        boundary_on(f"sqlite:///{path}", "transactional") as of_url,
        boundary_on(alias, effects) as boundary,
        of_url.claim("of the parent") as claimed,
    ):
        claimed.result = 1
        assert forked(refused(boundary)) == REFUSED


def test_an_alias_that_is_named_by_a_uri_is_known_by_its_file(alias: str, path: Path) -> None:
    named = add_alias("sqlite", NAME=f"{path.as_uri()}?mode=rwc", CONN_MAX_AGE=60)
    with (
        boundary_on(f"sqlite:///{path}", "transactional") as of_url,
        boundary_on(named) as boundary,
        of_url.claim("of the parent") as claimed,
    ):
        claimed.result = 1
        assert forked(refused(boundary)) == REFUSED
    remove_alias(named)


def test_our_connections_are_closed_before_a_fork_on_an_event_loop(alias: str, path: Path) -> None:
    """Django closes none there."""

    async def fork() -> int:
        return forked(lambda: len(descriptors(path)))

    with boundary_on(alias) as boundary:
        claim(boundary, "before")
        assert descriptors(path)
        assert asyncio.run(fork()) == 0
