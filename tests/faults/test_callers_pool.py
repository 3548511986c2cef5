"""The caller's pool: requests that hold all of it claim all the same, and a failover that cuts it costs no claim."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, closing, contextmanager
from typing import Any

import asyncmy
import asyncpg
import psycopg
import psycopg_pool
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from retrysafe import StoreUnavailable
from retrysafe.backends.registry import connect
from retrysafe.backends.sql.urls import _mysql_options
from tests.faults.conftest import Making, server_of
from tests.faults.helpers import DEADLINE, driven, plain, until
from tests.stores.ageing import mysql_connection
from tests.tables import each_row

POOL = 3
REQUESTS = 3 * POOL
SOON = 9.0
"""Seconds: what waited for a connection that its own request holds would take the pool's 10 or 30."""
MODES = ("keyed", "transactional")


def _engine(url: str, driver: str, stack: ExitStack) -> Any:
    engine = sqlalchemy.create_engine(driven(url, driver), pool_size=POOL, max_overflow=0)
    stack.callback(engine.dispose)
    return engine


def _psycopg(url: str, stack: ExitStack) -> tuple[Any, Callable[[], Any]]:
    pool = stack.enter_context(psycopg_pool.ConnectionPool(url, min_size=0, max_size=POOL, open=True))
    return pool, pool.connection


def _of_engine(driver: str, *, sessions: bool = False) -> Callable[[str, ExitStack], tuple[Any, Callable[[], Any]]]:
    def made(url: str, stack: ExitStack) -> tuple[Any, Callable[[], Any]]:
        engine = _engine(url, driver, stack)
        return (sessionmaker(engine), engine.connect) if sessions else (engine, engine.connect)

    return made


SYNC = {
    "psycopg": ("psycopg", _psycopg),
    "engine, psycopg": ("psycopg", _of_engine("psycopg")),
    "sessionmaker, psycopg": ("psycopg", _of_engine("psycopg", sessions=True)),
    "engine, PyMySQL": ("pymysql", _of_engine("pymysql")),
}


@pytest.mark.slow
@pytest.mark.fault(34)
@each_row("way, effects", [(way, effects) for way in SYNC for effects in MODES])
def test_threads_that_hold_all_of_the_callers_pool(
    way: str, effects: str, make: Making, request: pytest.FixtureRequest
) -> None:
    """34: three times as many requests as the pool has connections, each with one of them in its hand."""
    library, made = SYNC[way]
    with ExitStack() as stack:
        store, holding = made(plain(server_of(library, request)), stack)
        boundary = make(store, effects=effects)
        stack.callback(boundary.close)
        all_held = threading.Barrier(POOL, timeout=DEADLINE)

        def one(number: int) -> bool:
            with holding():
                all_held.wait()
                with boundary.claim(f"key-{number}") as claim:
                    return not claim.replayed

        began = time.monotonic()
        with ThreadPoolExecutor(REQUESTS) as threads:
            assert list(threads.map(one, range(REQUESTS))) == [True] * REQUESTS
        assert time.monotonic() - began < SOON


async def _async_psycopg(url: str, stack: AsyncExitStack) -> tuple[Any, Callable[[], Any]]:
    pool = psycopg_pool.AsyncConnectionPool(url, min_size=0, max_size=POOL, open=False)
    await stack.enter_async_context(pool)
    return pool, pool.connection


async def _asyncpg(url: str, stack: AsyncExitStack) -> tuple[Any, Callable[[], Any]]:
    pool = await stack.enter_async_context(asyncpg.create_pool(url, min_size=0, max_size=POOL))
    return pool, pool.acquire


async def _asyncmy(url: str, stack: AsyncExitStack) -> tuple[Any, Callable[[], Any]]:
    pool = await asyncmy.create_pool(minsize=0, maxsize=POOL, **_mysql_options(url))
    stack.push_async_callback(pool.wait_closed)
    stack.callback(pool.close)
    return pool, pool.acquire


def _of_async_engine(driver: str, *, sessions: bool = False) -> Callable[[str, AsyncExitStack], Any]:
    async def made(url: str, stack: AsyncExitStack) -> tuple[Any, Callable[[], Any]]:
        engine = create_async_engine(driven(url, driver), pool_size=POOL, max_overflow=0)
        stack.push_async_callback(engine.dispose)
        return (async_sessionmaker(engine), engine.connect) if sessions else (engine, engine.connect)

    return made


ASYNC = {
    "psycopg": ("psycopg", _async_psycopg),
    "asyncpg": ("asyncpg", _asyncpg),
    "asyncmy": ("asyncmy", _asyncmy),
    "engine, psycopg": ("psycopg", _of_async_engine("psycopg")),
    "engine, asyncpg": ("asyncpg", _of_async_engine("asyncpg")),
    "sessionmaker, asyncpg": ("asyncpg", _of_async_engine("asyncpg", sessions=True)),
    "engine, asyncmy": ("asyncmy", _of_async_engine("asyncmy")),
}


@pytest.mark.slow
@pytest.mark.fault(34)
@each_row("way, effects", [(way, effects) for way in ASYNC for effects in MODES])
async def test_tasks_that_hold_all_of_the_callers_pool(
    way: str, effects: str, make: Making, request: pytest.FixtureRequest
) -> None:
    """34: of tasks."""
    library, made = ASYNC[way]
    async with AsyncExitStack() as stack:
        store, holding = await made(plain(server_of(library, request)), stack)
        boundary = make(store, effects=effects)
        stack.push_async_callback(boundary.aclose)
        held = 0
        all_held = asyncio.Condition()

        async def one(number: int) -> bool:
            nonlocal held
            async with holding():
                held += 1
                round_ = -(-held // POOL) * POOL
                async with all_held:
                    all_held.notify_all()
                    await all_held.wait_for(lambda: held >= round_)
                async with boundary.claim(f"key-{number}") as claim:
                    return not claim.replayed

        began = time.monotonic()
        async with asyncio.timeout(SOON):
            assert await asyncio.gather(*map(one, range(REQUESTS))) == [True] * REQUESTS
        assert time.monotonic() - began < SOON


_SESSIONS = {
    "postgresql": (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
        "SELECT pg_terminate_backend({})",
    ),
    "mysql": (
        "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()",
        "KILL {}",
    ),
}


@contextmanager
def _failovers(url: str) -> Iterator[Callable[[], None]]:
    """A function that cuts, as a failover does, every connection which was opened in this block."""
    kind = url.partition(":")[0]
    of_sessions, kill = _SESSIONS[kind]
    admin = mysql_connection(url, autocommit=True) if kind == "mysql" else psycopg.connect(url, autocommit=True)
    with closing(admin):

        def sessions() -> set[int]:
            cursor = admin.cursor()
            cursor.execute(of_sessions)
            return {number for (number,) in cursor.fetchall()}

        before = sessions()

        def cut() -> None:
            opened = sessions() - before
            assert opened
            for session in opened:
                admin.cursor().execute(kill.format(session))
            until(lambda: not sessions() & opened)

        yield cut


@pytest.mark.slow
@pytest.mark.fault(13)
@each_row("way", SYNC)
def test_threads_claim_on_new_connections_after_a_failover(
    way: str, make: Making, request: pytest.FixtureRequest
) -> None:
    library, made = SYNC[way]
    url = plain(server_of(library, request))
    with _failovers(url) as cut, ExitStack() as stack:
        boundary = make(made(url, stack)[0], effects="transactional")
        stack.callback(boundary.close)
        everyone_is_in = threading.Barrier(POOL, timeout=DEADLINE)

        def one(key: str) -> bool:
            with boundary.claim(key) as claim:
                everyone_is_in.wait()
                return not claim.replayed

        with ThreadPoolExecutor(POOL) as threads:
            for failover in ("none yet", "first", "second"):
                assert all(threads.map(one, [f"{failover}-{number}" for number in range(POOL)]))
                cut()


@pytest.mark.slow
@pytest.mark.fault(13)
@each_row("way", ASYNC)
async def test_tasks_claim_on_new_connections_after_a_failover(
    way: str, make: Making, request: pytest.FixtureRequest
) -> None:
    library, made = ASYNC[way]
    url = plain(server_of(library, request))
    async with AsyncExitStack() as stack:
        cut = stack.enter_context(_failovers(url))
        boundary = make((await made(url, stack))[0], effects="transactional")
        stack.push_async_callback(boundary.aclose)

        async def one(key: str, everyone_is_in: asyncio.Barrier) -> bool:
            async with boundary.claim(key) as claim:
                await everyone_is_in.wait()
                return not claim.replayed

        for failover in ("none yet", "first", "second"):
            barrier = asyncio.Barrier(POOL)
            assert all(await asyncio.gather(*(one(f"{failover}-{number}", barrier) for number in range(POOL))))
            cut()


@pytest.mark.slow
def test_more_transactions_than_connections_of_our_own(
    migrated: str, make: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    """34: the error says how many there are, and how to have more."""
    from retrysafe.backends.sql.drivers import pool as pools
    from retrysafe.backends.sql.drivers import sqlalchemy_engines as driver

    monkeypatch.setattr(pools, "CHECKOUT", 0.1)
    monkeypatch.setattr(driver, "CHECKOUT", 0.1)
    with ExitStack() as stack:
        pool, _ = _psycopg(migrated, stack)
        engine = _engine(migrated, "psycopg", stack)
        unbounded = stack.enter_context(psycopg_pool.NullConnectionPool(migrated))
        for store, most, named in (
            (unbounded, 10, "max_size="),
            (f"{migrated}?pool=2", 2, r"\?pool=20"),
            (pool, POOL, "max_size="),
            (engine, POOL, "pool_size="),
        ):
            boundary = make(store, effects="transactional")
            with ExitStack() as held:
                for _ in range(most):
                    held.enter_context(connect(store).client().transaction())
                with pytest.raises(StoreUnavailable, match=f"All {most} connections.*{named}"):
                    held.enter_context(boundary.claim("one more"))
            with boundary.claim("afterwards") as claim:
                assert not claim.replayed
            boundary.close()


@pytest.mark.slow
@each_row("library", ["psycopg", "asyncpg"])
async def test_more_transactions_than_connections_of_a_sessionmaker(
    library: str, migrated: str, make: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    """34: a session connects only when it is used; the error names the pool all the same."""
    from retrysafe.backends.sql.drivers import sqlalchemy_engines as driver

    monkeypatch.setattr(driver, "CHECKOUT", 0.1)
    async with AsyncExitStack() as stack:
        sessions, _ = await _of_async_engine(library, sessions=True)(migrated, stack)
        boundary = make(sessions, effects="transactional")
        stack.push_async_callback(boundary.aclose)
        all_held = asyncio.Barrier(POOL + 1)

        async def hold(number: int) -> None:
            async with boundary.claim(f"held {number}"):
                await all_held.wait()
                await all_held.wait()

        holding = [asyncio.ensure_future(hold(number)) for number in range(POOL)]
        await all_held.wait()
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="pool_size=") as caught:
                async with boundary.claim("one more"):
                    pass
            assert "pool_size=" in caught.value.more_connections
        await all_held.wait()
        await asyncio.gather(*holding)
