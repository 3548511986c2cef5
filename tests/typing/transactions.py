"""The types of ``claim.tx`` and ``claim.result``: of every kind of store and of ``tx=``."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, assert_type

import asyncmy
import asyncmy.connection
import asyncpg
import boto3
import psycopg
import pymysql
import redis
import sqlalchemy
from django.db import connections
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from retrysafe import Boundary, Claim, current, layered
from retrysafe.protocol.records import Effects


@dataclass
class Receipt:
    number: int


Row = dict[str, object]


class ShopSession(Session):
    """A session of the user's own kind."""


# ---------------------------------------------------------------- the boundary's own transactions


def sqlalchemy_stores(engine: sqlalchemy.Engine, aengine: AsyncEngine) -> None:
    assert_type(Boundary("b", store=engine, effects="transactional"), Boundary[sqlalchemy.Connection])
    assert_type(Boundary("b", store=aengine, effects="transactional"), Boundary[AsyncConnection])
    made = create_async_engine("postgresql+psycopg://localhost/shop")
    assert_type(Boundary("b", store=made, effects="transactional", window="48h"), Boundary[AsyncConnection])
    assert_type(Boundary("b", store=sessionmaker(engine), effects="transactional"), Boundary[Session])
    ours = sessionmaker(engine, class_=ShopSession)
    assert_type(Boundary("b", store=ours, effects="transactional"), Boundary[ShopSession])
    sessions = async_sessionmaker(aengine)
    assert_type(Boundary("b", store=sessions, effects="transactional"), Boundary[AsyncSession])


def psycopg_stores(
    pool: ConnectionPool[psycopg.Connection], apool: AsyncConnectionPool[psycopg.AsyncConnection]
) -> None:
    assert_type(Boundary("b", store=pool, effects="transactional"), Boundary[psycopg.Connection])
    assert_type(Boundary("b", store=apool, effects="transactional"), Boundary[psycopg.AsyncConnection])


def asyncmy_stores(pool: asyncmy.Pool) -> None:
    assert_type(Boundary("b", store=pool, effects="transactional"), Boundary[asyncmy.connection.Connection])


def asyncpg_stores(pool: asyncpg.Pool) -> None:
    """Without asyncpg-stubs nothing is known to mypy, and pyright infers what it can: any connection will do."""
    boundary: Boundary = Boundary("b", store=pool, effects="transactional")
    connection: asyncpg.Connection = boundary.claim("k").tx
    Boundary("b", store=pool, effects="transactional").claim("k").tx.is_in_transaction()
    del connection


def stores_of_no_known_type(untyped: Any, effects: Effects) -> None:
    assert_type(Boundary("b", store="sqlite:///shop.db", effects="transactional"), Boundary[Any])
    assert_type(Boundary("b", store="default", effects="transactional"), Boundary[Any])
    Boundary("b", store=connections["default"], effects="transactional").claim("k").tx.cursor()
    Boundary("b", store=untyped, effects="transactional").claim("k").tx.execute("SELECT 1")
    assert_type(Boundary("b", store="sqlite:///shop.db", effects=effects), Boundary[Any])


def stores_without_a_transaction(engine: sqlalchemy.Engine) -> None:
    assert_type(Boundary("b", store="sqlite:///shop.db"), Boundary[None])
    assert_type(Boundary("b", store=engine, effects="keyed"), Boundary[None])
    assert_type(Boundary("b", store=engine, effects="external"), Boundary[None])
    assert_type(Boundary("b", store=redis.Redis()), Boundary[None])
    assert_type(Boundary("b", store=boto3.client("dynamodb")), Boundary[None])
    assert_type(Boundary("b", store=layered("redis://fast", engine, name="shop")), Boundary[None])
    with Boundary("b", store=engine).claim("k") as claim:
        claim.tx.execute()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


def in_the_block(sessions: sessionmaker[ShopSession]) -> None:
    boundary = Boundary("b", store=sessions, effects="transactional")
    with boundary.claim("k") as claim:
        assert_type(claim, Claim[Any, ShopSession])
        assert_type(claim.tx, ShopSession)
        claim.tx.add(Receipt(1))
        claim.tx.ad(Receipt(1))  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


async def in_the_async_block(sessions: async_sessionmaker[AsyncSession]) -> None:
    async with Boundary("b", store=sessions, effects="transactional").claim("k") as claim:
        assert_type(claim.tx, AsyncSession)
        await claim.tx.flush()


# ---------------------------------------------------------------- the caller's transactions


def joined(
    boundary: Boundary[sqlalchemy.Connection],
    session: ShopSession,
    scoped: scoped_session[ShopSession],
    ascoped: async_scoped_session[AsyncSession],
    connection: psycopg.Connection,
    aconnection: psycopg.AsyncConnection,
    mysql: pymysql.Connection,
    amysql: asyncmy.connection.Connection,
    perhaps: ShopSession | None,
) -> None:
    assert_type(boundary.claim("k", tx=sqlite3.connect("shop.db")).tx, sqlite3.Connection)
    assert_type(boundary.claim("k", tx=session).tx, ShopSession)
    assert_type(boundary.claim("k", tx=scoped).tx, ShopSession)
    assert_type(boundary.claim("k", tx=ascoped).tx, AsyncSession)
    assert_type(boundary.claim("k", tx=connection).tx, psycopg.Connection)
    assert_type(boundary.claim("k", tx=aconnection).tx, psycopg.AsyncConnection)
    assert_type(boundary.claim("k", tx=amysql).tx, asyncmy.connection.Connection)
    assert_type(boundary.claim("k", tx=None).tx, sqlalchemy.Connection)
    assert_type(boundary.claim("k", tx="default").tx, Any)
    boundary.claim("k", tx=mysql).tx.cursor()
    given: ShopSession | sqlalchemy.Connection = boundary.claim("k", tx=perhaps).tx
    given.close()


# ---------------------------------------------------------------- results


def results(boundary: Boundary[sqlalchemy.Connection], session: ShopSession, kind: Any) -> int:
    with boundary.claim("k", result_type=Receipt) as claim:
        assert_type(claim, Claim[Receipt, sqlalchemy.Connection])
        if not claim.replayed:
            claim.result = Receipt(1)
    assert_type(claim.result, Receipt)
    assert_type(boundary.claim("k", tx=session, result_type=Receipt), Claim[Receipt, ShopSession])
    assert_type(boundary.claim("k", operation="o", payload=1, result_type=list[Receipt]).result, list[Receipt])
    assert_type(boundary.claim("k", result_type=Receipt | None), Claim[Any, sqlalchemy.Connection])
    assert_type(boundary.claim("k"), Claim[Any, sqlalchemy.Connection])
    assert_type(current(), Claim[Any, Any])
    boundary.claim("k", result_type=kind).result = 1
    boundary.claim("k", result_type=str).result = 1  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]
    boundary.resolve("k", "completed", result=Receipt(1), result_type=Receipt)
    return claim.result.number


def handler(claim: Claim[Receipt], plain: Claim, boundary: Boundary) -> None:
    assert_type(claim.result, Receipt)
    assert_type(claim.tx, Any)
    assert_type(plain, Claim[Any, Any])
    assert_type(boundary, Boundary[Any])


def accepts_what_it_names(session: Boundary[Session], own: Boundary[ShopSession], plain: Boundary) -> None:
    wider: Boundary[Session] = own
    untyped: Boundary = session
    narrower: Boundary[ShopSession] = session  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    known: Boundary[Session] = plain
    in_a_call: Callable[[Claim[Receipt, Session]], None] = handler_of_any
    del wider, untyped, narrower, known, in_a_call


def handler_of_any(claim: Claim) -> None:
    assert_type(claim.operation, str)


# ---------------------------------------------------------------- guarded functions keep their types


def guarded(boundary: Boundary[ShopSession]) -> None:
    @boundary.once(key="number")
    def charge(number: int, *, cents: int = 1) -> Receipt:
        return Receipt(number)

    @boundary.once(key="number")
    async def acharge(number: int, tx: AsyncSession | None = None) -> Receipt:
        return Receipt(number)

    assert_type(charge(1, cents=2), Receipt)
    charge("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    charge(1, tx=None)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]

    async def awaited() -> None:
        assert_type(await acharge(1), Receipt)
