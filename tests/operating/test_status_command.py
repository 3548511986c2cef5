"""`retrysafe status`: what a store promises, how its server is set up, what is in it, and whether it can be used."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from retrysafe import Boundary, ConfigurationError, Event
from retrysafe.admin.operator import Clock, Status
from retrysafe.backends import migrations, registry
from retrysafe.backends.backend import Backend
from retrysafe.backends.spec import BackendSpec, StoreAccess
from retrysafe.backends.sql.drivers.sqlite import SqliteClient, SqliteFile
from retrysafe.backends.sql.postgresql import PostgresqlStore, _findings
from retrysafe.backends.sql.sqlite import SqliteStore
from retrysafe.cli.status import _difference
from retrysafe.messaging import Inbox, InboxMessage, InboxOperator, Outbox, needs
from retrysafe.protocol.records import Finding
from retrysafe.protocol.requests import Ask, Query, Rows
from tests.messaging.inboxes import envelope
from tests.operating.conftest import Command, Place, in_a_process
from tests.tables import each_row


@pytest.mark.slow
def test_a_store_is_described_and_counted(place: Place, command: Command) -> None:
    place.unknown("U1")
    place.unknown("U2")
    place.completed("C")
    done = command("status", "--store", place.operators, "--json")
    status = json.loads(done.out)
    assert done.code == status["stalled"], "by messages that other tests have left in the database"
    counted = {one["state"]: one["records"] for one in status["records"] if one["boundary"] == place.name}
    assert counted == {"unknown": 2, "completed": 1}
    assert status["usable"] is True
    assert status["unknown"] >= 2
    assert status["capabilities"]["cannot_survive"]
    assert abs(status["clock"]["ahead"]) < 60
    text = in_a_process("status", RETRYSAFE_STORE=place.operators)
    assert text.code in (0, 1), "as above, and a minute may have passed"
    assert "unknown, to be settled by a person: retrysafe keys list --state unknown" in text.out
    assert place.name in text.out
    assert "clock difference" in text.out


def test_forgotten_records_wait_for_the_sweep(shelf: Place, command: Command) -> None:
    shelf.completed("C", window="1h")
    shelf.elapse("C", 7200)
    status = json.loads(command("status", "--store", shelf.operators, "--json").out)
    assert (status["forgotten"], status["unknown"]) == (1, 0)
    assert "1 forgotten, to be removed by: retrysafe sweep" in command("status", "--store", shelf.operators).out


def test_an_empty_store_has_no_clock_to_compare(shelf: Place, command: Command) -> None:
    said = command("status", "--store", shelf.operators).out
    assert "no records" in said
    assert "not known: the store has no record" in said
    assert json.loads(command("status", "--store", shelf.operators, "--json").out)["clock"] is None


@each_row(
    ("clock", "said"),
    [
        (Clock(0.2, 0.1), "0.200 s (± 0.100) ahead of"),
        (Clock(-5.0, 0.1), "5.000 s (± 0.100) behind this machine !!"),
        (Clock(5.0, 4.5), "this machine"),
    ],
)
def test_a_clock_that_is_off_is_pointed_out(clock: Clock, said: str) -> None:
    told = _difference(Status(SqliteStore.capabilities, "", None, [], [], clock))
    assert said in told
    assert told.endswith("compared") == (said.endswith("!!"))


@pytest.fixture
def empty_database(postgresql: str) -> Iterator[str]:
    import psycopg

    name = f"retrysafe_status_{uuid4().hex}"
    with psycopg.connect(postgresql, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        yield urlsplit(postgresql)._replace(path=f"/{name}").geturl()
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+asyncpg"])
def test_a_database_without_our_tables_would_be_refused(scheme: str, empty_database: str, command: Command) -> None:
    url = empty_database.replace("postgresql", scheme, 1)
    done = command("status", "--store", url)
    assert done.code == 1
    assert f"version 0 (needed: {migrations.load('postgresql')[-1].version})" in done.out
    assert "retrysafe migrate" in done.out
    assert "synchronous_commit" in done.out, "the server can be looked at all the same"
    listed = command("keys", "list", "--store", url)
    assert (listed.code, listed.out) == (2, "")
    assert "retrysafe migrate" in listed.err


def test_a_server_that_does_not_answer_is_an_error(command: Command) -> None:
    done = command("status", "--store", "postgresql://nobody@127.0.0.1:1/x?connect_timeout=2")
    assert (done.code, done.out) == (2, "")


# ---------------------------------------------------------------- the server's settings


def test_a_live_server_tells_how_durable_a_commit_is(postgresql: str, command: Command) -> None:
    registry.connect(postgresql).migrate()
    status = json.loads(command("status", "--store", postgresql, "--json").out)
    told = {(finding["level"], finding["name"]) for finding in status["findings"]}
    assert ("fact", "synchronous_commit") in told
    assert ("fact", "synchronous_standby_names") in told
    assert not any(level == "refuse" for level, _ in told)


def settings(
    standby: str = "false", fsync: str = "on", commit: str = "on", pages: str = "on", idle: str = "0"
) -> dict[str, str]:
    found = _findings(Rows([(standby, fsync, commit, "", pages, "UTF8", "UTF8", idle)], 1))
    return {finding.name: finding.level for finding in found if finding.level != "fact"}


def test_settings_that_weaken_a_promise_are_found() -> None:
    """The settings that a test cannot give a live server: a standby, and a server without fsync."""
    assert settings() == {}
    assert settings(standby="true") == {"in_recovery": "refuse"}
    assert settings(fsync="off") == settings(pages="off") == {"fsync": "warn"}
    assert settings(commit="off") == {"synchronous_commit": "warn"}
    assert settings(commit="local") == settings(idle="60000") == {}
    assert settings(idle="5000") == {"idle_in_transaction_session_timeout": "warn"}


def test_the_query_answers_in_the_order_in_which_it_is_read(postgresql: str) -> None:
    import psycopg

    (ask,) = PostgresqlStore().examine()
    with psycopg.connect(postgresql, autocommit=True) as connection:
        rows = connection.execute(ask.request.sql.encode()).fetchall()
        assert rows[0][0] == "false"
        for name, value in zip(("fsync", "synchronous_commit"), rows[0][1:3], strict=True):
            assert connection.execute(f"SHOW {name}".encode()).fetchone() == (value,)


@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_a_warning_is_told_once_per_process(postgresql: str, colour: str) -> None:
    registry.connect(postgresql).migrate()
    weak = f"{postgresql}?options=-c%20synchronous_commit%3Doff&application_name={uuid4().hex}"
    told: list[Event] = []
    one, other = (Boundary(f"{name}-{uuid4().hex}", store=weak, observers=[told.append]) for name in ("a", "b"))
    for boundary in (one, other, one):
        if colour == "sync":
            with boundary.claim(uuid4()) as claim:
                claim.result = 1
        else:
            async with boundary.claim(uuid4()) as claim:
                claim.result = 1
    warnings = [occurrence for occurrence in told if occurrence.name == "store_warning"]
    assert [warning.fields["setting"] for warning in warnings] == ["synchronous_commit"]
    assert warnings[0].boundary == one.name
    assert told.index(warnings[0]) < [occurrence.name for occurrence in told].index("started"), "before the handler"
    for boundary in (one, other):
        await boundary.aclose()


class Misconfigured(SqliteStore):
    """A store whose server refuses to be used."""

    def examine(self) -> list[Ask[list[Finding]]]:
        finding = Finding("refuse", "eviction", "The server may evict records.")
        return [Ask(Query("SELECT 1", {}, writes=False), lambda answer: [finding])]


def misconfigured(url: str) -> Backend:
    """A store on a SQLite file that finds itself set up wrongly."""
    file = SqliteFile(urlsplit(url).path)
    return Backend(Misconfigured(), StoreAccess(url, sync=lambda: SqliteClient(file)))


@pytest.fixture
def refusing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    path = tmp_path / "refusing.db"
    registry.connect(f"sqlite:///{path}").close()
    schemes = {"refusing": "test_status_command:misconfigured"}
    spec = BackendSpec("tests.operating", "tests", stores=(), time_travel={}, schemes=schemes)
    found = [*registry.specs(), spec]
    monkeypatch.setattr(registry, "specs", lambda: found)
    return lambda: f"refusing://{path}"


def test_a_server_that_is_set_up_wrongly_is_refused_before_the_handler(refusing: Callable[[], str]) -> None:
    boundary = Boundary("b", store=refusing(), observers=())
    ran: list[str] = []

    @boundary.once(key="key", operation="x")
    def work(key: str) -> None:
        ran.append(key)

    for _ in range(2):
        with pytest.raises(ConfigurationError, match="may evict records"):
            work("K")
    assert ran == []
    boundary.close()


def test_status_exits_with_1_where_boundaries_refuse(refusing: Callable[[], str], command: Command) -> None:
    done = command("status", "--store", refusing())
    assert done.code == 1
    assert "!! refused: The server may evict records." in done.out
    assert json.loads(command("status", "--store", refusing(), "--json").out)["usable"] is False
    assert command("keys", "list", "--store", refusing()).code == 0, "looking does no harm"


def test_messages_that_need_a_person_are_told(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Due without a relay, and dead letters, whether they are marked to be handled again or not."""
    monkeypatch.setattr(needs, "STALLED", 0.0)
    url = f"sqlite:///{tmp_path}/shop.db"
    boundary = Boundary("shop", store=url, effects="transactional", window="7d")
    assert "!!" not in command("status", "--store", url).out
    with closing(sqlite3.connect(tmp_path / "shop.db")) as file:
        assert not file.execute("SELECT name FROM sqlite_master WHERE name LIKE '%box%'").fetchall(), (
            "looking makes none"
        )
    outbox = Outbox(url, source="/shop")
    with boundary.claim("A-1") as claim:
        outbox.add(claim.tx, "orders", {"n": 1}, type="placed.v1")
        claim.result = 1

    @Inbox(boundary).handler("stock", max_attempts=1)
    def handle(message: InboxMessage[Any]) -> None:
        raise LookupError("no such article")

    for number in range(2):
        handle.handle(envelope(number))
    with InboxOperator(url, observers=()) as operator:
        operator.redrive(limit=1)
    told = command("status", "--store", url)
    said = told.out
    assert told.code == 1, "as of retrysafe outbox status"
    assert "!! Messages are due for" in said
    assert "no relay is running" in said
    assert "!! Consumer stock has given up on 1 message." in said
    assert "!! 1 message of consumer stock waits to be handled again." in said
    boundary.close()
