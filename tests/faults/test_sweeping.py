"""Sweeping while others claim: nothing is lost, nothing is counted twice. FAULTS 79, 80, 81."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from retrysafe import ConfigurationError, StoreUnavailable
from retrysafe.admin.archive import JsonLines, line_of
from retrysafe.admin.sweeper import Sweeper, Swept
from retrysafe.backends.driver import run
from retrysafe.backends.registry import connect
from retrysafe.protocol.procedures import forgotten, remove, sweep
from retrysafe.protocol.records import Record
from tests.conftest import require
from tests.faults.conftest import Making
from tests.faults.helpers import (
    Child,
    Told,
    age,
    auntil,
    driven,
    fill,
    own_database,
    run_sql,
    seeded,
    standing,
    until,
)
from tests.proving.effort import effort

KINDS = ("sqlite", "psycopg", "psycopg async", "asyncpg", "sqlite async")
STORES = ("sqlite", "psycopg")


@pytest.fixture
def database(migrated: str) -> Iterator[str]:
    with own_database(migrated) as url:
        yield url


def url_of(kind: str, request: pytest.FixtureRequest) -> str:
    """The URL of a migrated store of this test's own."""
    if kind.startswith("sqlite"):
        url: str = request.getfixturevalue("sqlite_url")
        connect(url)
        return url
    return driven(request.getfixturevalue("database"), kind.split()[0])


def swept(kind: str, sweeper: Sweeper, limit: int | None = None) -> Swept:
    """One run, in the colour of the kind."""
    if kind.endswith(("async", "asyncpg")):
        return asyncio.run(sweeper.arun_once(limit))
    return sweeper.run_once(limit)


@pytest.mark.fault(79, 80)
@pytest.mark.parametrize("kind", KINDS)
def test_only_forgotten_records_go_and_all_of_them(kind: str, request: pytest.FixtureRequest) -> None:
    url, told = url_of(kind, request), Told()
    for state in ("completed", "failed", "released", "running", "unknown"):
        fill(url, 25, state)
    fill(url, 25, name="remembered")
    far = 10**17
    run_sql(url, f"UPDATE retrysafe_records SET tombstone_until = {far} WHERE boundary = 'remembered'")
    sweeper = Sweeper(url, batch=10, pause="1ms", observers=[told])
    limited = swept(kind, sweeper, 15)
    assert limited.removed == 15
    assert swept(kind, sweeper).removed == 60
    assert standing(url) == {"running": 25, "unknown": 25}
    assert standing(url, "remembered") == {"completed": 25}
    assert swept(kind, sweeper).removed == 0
    assert [o.fields["removed"] for o in told.occurrences if o.name == "swept"] == [15, 60]


@pytest.mark.slow
@pytest.mark.parametrize("archived", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_sweepers_at_once_neither_block_each_other_nor_count_twice(
    kind: str, archived: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = url_of(kind, request)
    fill(url, 600)
    archive = JsonLines(tmp_path / "archive.jsonl") if archived else None
    start = threading.Barrier(4)

    def one(number: int) -> int:
        sweeper = Sweeper(url, batch=20, pause="1ms", archive=archive, observers=())
        start.wait(60)
        removed = 0
        for _ in range(600):
            try:
                removed += swept(kind, sweeper).removed
            except StoreUnavailable:  # SQLite has one writer
                continue
            if not standing(url):
                return removed
        raise AssertionError("never done")

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(one, range(4))) == 600
    if archived:
        assert len({key_and_version(text) for text in (tmp_path / "archive.jsonl").read_text().splitlines()}) == 600


def key_and_version(text: str) -> tuple[str, int]:
    plain = json.loads(text)
    return plain["key_hash"], plain["version"]


@pytest.mark.fault(80)
def test_a_locked_record_is_passed_over(database: str) -> None:
    import psycopg

    fill(database, 50)
    with psycopg.connect(database) as other:
        locked = other.execute(
            "SELECT key_hash FROM retrysafe_records ORDER BY tombstone_until LIMIT 7 FOR UPDATE"
        ).fetchall()
        assert len(locked) == 7
        impatient = f"{database}?options=-c%20lock_timeout%3D5s"  # to wait would be an error, not a test that hangs
        assert Sweeper(impatient, batch=10, pause="1ms", observers=()).run_once().removed == 43
    assert Sweeper(database, observers=()).run_once().removed == 7


@pytest.mark.fault(79)
@pytest.mark.parametrize("how", ["sweep", "remove"])
def test_a_key_that_is_claimed_while_it_is_removed_stays(how: str, database: str, make: Making) -> None:
    """The claim is not committed when the statement meets its row, and is committed then."""
    import psycopg

    boundary = make(database, effects="transactional")
    with boundary.claim("key") as claim:
        claim.result = 1
    age(database)
    backend = connect(database)
    seen: list[Record] = run(forgotten(backend.store, 10), backend.client())
    program: Any = sweep(backend.store, 10) if how == "sweep" else remove(backend.store, seen)
    ended = threading.Event()

    def removing() -> None:
        assert run(program, backend.client()) == 0
        ended.set()

    thread = threading.Thread(target=removing)
    with psycopg.connect(database) as tx, boundary.claim("key", tx=tx) as claim:
        assert not claim.replayed
        thread.start()
        until(lambda: ended.is_set() or waiting(database))
        claim.result = "again"
    thread.join(60)
    with boundary.claim("key") as claim:
        assert claim.replayed
        assert claim.result == "again"


def waiting(url: str) -> int:
    """Count the sessions of the database that wait for a lock."""
    import psycopg

    sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(sql).fetchone()
    assert found is not None
    return int(found[0])


@pytest.mark.parametrize("kind", STORES)
def test_a_key_that_is_used_again_between_archive_and_removal_stays(
    kind: str, request: pytest.FixtureRequest, make: Making
) -> None:
    url = url_of(kind, request)
    boundary = make(url)
    for key in ("gone", "again"):
        with boundary.claim(key) as claim:
            claim.result = 1
    age(url)
    kept: list[Record] = []

    def archive(records: Sequence[Record]) -> None:
        kept.extend(records)
        with boundary.claim("again") as claim:
            if not claim.replayed:
                claim.result = 2

    assert Sweeper(url, archive=archive, observers=()).run_once()[:2] == (1, 2)
    with boundary.claim("again") as claim:
        assert (claim.replayed, claim.result) == (True, 2)
    assert [record.result.body for record in kept if record.result] == [b"1", b"1"]


# ---------------------------------------------------------------- the archive


@pytest.mark.fault(81)
@pytest.mark.parametrize("kind", KINDS)
def test_records_that_cannot_be_archived_are_not_removed(kind: str, request: pytest.FixtureRequest) -> None:
    url = url_of(kind, request)
    fill(url, 30)
    calls: list[int] = []

    def archive(records: Sequence[Record]) -> None:
        calls.append(len(records))
        if len(calls) == 2:
            raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        swept(kind, Sweeper(url, batch=10, pause="1ms", archive=archive, observers=()))
    assert calls == [10, 10]
    assert standing(url) == {"completed": 20}


async def test_an_async_archive_is_awaited(sqlite_url: str) -> None:
    connect(sqlite_url)
    fill(sqlite_url, 3)
    kept: list[Record] = []

    async def archive(records: Sequence[Record]) -> None:
        await asyncio.sleep(0)
        kept.extend(records)

    assert (await Sweeper(sqlite_url, archive=archive, observers=()).arun_once())[:2] == (3, 3)
    assert len(kept) == 3


def test_a_torn_line_is_removed_before_the_next_is_written(sqlite_url: str, tmp_path: Path) -> None:
    backend = connect(sqlite_url)
    fill(sqlite_url, 3)
    records = run(forgotten(backend.store, 10), backend.client())
    path = tmp_path / "archive.jsonl"
    archive = JsonLines(path)
    archive(records[:1])
    for torn in ("{", line_of(records[1])[:-1], "x" * 200_000):
        with path.open("a") as file:
            file.write(torn)
        archive(records[1:2])
    assert path.read_text().splitlines() == [line_of(records[0]), *[line_of(records[1])] * 3]
    path.write_text('{"format":' + "x" * 200_000)
    archive(records[2:])
    assert path.read_text() == line_of(records[2]) + "\n"
    assert path.stat().st_mode & 0o777 == 0o600 or os.name == "nt"


@pytest.mark.parametrize("text", ["", '{"form', "SQLite format 3", '{"other": 1}\n{'])
def test_only_an_archive_is_written_to(sqlite_url: str, tmp_path: Path, text: str) -> None:
    """--archive shop.db must not cost the shop the end of its file."""
    backend = connect(sqlite_url)
    fill(sqlite_url, 1)
    records = run(forgotten(backend.store, 10), backend.client())
    path = tmp_path / "file"
    path.write_text(text)
    if '{"format":'.startswith(text):
        JsonLines(path)(records)
        assert path.read_text() == line_of(records[0]) + "\n"
    else:
        with pytest.raises(ConfigurationError, match="is not an archive"):
            JsonLines(path)(records)
        assert path.read_text() == text


def test_half_a_batch_is_taken_back_when_the_disk_is_full(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = connect(sqlite_url)
    fill(sqlite_url, 2)
    records = run(forgotten(backend.store, 10), backend.client())
    archive = JsonLines(tmp_path / "archive.jsonl")
    archive(records[:1])
    real = os.write

    def full(file: int, data: Any) -> int:
        if len(data) > 50:
            return real(file, bytes(data[:50]))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        archive([records[1]._replace(result=None)])
    monkeypatch.undo()
    assert archive.path.read_text() == line_of(records[0]) + "\n"


def test_a_line_says_everything(sqlite_url: str) -> None:
    backend = connect(sqlite_url)
    fill(sqlite_url, 1)
    (record,) = run(forgotten(backend.store, 10), backend.client())
    record = record._replace(key=b"\x01" * 32, fingerprint=b"\xff", created=1_700_000_000_000_001, scope="ü")
    plain = json.loads(line_of(record))
    assert plain.pop("key_hash") == "01" * 32
    assert (plain["fingerprint"], plain["created"], plain["scope"]) == ("/w==", "2023-11-14T22:13:20.000001Z", "ü")
    assert plain["result"] == {"body": "MQ==", "media_type": "application/json", "codec_version": 1}
    assert set(plain) - {"format"} == set(record._fields) - {"key", "now"}
    assert json.loads(line_of(record._replace(result=None)))["result"] is None


@pytest.mark.slow
@pytest.mark.fault(81)
@pytest.mark.parametrize("archived", [False, True])
@pytest.mark.parametrize("kind", STORES)
def test_killed_sweepers_lose_nothing_while_others_claim(
    kind: str, archived: bool, request: pytest.FixtureRequest, make: Making, tmp_path: Path
) -> None:
    """Sweepers die between archive and removal, and at any other moment; workers reclaim keys meanwhile."""
    url, chance = url_of(kind, request), seeded(f"sweepers {kind} {archived}")
    boundary = make(url, name="shop")
    keys = [f"key{number}" for number in range(60)]
    for key in keys:
        with boundary.claim(key) as claim:
            claim.result = key
    age(url)
    fill(url, 300)
    path = tmp_path / "archive.jsonl"
    before = forgotten_versions(url)
    ran: dict[str, int] = dict.fromkeys(keys, 0)

    def work(number: int) -> None:
        for key in keys[number::4]:
            for _ in range(3):
                with boundary.claim(key) as claim:
                    if not claim.replayed:
                        ran[key] += 1
                        claim.result = f"{key} again"

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    kills = 0
    while standing(url) or any(worker.is_alive() for worker in workers):
        # the first three die in any case: on a slow machine a sweep may be over before it is killed
        suicidal = chance.choice(("before", "behind", "")[: 2 if kills < 3 else 3]) if kills < effort(4, 8) else ""
        with Child("sweeping", url, str(path) if archived else "", suicidal) as child:
            target = chance.randrange(0, 60)
            left = sum(standing(url).values())
            until(lambda: child.process.poll() is not None or sum(standing(url).values()) <= left - target)  # noqa: B023
            child.process.kill()
            kills += child.process.wait(60) == -signal.SIGKILL
    for worker in workers:
        worker.join(60)
    assert kills >= 3
    assert set(ran.values()) == {1}, "a reclaimed key ran twice: its new record was swept"
    for key in keys:
        with boundary.claim(key) as claim:
            assert (claim.replayed, claim.result) == (True, f"{key} again")
    if archived:
        kept = {key_and_version(text) for text in path.read_text().splitlines()}
        assert kept <= before
        assert len({one for one in before if one[1] <= 300} - kept) == 0


def forgotten_versions(url: str) -> set[tuple[str, int]]:
    backend = connect(url)
    return {(one.key.hex(), one.version) for one in run(forgotten(backend.store, 10_000), backend.client())}


# ---------------------------------------------------------------- in the background


@pytest.mark.parametrize("kind", STORES)
def test_a_thread_sweeps_again_and_again_until_it_is_stopped(kind: str, request: pytest.FixtureRequest) -> None:
    url, told = url_of(kind, request), Told()
    with Sweeper(url, every="5ms", pause="1ms", batch=10, observers=[told]):
        for _ in range(2):
            fill(url, 25)
            until(lambda: not standing(url))
        threads = [thread for thread in threading.enumerate() if thread.name == "retrysafe-sweeper"]
        assert [thread.daemon for thread in threads] == [True]
    assert not threads[0].is_alive()
    fill(url, 1)
    assert standing(url) == {"completed": 1}
    assert sum(o.fields["removed"] for o in told.occurrences if o.name == "swept") == 50


@pytest.mark.parametrize("kind", ["sqlite async", "psycopg async", "asyncpg"])
async def test_a_task_sweeps_again_and_again_until_it_is_stopped(kind: str, request: pytest.FixtureRequest) -> None:
    url = url_of(kind, request)
    async with Sweeper(url, every="5ms", pause="1ms", batch=10, observers=()):
        for _ in range(2):
            await asyncio.to_thread(fill, url, 25)
            await auntil(lambda: not standing(url))
    assert [task.get_name() for task in asyncio.all_tasks() if "sweeper" in task.get_name()] == []
    fill(url, 1)
    assert standing(url) == {"completed": 1}


def test_stopping_does_not_wait_for_the_interval_nor_for_the_rest(sqlite_url: str) -> None:
    connect(sqlite_url)
    fill(sqlite_url, 30)
    stopping: list[Sweeper] = []

    def archive(records: Sequence[Record]) -> None:
        stopping[0].stop()

    sweeper = Sweeper(sqlite_url, batch=10, pause="1h", archive=archive, observers=())
    stopping.append(sweeper)
    assert sweeper.run_once()[:2] == (10, 10)
    with Sweeper(sqlite_url, every="100d", observers=()):
        until(lambda: not standing(sqlite_url))


@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_a_failure_is_told_and_tried_again(colour: str, sqlite_url: str) -> None:
    connect(sqlite_url)
    fill(sqlite_url, 5)
    told, failing = Told(), [True]

    def archive(records: Sequence[Record]) -> None:
        if failing.pop() if failing else False:
            raise OSError("the disk is full")

    sweeper = Sweeper(sqlite_url, archive=archive, observers=[told])
    if colour == "sync":
        with sweeper:
            await auntil(lambda: not standing(sqlite_url))
    else:
        async with sweeper:
            await auntil(lambda: not standing(sqlite_url))
    assert told.names == {"sweep_failed": 1, "swept": 1}
    assert told.occurrences[0].fields == {"error": "the disk is full"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", STORES)
def test_a_forked_child_sweeps_too_and_exits_at_once(kind: str, request: pytest.FixtureRequest) -> None:
    url = url_of(kind, request)
    connect(url)
    fill(url, 1)  # swept by the parent before it forks
    with Child("forking_sweeper", url) as child:
        assert child.hears() == "parent sweeps"
        fill(url, 10)
        assert child.hears() == "child swept"
        assert child.ends() == 0


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"batch": 0}, "batch= is a number"),
        ({"batch": 10_001}, "batch= is a number"),
        ({"pause": "soon"}, "pause='soon' is not a duration"),
        ({"every": 0}, "every=0 must be longer"),
        ({"store": "memory://"}, "belongs to one boundary and cannot be swept"),
        ({"rotate": True}, "a sqlite store has no partitions"),
    ],
)
def test_impossible_settings_are_refused(options: dict[str, Any], complaint: str, sqlite_url: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        Sweeper(options.pop("store", sqlite_url), **options)


def test_a_store_without_tables_is_named(migrated: str) -> None:
    import psycopg

    from retrysafe import SchemaOutdated

    with own_database(migrated) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DROP TABLE retrysafe_records, retrysafe_schema")
        with pytest.raises(SchemaOutdated, match="retrysafe migrate"):
            Sweeper(url, observers=()).run_once()


# ---------------------------------------------------------------- other stores


def test_records_that_expire_natively_cannot_be_archived_first() -> None:
    require("redis")
    url = os.environ["RETRYSAFE_TEST_REDIS"]
    assert Sweeper(url, observers=()).run_once().archived == 0
    with pytest.raises(ConfigurationError, match="removes expired records itself"):
        Sweeper(url, archive=lambda records: None)
