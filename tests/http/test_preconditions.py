"""Conditional requests in every framework, over its own client or server; and two writers of one row on PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from sqlalchemy import NullPool, insert, select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.orm.exc import StaleDataError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from retrysafe import Boundary, Keyring, current
from retrysafe.admin.operator import Operator
from retrysafe.admin.selection import parse, read_operation
from retrysafe.backends.registry import connect
from retrysafe.cli import main
from retrysafe.http.conditional import etag_of
from retrysafe.http.starlette import IdempotencyMiddleware, check_preconditions
from retrysafe.protocol.records import Filter
from tests.http.apps.versioned import FRAMEWORKS, Ask, Stock, over_asgi
from tests.http.django_site import SQL, opened, replayed

from rest_framework.views import APIView  # isort: skip
from retrysafe.http import django as of_django  # isort: skip
from retrysafe.http import drf as of_drf  # isort: skip

pytestmark = pytest.mark.slow


class Shop:
    """An application in some framework."""

    def __init__(self, stock: Stock, ask: Ask) -> None:
        self.stock = stock
        self.ask = ask


@pytest_asyncio.fixture(params=FRAMEWORKS)
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shop]:
    stock, boundary = Stock(), Boundary("preconditions", store="memory://")
    async with FRAMEWORKS[request.param](stock, boundary, tmp_path) as ask:
        yield Shop(stock, ask)
    boundary.close()


async def test_a_client_that_owns_the_id_creates_once(shop: Shop) -> None:
    created, again = await shop.ask("PUT", if_none_match="*"), await shop.ask("PUT", if_none_match="*")
    assert (created.status, created.fields["etag"]) == (201, '"1"')
    assert (again.status, again.fields["etag"], shop.stock.writes) == (412, '"1"', 1)


async def test_a_client_replaces_the_version_it_has_seen_and_no_other(shop: Shop) -> None:
    shop.stock.versions["a"] = 4
    stale, fresh = await shop.ask("PUT", if_match='"3"'), await shop.ask("PUT", if_match='"4"')
    assert (stale.status, stale.fields["etag"]) == (412, '"4"')
    assert (fresh.status, fresh.fields["etag"], shop.stock.writes) == (200, '"5"', 1)
    assert (await shop.ask("PUT", "gone", if_match='"1"')).status == 412


async def test_a_missing_precondition_is_asked_for(shop: Shop) -> None:
    shop.stock.versions["a"] = 1
    for name in ("a", "new"):
        assert ((await shop.ask("PUT", name)).status, shop.stock.writes) == (428, 0)


@pytest.mark.parametrize(("fields", "status"), [({"if_match": '"3"'}, 412), ({}, 428)])
async def test_a_refusal_is_a_problem(shop: Shop, fields: dict[str, str], status: int) -> None:
    shop.stock.versions["a"] = 4
    refused = await shop.ask("PUT", **fields)
    assert (refused.status, refused.fields["content-type"].split(";")[0]) == (status, "application/problem+json")
    problem = json.loads(refused.body)
    assert "If-Match" in problem["detail"]
    assert problem.get("status", status) == status
    assert int(refused.fields.get("content-length", len(refused.body))) == len(refused.body)


async def test_versions_that_a_reader_has_are_not_sent_again(shop: Shop) -> None:
    shop.stock.versions["a"] = 4
    full = await shop.ask("GET")
    same = await shop.ask("GET", if_none_match=full.fields["etag"])
    assert (same.status, same.body, same.fields["etag"]) == (304, b"", '"4"')
    assert "content-type" not in same.fields
    assert (await shop.ask("GET", if_none_match='"3"')).body == full.body != b""


async def test_only_what_was_seen_is_deleted(shop: Shop) -> None:
    shop.stock.versions["a"] = 2
    stale, deleted, again = [await shop.ask("DELETE", if_match=tag) for tag in ('"1"', '"2"', '"2"')]
    assert (stale.status, deleted.status, again.status, shop.stock.writes) == (412, 204, 404, 1)


async def test_r23_a_retry_that_carries_if_match_is_a_replay(shop: Shop) -> None:
    shop.stock.versions["a"] = 1
    first, again = [await shop.ask("PUT", idempotency_key="k", if_match='"1"') for _ in "12"]
    assert (first.status, first.fields["etag"], first.replayed) == (200, '"2"', False)
    assert (again.status, again.fields["etag"], again.replayed) == (200, '"2"', True)
    assert (again.body, shop.stock.writes) == (first.body, 1)
    assert (await shop.ask("PUT", if_match='"1"')).status == 412


async def test_r23_a_retry_of_a_delete_is_a_replay(shop: Shop) -> None:
    shop.stock.versions["a"] = 1
    first, again = [await shop.ask("DELETE", idempotency_key="k", if_match='"1"') for _ in "12"]
    assert (first.status, again.status, again.replayed, shop.stock.writes) == (204, 204, True, 1)


async def test_r23_a_refusal_is_replayed_too(shop: Shop) -> None:
    shop.stock.versions["a"] = 2
    first = await shop.ask("PUT", idempotency_key="k", if_match='"1"')
    shop.stock.versions["a"] = 1
    again = await shop.ask("PUT", idempotency_key="k", if_match='"1"')
    assert (first.status, first.replayed, again.status, again.replayed) == (412, False, 412, True)
    assert (again.body, again.fields["etag"], shop.stock.writes) == (first.body, '"2"', 0)
    assert again.fields["content-type"] == first.fields["content-type"]


async def test_r24_a_replay_keeps_status_tag_and_location(shop: Shop) -> None:
    first = await shop.ask("PUT", idempotency_key="k", if_none_match="*")
    await shop.ask("PUT", if_match='"1"')
    again = await shop.ask("PUT", idempotency_key="k", if_none_match="*")
    assert (again.status, again.replayed, again.body) == (first.status, True, first.body)
    assert (again.fields["etag"], again.fields["location"]) == ('"1"', "/orders/a")


async def test_r24_a_replay_never_turns_into_304(shop: Shop) -> None:
    first, again = [await shop.ask("POST", idempotency_key="k", if_none_match='"1"') for _ in "12"]
    assert (first.status, first.fields["etag"]) == (201, '"1"')
    assert (again.status, again.body, again.replayed) == (201, first.body, True)
    assert (again.fields["etag"], again.fields["location"]) == ('"1"', "/orders/a")


@pytest.mark.parametrize("name", SQL)
@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("door", ["drf", "django"])
def test_r23_a_refusal_is_kept_and_undone_as_without_a_key(tmp_path: Path, name: str, atomic: bool, door: str) -> None:
    """Under ATOMIC_REQUESTS REST framework has the transaction rolled back for what is raised, and only there."""
    with opened(name, tmp_path, ATOMIC_REQUESTS=atomic) as site:

        def put(request: Any) -> Any:
            site.work()
            return of_django.check_preconditions(request, 2)

        def put_rest(view: Any, request: Any) -> None:
            site.work()
            of_drf.check_preconditions(request, 2)

        rest: Any = type("Order", (APIView,), {"authentication_classes": (), "put": put_rest})
        guard: Any = of_drf.idempotent if door == "drf" else of_django.idempotent
        view = rest.as_view() if door == "drf" else put
        guarded = guard(site.boundary(), principal="shared", methods=["PUT"])(view)
        client = site.serve(guarded, MIDDLEWARE=[], REST_FRAMEWORK={"UNAUTHENTICATED_USER": None})
        headers, rows = {"If-Match": '"1"', "Idempotency-Key": "k"}, 0 if door == "drf" and atomic else 1
        first, again = [client.generic("PUT", "/orders", headers=headers) for _ in "12"]
        assert (first.status_code, again.status_code, again.content) == (412, 412, first.content)
        assert (replayed(first), replayed(again), site.runs, site.rows()) == (False, True, 1, rows)


# ------------------------------------------------------------ two writers


class Race:
    """One row on PostgreSQL, and two writers that have both begun before either writes."""

    def __init__(self, table: str, how: str) -> None:
        self.table = table
        self.how = how
        self.both = asyncio.Barrier(2)
        self.read = 0

    async def put(self, request: Request) -> Response:
        """Replace the row, in the transaction of the claim."""
        await self.both.wait()
        version = await (self.locked if self.how == "lock" else self.seen)()
        check_preconditions(request, version, required=True)
        sql = f"UPDATE {self.table} SET version = version + 1, writer = %s"
        values: list[Any] = [request.headers["x-writer"]]
        if self.how == "where":
            await self.both.wait()
            sql, values = f"{sql} WHERE version = %s", [*values, version]
        changed = await current().tx.execute(sql, values)
        if not changed.rowcount:
            check_preconditions(request, await self.seen(), required=True)
            raise AssertionError("The version is the one that was not found.")
        return Response(status_code=204, headers={"ETag": f'"{version + 1}"'})

    async def seen(self, lock: str = "") -> int:
        row = await (await current().tx.execute(f"SELECT version FROM {self.table} {lock}")).fetchone()
        self.read += 1
        return int(row[0])

    async def locked(self) -> int:
        """The version, locked; the first to have it waits until the other one waits for it (or has it, too)."""
        version = await self.seen("FOR UPDATE")
        waiting = f"SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{self.table}%'"
        while self.read < 2 and not (await (await current().tx.execute(waiting)).fetchall()):
            await current().tx.execute("SELECT pg_stat_clear_snapshot()")
        return version


@pytest.mark.parametrize("how", ["where", "lock"])
async def test_of_two_writers_that_have_seen_the_same_one_wins(postgresql: str, how: str) -> None:
    import psycopg

    connect(postgresql).migrate()
    race = Race(f"race_{uuid4().hex}", how)
    with psycopg.connect(postgresql, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {race.table} AS SELECT 1 AS version, '' AS writer".encode())
        boundary = Boundary(race.table, store=postgresql, effects="transactional")
        guard: Any = Middleware(IdempotencyMiddleware, boundary=boundary, methods=["PUT"], principal="shared")
        app = Starlette(routes=[Route("/orders/{name}", race.put, methods=["PUT"])], middleware=[guard])

        async with over_asgi(app) as ask:

            async def write(writer: str) -> Any:
                return await ask("PUT", idempotency_key=writer, if_match='"1"', x_writer=writer)

            answers = await asyncio.gather(write("ann"), write("bob"))
            assert sorted(answer.status for answer in answers) == [204, 412]
            assert {answer.fields["etag"] for answer in answers} == {'"2"'}
            winner = "ann" if answers[0].status == 204 else "bob"
            assert connection.execute(f"SELECT version, writer FROM {race.table}".encode()).fetchall() == [(2, winner)]

            retried = [await write("ann"), await write("bob")]
            assert [(one.status, one.replayed) for one in retried] == [(one.status, True) for one in answers]
        await boundary.aclose()


async def test_of_two_writers_by_version_id_col_one_wins(postgresql: str) -> None:
    """The session's flush fails; the refusal is recorded nevertheless."""
    connect(postgresql).migrate()
    engine = create_async_engine(postgresql.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool)
    note = versioned_class()
    async with engine.begin() as tx:
        await tx.run_sync(note.metadata.create_all)
        await tx.execute(insert(note).values(id="a", text="", version=1))
    both = asyncio.Barrier(2)

    async def put(request: Request) -> Response:
        session = current().tx
        found = await session.get(note, "a")
        check_preconditions(request, found.version, required=True)
        await both.wait()
        found.text = request.headers["x-writer"]
        await session.flush()
        return Response(status_code=204, headers={"ETag": str(etag_of(found.version))})

    async def stale(request: Request, error: Exception) -> Response:
        return Response("stale", 412)

    boundary = Boundary(note.__tablename__, store=async_sessionmaker(engine), effects="transactional")
    guard: Any = Middleware(IdempotencyMiddleware, boundary=boundary, methods=["PUT"], principal="shared")
    routes = [Route("/orders/{name}", put, methods=["PUT"])]
    app = Starlette(routes=routes, middleware=[guard], exception_handlers={StaleDataError: stale})
    async with over_asgi(app) as ask:

        async def write(writer: str) -> Any:
            return await ask("PUT", idempotency_key=writer, if_match='"1"', x_writer=writer)

        answers = await asyncio.gather(write("ann"), write("bob"))
        assert sorted(answer.status for answer in answers) == [204, 412]
        retried = [await write("ann"), await write("bob")]
        assert [(one.status, one.replayed) for one in retried] == [(one.status, True) for one in answers]
        winner = "ann" if answers[0].status == 204 else "bob"
        async with engine.begin() as tx:
            assert (await tx.execute(select(note.text, note.version))).all() == [(winner, 2)]
            await tx.run_sync(note.metadata.drop_all)
    await boundary.aclose()
    await engine.dispose()


def versioned_class() -> Any:
    class Base(DeclarativeBase): ...

    class Note(Base):
        __tablename__ = f"notes_{uuid4().hex}"
        id: Mapped[str] = mapped_column(primary_key=True)
        text: Mapped[str]
        version: Mapped[int] = mapped_column()
        __mapper_args__ = {"version_id_col": version}  # noqa: RUF012 - as SQLAlchemy has it

    return Note


# ---------------------------------------------------------------- the operator's view


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_record_tells_the_method_and_the_template_of_its_route(framework: str, tmp_path: Path) -> None:
    """The key stays one key at every route, and its result can be read; "http" selects every route."""
    url, keyring = f"sqlite:///{tmp_path}/routes.db", Keyring({"1": secrets.token_bytes(32)})
    boundary = Boundary("routes", store=url, encryption=keyring, observers=())
    async with FRAMEWORKS[framework](Stock(), boundary, tmp_path) as ask:
        assert (await ask("POST", idempotency_key='"k"')).status == 201
        assert (await ask("POST", idempotency_key='"k"')).replayed
        assert (await ask("POST", "b", idempotency_key='"k"')).status == 422
    boundary.close()
    with Operator(url, encryption=keyring, observers=()) as operator:
        (record,) = operator.each(Filter())
        assert re.fullmatch(r"http: POST /orders/[{<][^/]*name[^/]*[}>]", record.operation)
        route = record.operation.removeprefix("http: ")
        for named, count in ((record.operation, 1), (route, 1), ("http", 1), ("POST /orders", 0)):
            assert len(list(operator.each(parse({"operation": [named]})))) == count, named
        for named in (record.operation, route, "http"):
            assert operator.hash_of("k", boundary="routes", operation=read_operation(named)) == record.key, named
            assert main(["keys", "show", "k", "--store", url, "--operation", named]) == 0, named
        assert [one.key for one in operator.locate("k")] == [record.key]
        revealed = operator.reveal(record)
        assert revealed is not None
        assert b"version 1" in (revealed.body or b"")
