"""Schema per tenant: a claim that names no tenant is refused under the schema of one, in every mode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from uuid import uuid4

import asyncpg
import psycopg
import pytest
import sqlalchemy
import sqlalchemy.orm
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import sessionmaker

from retrysafe import Boundary, ConfigurationError
from tests.django.aliases import add_alias, remove_alias
from tests.tables import each_row

Claimed = Callable[[str], bool]


def claimed_in(boundary: Boundary, tx: Any = None) -> bool:
    """Claim the order that every tenant has; whether that was a replay."""
    with boundary.claim("order-1", tx=tx) as claim:
        if not claim.replayed:
            claim.result = "placed"
        return claim.replayed


async def aclaimed_in(boundary: Boundary[Any], tx: Any = None) -> bool:
    """`claimed_in` for async code."""
    async with boundary.claim("order-1", tx=tx) as claim:
        if not claim.replayed:
            claim.result = "placed"
        return claim.replayed


@contextmanager
def by_search_path(url: str, scope: Any) -> Iterator[Claimed]:
    boundary = Boundary(f"t{uuid4().hex}", store=url, effects="transactional", scope=scope)

    def claimed(tenant: str) -> bool:
        with psycopg.connect(url) as tx:
            tx.execute(f"SET search_path TO {tenant}, public".encode())
            return claimed_in(boundary, tx)

    yield claimed
    boundary.close()


@contextmanager
def by_search_path_async(url: str, scope: Any) -> Iterator[Claimed]:
    name = f"t{uuid4().hex}"

    async def claimed(tenant: str) -> bool:
        boundary = Boundary(name, store=url.replace(":", "+asyncpg:", 1), effects="transactional", scope=scope)
        connection = await asyncpg.connect(url)
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL search_path TO {tenant}, public")
                return await aclaimed_in(boundary, connection)
        finally:
            await connection.close()
            await boundary.aclose()

    yield lambda tenant: asyncio.run(claimed(tenant))


@contextmanager
def by_setup(url: str, scope: Any, effects: Any) -> Iterator[Claimed]:
    name = f"t{uuid4().hex}"

    async def claimed(tenant: str) -> bool:
        async def set_schema(connection: Any) -> None:
            await connection.execute(f"SET search_path TO {tenant}, public")

        async with asyncpg.create_pool(url, min_size=0, max_size=2, setup=set_schema) as pool:
            boundary: Boundary[Any] = Boundary(name, store=pool, effects=effects, scope=scope)
            try:
                return await aclaimed_in(boundary)
            finally:
                await boundary.aclose()

    yield lambda tenant: asyncio.run(claimed(tenant))


@contextmanager
def by_async_engine(url: str, scope: Any, effects: Any) -> Iterator[Claimed]:
    name = f"t{uuid4().hex}"

    async def claimed(tenant: str) -> bool:
        engine = create_async_engine(url.replace(":", "+asyncpg:", 1))
        chosen_by_a_listener("checkout")(engine.sync_engine, lambda: tenant)
        boundary: Boundary[Any] = Boundary(name, store=engine, effects=effects, scope=scope)
        try:
            return await aclaimed_in(boundary)
        finally:
            await boundary.aclose()
            await engine.dispose()

    yield lambda tenant: asyncio.run(claimed(tenant))


@contextmanager
def by_translation(url: str, scope: Any, effects: Any = "transactional") -> Iterator[Claimed]:
    engine = sqlalchemy.create_engine(url.replace(":", "+psycopg:", 1))
    boundary: Boundary[Any] = Boundary(f"t{uuid4().hex}", store=engine, effects=effects, scope=scope)

    def claimed(tenant: str) -> bool:
        with engine.execution_options(schema_translate_map={None: tenant}).begin() as tx:
            return claimed_in(boundary, tx if effects == "transactional" else None)

    yield claimed
    boundary.close()
    engine.dispose()


@contextmanager
def by_django(url: str, scope: Any, effects: Any = "keyed") -> Iterator[Claimed]:
    alias = add_alias("postgresql")
    from django.db import connections

    boundary: Boundary[Any] = Boundary(f"t{uuid4().hex}", store=alias, effects=effects, scope=scope)

    def claimed(tenant: str) -> bool:
        with connections[alias].cursor() as cursor:
            cursor.execute(f"SET search_path TO {tenant}, public")
        return claimed_in(boundary)

    try:
        yield claimed
    finally:
        boundary.close()
        remove_alias(alias)


def chosen_by_a_session(engine: Any, _: Callable[[], str]) -> Callable[[str], Any]:
    @contextmanager
    def choose(tenant: str) -> Iterator[Any]:
        with sqlalchemy.orm.Session(engine) as session:
            session.execute(sqlalchemy.text(f"SET search_path TO {tenant}, public"))
            yield session

    return choose


def chosen_for_a_statement(engine: Any, _: Callable[[], str]) -> Callable[[str], Any]:
    @contextmanager
    def choose(tenant: str) -> Iterator[Any]:
        with sqlalchemy.orm.Session(engine) as session:
            options = {"schema_translate_map": {None: tenant}}
            session.execute(sqlalchemy.text("SELECT 1"), execution_options=options)
            yield session

    return choose


def chosen_by_a_listener(name: str) -> Callable[[Any, Callable[[], str]], Callable[[str], Any]]:
    def listening(engine: Any, at: Callable[[], str]) -> Callable[[str], Any]:
        @sqlalchemy.event.listens_for(engine, name)
        def set_schema(connection: Any, *_: Any) -> None:
            driver = getattr(connection, "connection", connection)
            cursor = driver.cursor()
            cursor.execute(f"SET search_path TO {at()}, public")
            cursor.close()

        return lambda tenant: nullcontext()

    return listening


def by_engine(choosing: Callable[[Any, Callable[[], str]], Any], effects: Any) -> Callable[[str, Any], Any]:
    """A claim of a worker of its own for each tenant: the first one that a process sees is no other than the rest."""

    @contextmanager
    def way(url: str, scope: Any) -> Iterator[Claimed]:
        name, now, closings = f"t{uuid4().hex}", [""], []

        def claimed(tenant: str) -> bool:
            now[0] = tenant
            engine = sqlalchemy.create_engine(url.replace(":", "+psycopg:", 1))
            boundary: Boundary[Any] = Boundary(name, store=engine, effects=effects, scope=scope)
            closings.extend((boundary.close, engine.dispose))
            with choosing(engine, lambda: now[0])(tenant):
                return claimed_in(boundary)

        yield claimed
        for close in closings:
            close()

    return way


@contextmanager
def by_work(url: str, scope: Any, how: str) -> Iterator[Claimed]:
    """The schema is chosen by the work itself, as by a dependency that comes after the claim."""
    engine = sqlalchemy.create_engine(url.replace(":", "+psycopg:", 1))
    boundary = Boundary(f"t{uuid4().hex}", store=sessionmaker(engine), effects="transactional", scope=scope)

    def claimed(tenant: str) -> bool:
        with boundary.claim("order-1") as claim:
            if not claim.replayed:
                claim.tx.execute(sqlalchemy.text(how.format(f"{tenant}, public")))
                claim.result = "placed"
            return claim.replayed

    yield claimed
    boundary.close()
    engine.dispose()


WAYS: dict[str, Callable[[str, Any], Any]] = {
    "psycopg, SET search_path": by_search_path,
    "asyncpg, SET LOCAL search_path": by_search_path_async,
    "SQLAlchemy, schema_translate_map": by_translation,
    "SQLAlchemy, schema_translate_map, keyed": lambda url, scope: by_translation(url, scope, "keyed"),
    "SQLAlchemy, session, keyed": by_engine(chosen_by_a_session, "keyed"),
    "SQLAlchemy, map of a statement, keyed": by_engine(chosen_for_a_statement, "keyed"),
    **{
        f"SQLAlchemy, {listener}, {effects}": by_engine(chosen_by_a_listener(listener), effects)
        for listener in ("checkout", "engine_connect", "before_cursor_execute")
        for effects in ("keyed", "transactional")
    },
    "the work, SET LOCAL": lambda url, scope: by_work(url, scope, "SET LOCAL search_path TO {}"),
    "the work, SET": lambda url, scope: by_work(url, scope, "/* t */ SET search_path TO {}"),
    "the work, set_config": lambda url, scope: by_work(url, scope, "SELECT 1, set_config('search_path', '{}', true)"),
    "async SQLAlchemy, checkout, keyed": lambda url, scope: by_async_engine(url, scope, "keyed"),
    "async SQLAlchemy, checkout, transactional": lambda url, scope: by_async_engine(url, scope, "transactional"),
    "asyncpg pool, setup=, keyed": lambda url, scope: by_setup(url, scope, "keyed"),
    "asyncpg pool, setup=, transactional": lambda url, scope: by_setup(url, scope, "transactional"),
    "Django, SET search_path, keyed": by_django,
    "Django, SET search_path, transactional": lambda url, scope: by_django(url, scope, "transactional"),
}


AFTERWARDS = [way for name, way in WAYS.items() if name.startswith("the work")]


@pytest.fixture
def tenants(migrated: str) -> Iterator[tuple[str, str]]:
    """Two schemas beside the one that our tables are in."""
    names = f"blue_{uuid4().hex[:8]}", f"green_{uuid4().hex[:8]}"
    with psycopg.connect(migrated, autocommit=True) as admin:
        for name in names:
            admin.execute(f"CREATE SCHEMA {name}".encode())
        yield names
        for name in names:
            admin.execute(f"DROP SCHEMA {name} CASCADE".encode())


@each_row("way", WAYS.values(), ids=list(WAYS))
def test_under_a_tenants_schema_a_claim_names_the_tenant_or_is_refused(
    way: Callable[[str, Any], Any], migrated: str, tenants: tuple[str, str]
) -> None:
    blue, green = tenants
    with way(migrated, None) as claimed, pytest.raises(ConfigurationError, match=r"names no tenant.*scope=") as refused:
        claimed(blue)
    assert ("The transaction of the work is undone" if way in AFTERWARDS else "Nothing was run") in str(refused.value)
    at: list[str] = []
    with way(migrated, lambda: at[-1]) as claimed:
        for tenant, replayed in ((blue, False), (green, False), (blue, True)):
            at.append(tenant)
            assert claimed(tenant) == replayed


def test_the_schema_of_our_connections_is_no_tenant(migrated: str) -> None:
    with by_search_path(migrated, None) as claimed:
        assert not claimed("public")


def test_a_pool_with_a_schema_of_its_own_is_no_tenant(migrated: str, tenants: tuple[str, str]) -> None:
    """Set by options of the URL, or whenever a connection is opened, the schema is that of our connections too."""
    engine = sqlalchemy.create_engine(migrated.replace(":", "+psycopg:", 1))

    @sqlalchemy.event.listens_for(engine, "connect")
    def set_schema(connection: Any, _: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET search_path TO {tenants[0]}, public")
        connection.commit()

    boundary = Boundary(f"t{uuid4().hex}", store=engine, effects="transactional")
    for replayed in (False, True):
        with engine.begin() as tx:
            assert claimed_in(boundary, tx) == replayed
    boundary.close()
    engine.dispose()
