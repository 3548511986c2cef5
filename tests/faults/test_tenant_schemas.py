"""Schema per tenant: a claim that names no tenant is refused under the schema of one, in every mode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import asyncpg
import psycopg
import pytest
import sqlalchemy

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
                async with boundary.claim("order-1", tx=connection) as claim:
                    if not claim.replayed:
                        claim.result = "placed"
                    return claim.replayed
        finally:
            await connection.close()
            await boundary.aclose()

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


WAYS: dict[str, Callable[[str, Any], Any]] = {
    "psycopg, SET search_path": by_search_path,
    "asyncpg, SET LOCAL search_path": by_search_path_async,
    "SQLAlchemy, schema_translate_map": by_translation,
    "SQLAlchemy, schema_translate_map, keyed": lambda url, scope: by_translation(url, scope, "keyed"),
    "Django, SET search_path, keyed": by_django,
    "Django, SET search_path, transactional": lambda url, scope: by_django(url, scope, "transactional"),
}


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
    assert "Nothing was run" in str(refused.value)
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
