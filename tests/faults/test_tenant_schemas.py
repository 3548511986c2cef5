"""Schema per tenant: a claim that names no tenant is refused under the schema of one, in every mode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
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
from retrysafe.loads import Loads
from tests.django.aliases import add_alias, remove_alias
from tests.faults.servers import PgBouncer
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


def chosen_by_set_schema(engine: Any, _: Callable[[], str]) -> Callable[[str], Any]:
    @contextmanager
    def choose(tenant: str) -> Iterator[Any]:
        with sqlalchemy.orm.Session(engine) as session:
            session.execute(sqlalchemy.text(f"/* t */ SET SESSION SCHEMA '{tenant}'"))
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


Work = Callable[[Any, str], object]


def statements(*texts: str) -> Work:
    def work(tx: Any, tenant: str) -> None:
        for text in texts:
            tx.execute(sqlalchemy.text(text.format(tenant)))

    return work


def mapped_statement(tx: Any, tenant: str) -> None:
    tx.execute(sqlalchemy.select(1), execution_options={"schema_translate_map": {None: tenant}})


def mapped_for_a_while(tx: Any, tenant: str) -> None:
    connection = tx.connection() if isinstance(tx, sqlalchemy.orm.Session) else tx
    connection.execution_options(schema_translate_map={None: tenant})
    tx.execute(sqlalchemy.select(1))
    connection.execution_options(schema_translate_map=None)


def mapped_by_a_listener(tx: Any, tenant: str) -> None:
    def set_map(state: Any) -> None:
        state.update_execution_options(schema_translate_map={None: tenant})

    sqlalchemy.event.listen(tx, "do_orm_execute", set_map)
    tx.execute(sqlalchemy.select(1))


@contextmanager
def by_work(url: str, scope: Any, work: Work) -> Iterator[Claimed]:
    """The schema is chosen by the work itself, as by a dependency that comes after the claim."""
    engine = sqlalchemy.create_engine(driven(url))
    boundary = Boundary(f"t{uuid4().hex}", store=sessionmaker(engine), effects="transactional", scope=scope)

    def claimed(tenant: str) -> bool:
        with boundary.claim("order-1") as claim:
            if not claim.replayed:
                work(claim.tx, tenant)
                claim.result = "placed"
            return claim.replayed

    yield claimed
    boundary.close()
    engine.dispose()


@contextmanager
def by_work_in(url: str, scope: Any, work: Work, *, on_engine: bool) -> Iterator[Claimed]:
    """As `by_work`, in a transaction of the caller's; ``store=`` is its engine, or the URL of the same database."""
    engine = sqlalchemy.create_engine(driven(url))
    boundary = Boundary(f"t{uuid4().hex}", store=engine if on_engine else url, effects="transactional", scope=scope)

    def claimed(tenant: str) -> bool:
        with sqlalchemy.orm.Session(engine) as tx, tx.begin(), boundary.claim("order-1", tx=tx) as claim:
            if not claim.replayed:
                work(tx, tenant)
                claim.result = "placed"
            return claim.replayed

    yield claimed
    boundary.close()
    engine.dispose()


@contextmanager
def by_map_before(url: str, scope: Any) -> Iterator[Claimed]:
    """As `by_translation`, for every database."""
    engine = sqlalchemy.create_engine(driven(url))
    boundary = Boundary(f"t{uuid4().hex}", store=url, effects="transactional", scope=scope)

    def claimed(tenant: str) -> bool:
        with engine.connect() as connection:
            mapped = connection.execution_options(schema_translate_map={None: tenant})
            with mapped.begin():
                return claimed_in(boundary, mapped)

    yield claimed
    boundary.close()
    engine.dispose()


@contextmanager
def by_step(
    url: str, scope: Any, *, of_claim: bool = False, inside: bool = False, mapped: bool = False
) -> Iterator[Claimed]:
    """A step in the caller's transaction, of a saga or of a claim; its schema is chosen before it, or inside."""
    boundary: Boundary[Any] = Boundary(f"t{uuid4().hex}", store=url, effects="keyed", scope=scope)
    engine = sqlalchemy.create_engine(driven(url))

    def stepped(tx: Any, choose: Callable[[], object]) -> bool:
        if not of_claim:
            with boundary.step("order-1", "book", tx=tx) as step:
                if inside and not step.replayed:
                    choose()
            return step.replayed
        with boundary.claim("order-1") as claim:
            if not claim.replayed:
                with claim.step("book", tx=tx):
                    choose()
        return claim.replayed

    def claimed(tenant: str) -> bool:
        with engine.connect() as given:
            connection = given.execution_options(schema_translate_map={None: tenant}) if mapped else given
            with connection.begin():

                def choose() -> None:
                    connection.exec_driver_sql(f"SET LOCAL search_path TO {tenant}, public")

                if not inside and not mapped:
                    choose()
                return stepped(connection, choose if inside else lambda: None)

    yield claimed
    boundary.close()
    engine.dispose()


@contextmanager
def by_step_async(url: str, scope: Any) -> Iterator[Claimed]:
    name = f"t{uuid4().hex}"

    async def claimed(tenant: str) -> bool:
        boundary: Boundary[Any] = Boundary(name, store=url.replace(":", "+asyncpg:", 1), effects="keyed", scope=scope)
        connection = await asyncpg.connect(url)
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL search_path TO {tenant}, public")
                async with boundary.step("order-1", "book", tx=connection) as step:
                    return step.replayed
        finally:
            await connection.close()
            await boundary.aclose()

    yield lambda tenant: asyncio.run(claimed(tenant))


def driven(url: str) -> str:
    """The URL as SQLAlchemy takes it."""
    return url.replace("postgresql:", "postgresql+psycopg:", 1).replace("mysql:", "mysql+pymysql:", 1)


WORKS: dict[str, Work] = {
    "SET LOCAL": statements("SET LOCAL search_path TO {}, public"),
    "SET": statements("/* t */ SET search_path TO {}, public"),
    "set_config": statements("SELECT 1, set_config('search_path', '{}, public', true)"),
    "SET and RESET": statements("SET search_path TO {}, public", "RESET search_path"),
    "SET SCHEMA and RESET": statements(" set\tlocal Schema '{}'", "RESET search_path"),
    "map of a statement": mapped_statement,
    "map of a listener": mapped_by_a_listener,
}
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
    **{f"the work, {name}": partial(by_work, work=work) for name, work in WORKS.items()},
    **{f"the work in tx=, {name}": partial(by_work_in, work=work, on_engine=True) for name, work in WORKS.items()},
    "the work in tx=, a map for a while": partial(by_work_in, work=mapped_for_a_while, on_engine=True),
    "the work in tx=, store= a URL": partial(by_work_in, work=WORKS["SET and RESET"], on_engine=False),
    "SQLAlchemy, SET SCHEMA, keyed": by_engine(chosen_by_set_schema, "keyed"),
    "async SQLAlchemy, checkout, keyed": lambda url, scope: by_async_engine(url, scope, "keyed"),
    "async SQLAlchemy, checkout, transactional": lambda url, scope: by_async_engine(url, scope, "transactional"),
    "asyncpg pool, setup=, keyed": lambda url, scope: by_setup(url, scope, "keyed"),
    "asyncpg pool, setup=, transactional": lambda url, scope: by_setup(url, scope, "transactional"),
    "a saga's step, SET LOCAL": by_step,
    "a saga's step, asyncpg": by_step_async,
    "a saga's step, map": partial(by_step, mapped=True),
    "a claim's step, SET LOCAL": partial(by_step, of_claim=True),
    "a claim's step, SET LOCAL inside": partial(by_step, of_claim=True, inside=True),
    "Django, SET search_path, keyed": by_django,
    "Django, SET search_path, transactional": lambda url, scope: by_django(url, scope, "transactional"),
}


AFTERWARDS = [way for name, way in WAYS.items() if name.startswith(("the work", "a claim's step"))]


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


def use(spelling: str) -> Work:
    """Choose a database of MariaDB, and put it back."""

    def work(tx: Any, tenant: str) -> None:
        home = tx.scalar(sqlalchemy.text("SELECT DATABASE()"))
        statements(spelling, f"USE {home}")(tx, tenant)

    return work


ELSEWHERE: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    **{
        f"{kind}, {name}": (kind, way)
        for kind in ("sqlite", "mysql")
        for name, way in {
            "map before the claim": by_map_before,
            "the work, map of a statement": partial(by_work, work=mapped_statement),
            "the work, map for a while": partial(by_work_in, work=mapped_for_a_while, on_engine=True),
            "the work, store= a URL": partial(by_work_in, work=mapped_statement, on_engine=False),
        }.items()
    },
    **{
        f"mysql, the work, {spelling!r}": ("mysql", partial(by_work, work=use(spelling)))
        for spelling in ("USE {}", " USE {}", "use\n{}")
    },
}


@each_row("row", ELSEWHERE.values(), ids=list(ELSEWHERE))
def test_on_other_databases_too_a_claim_names_the_tenant_or_is_refused(
    row: tuple[str, Callable[[str, Any], Any]], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    kind, way = row
    url = request.getfixturevalue("mysql_migrated") if kind == "mysql" else f"sqlite:///{tmp_path}/shop.db"
    blue = "main" if kind == "sqlite" else sqlalchemy.make_url(url).database
    with way(url, None) as claimed, pytest.raises(ConfigurationError, match=r"names no tenant.*scope="):
        claimed(blue)
    with way(url, "blue") as claimed:
        assert [claimed(blue), claimed(blue)] == [False, True]


@pytest.fixture
def logins(migrated: str, tenants: tuple[str, str]) -> Iterator[list[str]]:
    """A role for each tenant, with its schema as the search path, as URLs."""
    with psycopg.connect(migrated, autocommit=True) as admin:
        for name in tenants:
            admin.execute(f"CREATE ROLE {name} LOGIN SUPERUSER".encode())
            admin.execute(f"ALTER ROLE {name} SET search_path = {name}, public".encode())
        yield [str(sqlalchemy.make_url(migrated).set(username=name)) for name in tenants]
        for name in tenants:
            admin.execute(f"DROP ROLE {name}".encode())


def test_the_login_of_a_tenant_does_not_decide_which_schema_is_ours(migrated: str, logins: list[str]) -> None:
    boundary = Boundary(f"t{uuid4().hex}", store=migrated, effects="transactional")
    for login in logins:
        with psycopg.connect(login) as tx, pytest.raises(ConfigurationError, match="names no tenant"):
            claimed_in(boundary, tx)
    assert not claimed_in(boundary)
    boundary.close()


async def test_nor_does_it_in_async_code(migrated: str, logins: list[str]) -> None:
    for store in (migrated, migrated.replace(":", "+asyncpg:", 1), sqlalchemy.create_engine(driven(migrated))):
        boundary: Boundary[Any] = Boundary(f"t{uuid4().hex}", store=store, effects="transactional")
        connection = await asyncpg.connect(logins[0])
        async with connection.transaction():
            with pytest.raises(ConfigurationError, match="names no tenant"):
                await aclaimed_in(boundary, connection)
        await connection.close()
        await boundary.aclose()


@pytest.fixture
def left(pgbouncer: PgBouncer, tenants: tuple[str, str]) -> Iterator[str]:
    """A PgBouncer with sessions that another client has left under the schema of its tenant, and their schema."""

    def in_all(statement: str) -> None:
        with psycopg.connect(pgbouncer.url) as one, psycopg.connect(pgbouncer.url) as other:
            for connection in (one, other):
                connection.execute(statement.encode())

    in_all(f"SET search_path TO {tenants[0]}, public")
    yield pgbouncer.url
    in_all("RESET search_path")


@each_row("effects", ("keyed", "transactional"))
def test_the_schema_of_a_session_that_a_pooler_lends_is_not_ours(effects: Any, left: str) -> None:
    boundary: Boundary[Any] = Boundary(f"t{uuid4().hex}", store=left, effects=effects)
    with pytest.raises(ConfigurationError, match="names no tenant"):
        claimed_in(boundary)
    with boundary.claim("order-1", scope="blue") as claim:
        claim.result = "placed"
    boundary.close()


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


LOADS: dict[str, tuple[bool, bool, dict[str, Any]]] = {
    "a run, scopes": (True, False, {}),
    "a run, one boundary": (False, False, {}),
    "lower versions": (True, True, {}),
    "rows that are added": (False, False, {"by": None, "partition": None, "strategy": "append_once"}),
}


@each_row("scoped, versions, options", LOADS.values(), ids=list(LOADS))
def test_tenants_load_the_tables_of_their_schemas(
    scoped: bool, versions: bool, options: dict[str, Any], migrated: str, tenants: tuple[str, str]
) -> None:
    """By the search path of each one's URL; the ledger is in public. A table by two names is loaded once."""
    name = f"t{uuid4().hex}"
    with psycopg.connect(migrated, autocommit=True) as admin:
        for n, tenant in enumerate(tenants, 1):
            admin.execute(
                f"DROP TABLE IF EXISTS {tenant}.sales; CREATE TABLE {tenant}.sales (day text, id int)".encode()
            )
            url = f"{migrated}?options=-csearch_path%3D{tenant},public"
            terms: dict[str, Any] = {"store": url, "scope": tenant} if scoped else {"store": migrated}
            boundary: Boundary[Any] = Boundary(name, effects="keyed", observers=[], shared=True, **terms)
            given = {"by": "day", "partition": "d", "tag": None, "version": 8 - n if versions else None, **options}
            for table in ("sales", "sales", f"{tenant}.sales"):
                loads = Loads(boundary, url)
                loaded = loads.load(table, rows=lambda n=n: [("d", i) for i in range(n)], run=name, **given)
                assert loaded.rows == n
            boundary.close()
        counted = [admin.execute(f"SELECT count(*) FROM {tenant}.sales".encode()).fetchone() for tenant in tenants]
    assert counted == [(1,), (2,)]


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
