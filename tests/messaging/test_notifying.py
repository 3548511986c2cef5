"""Relays of other processes hear of what is written: PostgreSQL's LISTEN and NOTIFY, both by choice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from retrysafe import ConfigurationError
from retrysafe.backends.registry import connect
from retrysafe.messaging import Outbox
from retrysafe.messaging.brokers.memory.publisher import AsyncMemoryPublisher, MemoryPublisher
from retrysafe.messaging.notifications import Coalesced
from retrysafe.messaging.relay import listener
from retrysafe.messaging.relay.listener import refuse_pooler
from retrysafe.messaging.relay.poll_schedule import Polls
from retrysafe.messaging.relay.relay import Relay
from tests.faults.helpers import DEADLINE, ROOT, auntil, environment, until
from tests.messaging.roads import Road
from tests.messaging.test_operating import TABLES, Place

NEVER = Polls(longest=86400.0, idle=60)
"""Of a relay that has looked in vain for so long that it would not look again today."""
WRITER = """
import sys, psycopg
from retrysafe.messaging import Outbox
outbox = Outbox(sys.argv[1], source="/elsewhere", notify=True)
with psycopg.connect(sys.argv[1]) as connection:
    print(outbox.add(connection, "orders", 1, key="A").id, flush=True)
sys.stdin.read()
"""


@pytest.fixture
async def place(postgresql: str) -> AsyncIterator[Place]:
    made = Place("postgresql", postgresql)
    for table in TABLES:
        made.sql(f"DELETE FROM retrysafe_outbox{table}")
    yield made
    for url in (postgresql, asyncpg_url(postgresql)):
        await connect(url).aclose()


def asyncpg_url(url: str) -> str:
    return url.replace("postgresql:", "postgresql+asyncpg:")


@pytest.fixture
def elsewhere(place: Place) -> Iterator[Any]:
    """A process that writes one message and commits."""
    running: list[subprocess.Popen[str]] = []

    def write() -> str:
        command = [sys.executable, "-c", WRITER, place.url]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        running.append(subprocess.Popen(command, env=environment(), **pipes))
        assert running[-1].stdout is not None
        return running[-1].stdout.readline().strip()

    yield write
    for one in running:
        one.communicate(timeout=DEADLINE)
        assert one.returncode == 0


def _rests(relay: Any) -> bool:
    """Tell whether a relay rests for good, or let it; being connected wakes it, at any time."""
    if relay._polls.idle > 60:
        return True
    relay._polls = NEVER
    return False


@pytest.mark.slow
def test_a_relay_in_a_thread_hears_of_another_process(place: Place, elsewhere: Any) -> None:
    publisher = MemoryPublisher()
    relay = place.relay(publisher, listen=place.url)
    with relay:
        until(partial(_rests, relay))
        id_ = elsewhere()
        until(lambda: [one.id for one in publisher.published] == [id_])


@pytest.mark.slow
async def test_a_relay_on_a_loop_hears_of_another_process(place: Place, elsewhere: Any) -> None:
    publisher = AsyncMemoryPublisher()
    url = asyncpg_url(place.url)
    relay = Relay(url, publisher, listen=url, observers=())
    async with relay:
        await auntil(partial(_rests, relay))
        id_ = await asyncio.to_thread(elsewhere)
        await auntil(lambda: [one.id for one in publisher.published] == [id_])


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_writers_notify_from_a_loop_too(place: Place, driver: str) -> None:
    url = asyncpg_url(place.url) if driver == "asyncpg" else place.url
    outbox = Outbox(url, source="/x", notify=True)
    async with await psycopg.AsyncConnection.connect(place.url, autocommit=True) as hearing:
        await hearing.execute("LISTEN retrysafe_outbox")
        if driver == "asyncpg":
            import asyncpg

            writing = await asyncpg.connect(place.url)
            async with writing.transaction():
                await outbox.aadd(writing, "a", 1)
            await writing.close()
        else:
            async with await psycopg.AsyncConnection.connect(place.url) as connection:
                await outbox.aadd(connection, "a", 1)
        assert [one.channel async for one in hearing.notifies(timeout=DEADLINE, stop_after=1)] == ["retrysafe_outbox"]
        await outbox.awake()
        assert [one.payload async for one in hearing.notifies(timeout=DEADLINE, stop_after=1)] == [""]


def test_writers_notify_beside_their_transaction(place: Place) -> None:
    """Their commit takes no lock of notifying ones: what is rolled back is told of all the same."""
    outbox = Outbox(place.url, source="/x", notify=True)
    with closing(psycopg.connect(place.url, autocommit=True)) as hearing:
        hearing.execute("LISTEN retrysafe_outbox")
        with closing(psycopg.connect(place.url)) as writing:
            outbox.add(writing, "a", 1)
            assert next(hearing.notifies(timeout=DEADLINE)).channel == "retrysafe_outbox"
            writing.rollback()
    assert place.sql("SELECT 1 FROM retrysafe_outbox") == []


def test_requests_made_meanwhile_are_told_together() -> None:
    telling = Coalesced()
    assert [telling.want(), telling.want()] == [True, False]
    assert telling.again()
    assert [telling.want(), telling.want()] == [False, False]
    assert [telling.again(), telling.again()] == [True, False]
    assert telling.want()


def test_a_server_that_is_asked_for_a_pooler_and_is_silent_is_waited_for_no_longer(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "ANSWER", 0.2)
    monkeypatch.setattr(listener, "pooler_query", lambda pid: b"SELECT pg_sleep(10)")
    refuse_pooler(place.url)


@pytest.mark.slow
async def test_a_relay_stops_while_the_server_that_it_would_listen_to_is_silent(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answers = threading.Event(), threading.Event()

    def silent(url: str) -> Any:
        if not asked.is_set():
            asked.set()
            answers.wait()
        raise psycopg.OperationalError("it is over")

    monkeypatch.setattr(listener, "_connect", silent)
    relay = Relay(asyncpg_url(place.url), AsyncMemoryPublisher(), listen=place.url, observers=())
    running = asyncio.create_task(relay.arun_forever())
    await auntil(asked.is_set)
    relay.stop()
    try:
        async with asyncio.timeout(20):
            await running
    finally:
        answers.set()


@pytest.mark.slow
def test_a_listener_that_is_cut_off_comes_back_and_looks(place: Place) -> None:
    """A message written meanwhile is found, although no notification told of it."""
    parts = psycopg.conninfo.conninfo_to_dict(place.url)
    road = Road(str(parts["host"]), int(parts["port"] or 5432))
    url = place.url.replace(f":{parts['port']}/", f":{road.port}/")
    publisher = MemoryPublisher()
    relay = place.relay(publisher, listen=url)
    with relay:
        until(lambda: relay._polls.idle > 2)
        road.close()
        until(partial(_rests, relay))
        (id_,) = _written_in_silence(place)
        road.open()
        until(lambda: [one.id for one in publisher.published] == [id_])
    road.close()


def _written_in_silence(place: Place) -> list[str]:
    """By a process whose outbox tells nobody, as far as this one can tell."""
    code = WRITER.replace(", notify=True", "")
    done = subprocess.run(
        [sys.executable, "-c", code, place.url],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.slow
def test_a_child_that_lives_on_does_not_keep_a_relay_that_listens(
    place: Place,
) -> None:
    """It has both ends of what wakes the listener."""
    relay = place.relay(MemoryPublisher(), listen=place.url)
    reading, writing = os.pipe()
    relay.__enter__()
    until(lambda: relay._polls.idle > 2)  # it listens
    if (lasting := os.fork()) == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    leaving = threading.Thread(target=relay.__exit__, args=(None, None, None))
    leaving.start()
    leaving.join(DEADLINE)
    was_kept = leaving.is_alive()
    os.close(writing)
    os.waitpid(lasting, 0)
    os.close(reading)
    leaving.join()
    assert not was_kept


def test_only_postgresql_notifies_and_is_listened_to(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    with pytest.raises(ConfigurationError, match="sqlite store cannot notify"):
        Outbox(url, source="/x", notify=True)
    with pytest.raises(ConfigurationError, match="listen= is the URL of a PostgreSQL server"):
        Relay(url, MemoryPublisher(), listen=url)


@pytest.mark.slow
def test_the_command_listens_to_its_store(place: Place, elsewhere: Any, tmp_path: Path) -> None:
    from tests.messaging.children import taken

    code = f"from tests.messaging.children import Ledger\nmade = Ledger({str(tmp_path / 'ledger')!r})\n"
    (tmp_path / "mine.py").write_text(code)
    command = [sys.executable, "-m", "retrysafe", "relay", "--publisher", "mine:made", "--store", place.url, "--listen"]
    env = {
        **environment(),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), environment().get("PYTHONPATH", ""), str(ROOT)]),
    }
    relay = subprocess.Popen(command, env=env)
    try:
        listens = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN retrysafe_outbox%'"
        until(lambda: place.sql(listens))
        id_ = elsewhere()
        until(lambda: [one[0] for one in taken(str(tmp_path / "ledger"))] == [id_])
    finally:
        relay.send_signal(signal.SIGTERM)
        assert relay.wait(DEADLINE) == 0
    until(lambda: not place.sql(listens))
