"""Guarded tools of MCP servers: of the official SDK, called by its client."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from mcp import Client
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult

import retrysafe
from retrysafe import Boundary, ConfigurationError, JSONCodec, Postponed, RetrysafeError, StoredFailure, current, wait
from retrysafe.admin.operator import Operator
from retrysafe.agents import texts
from retrysafe.agents.mcp import OnceTools, subject
from tests.agents.calling import AIR, call, spawned
from tests.tables import each_row


class CheckedJSON(JSONCodec):
    """A codec of the user's, which results of tools do not go through."""


Made = Callable[..., tuple[MCPServer, list[Any]]]


@pytest.fixture
def air(tmp_path: Path) -> Iterator[Made]:
    """Makes servers in this process, each with a tool that writes down its calls."""
    with ExitStack() as opened:

        def made(name: str = "air", tool: Any = None, principal: Any = subject, **options: Any) -> Any:
            store = f"sqlite:///{tmp_path / name}.db"
            boundary = Boundary(**{"name": name, "store": store, "observers": [], **options})
            opened.callback(boundary.close)
            once = OnceTools(boundary, principal=principal, book="order")
            server: MCPServer = MCPServer("air", extensions=[once], middleware=[once])
            done: list[Any] = []

            async def book(order: str, flight: str, seats: int = 1) -> str:
                done.append((flight, current().key_for("airline") if options.get("on_missing") != "pass" else ""))
                if flight == "FULL":
                    raise ValueError("no seats")
                if flight in ("REFUSED", "BROKEN"):
                    raise MCPError(code=-32602 if flight == "REFUSED" else -32603, message=flight)
                return f"{flight} for {order}"

            server.add_tool(tool or book, name="book")
            return server, done

        yield made


@each_row("mode, effects", [(mode, effects) for mode in ("auto", "legacy") for effects in ("keyed", "external")])
async def test_each_intent_has_its_effect_once(air: Made, mode: str, effects: str) -> None:
    server, done = air(f"{mode}-{effects}", effects=effects)
    again = "failed" if effects == "keyed" else "OutcomeUnknown"
    async with Client(server, mode=mode) as client:
        tool = (await client.list_tools()).tools[0]
        assert tool.annotations is not None
        assert tool.annotations.idempotent_hint is True
        assert sorted(tool.input_schema["properties"]) == ["flight", "order", "seats"]
        for meta, arguments, expected, calls in (
            ({}, {"order": "1", "flight": "A"}, "A for 1", 1),
            ({}, {"order": "1", "flight": "A"}, "A for 1", 0),
            ({}, {"order": "1", "flight": "B"}, "KeyReused", 0),
            ({"idempotencyKey": "x"}, {"order": "2", "flight": "A"}, "A for 2", 1),
            ({"idempotencyKey": "y"}, {"order": "2", "flight": "A"}, "A for 2", 1),
            ({"com.shop/idempotencyKey": "y"}, {"order": "2", "flight": "A"}, "A for 2", 0),
            ({"idempotency_key": "x", "com.shop/idempotencyKey": "y"}, {"order": "2", "flight": "A"}, "InvalidKey", 0),
            ({}, {"order": "3", "flight": "FULL"}, "failed", 1),
            ({}, {"order": "3", "flight": "FULL"}, again, effects == "keyed"),
            ({}, {"order": "4", "flight": "A", "seats": "many"}, "failed", 0),  # it does not fit the schema
            ({}, {"order": "4", "flight": "B", "seats": 2}, "B for 4", 1),  # so its correction is the same intent
            ({}, {"flight": "A"}, "InvalidKey", 0),
        ):
            before = len(done)
            assert (await call(client, meta=meta, **arguments), len(done) - before) == (expected, calls), arguments
        with pytest.raises(MCPError, match="REFUSED"):
            await call(client, order="5", flight="REFUSED")
        assert await call(client, order="5", flight="A") == "A for 5"
        with pytest.raises(MCPError, match="BROKEN"):
            await call(client, order="6", flight="BROKEN")
        if effects == "external":
            assert await call(client, order="6", flight="BROKEN") == "OutcomeUnknown"
    full = [key for flight, key in done if flight == "FULL"]
    assert len(set(full)) == 1, "the airline sees one key"


async def test_the_server_says_how_to_call_again(air: Made) -> None:
    server, _ = air(window="1h")
    async with Client(server) as client:
        assert client.server_capabilities.extensions == {
            "dev.retrysafe/idempotency": {
                "meta": "dev.retrysafe/idempotencyKey",
                "tools": ["book"],
                "windowSeconds": 3600.0,
            }
        }
        await call(client, order="1", flight="A")
        again = await client.call_tool("book", {"order": "1", "flight": "A"})
        assert (again.meta or {})["dev.retrysafe/replayed"] is True
        assert again.structured_content == {"result": "A for 1"}


async def test_a_question_to_the_user_is_not_the_answer(air: Made) -> None:
    legs: list[Any] = []

    async def book(order: str, context: Context) -> str | InputRequiredResult:
        legs.append(context.input_responses)
        if not context.input_responses:
            asked = ElicitRequestFormParams(message="Sure?", requested_schema={"type": "object", "properties": {}})
            return InputRequiredResult(input_requests={"sure": ElicitRequest(params=asked)})
        return f"leg {len(legs)}"

    async def agree(*_: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={})

    server, _ = air(tool=book, effects="external")
    async with Client(server, elicitation_callback=agree) as client:
        assert [await call(client, order="1") for _ in "ab"] == ["leg 2", "leg 2"]
    assert len(legs) == 2


async def test_a_tool_of_a_transaction_commits_with_its_key(air: Made, tmp_path: Path) -> None:
    async def book(order: str, fails: bool = False) -> str:
        current().tx.execute("INSERT INTO seats VALUES (?)", (order,))
        if fails:
            raise ValueError(order)
        return order

    with closing(sqlite3.connect(tmp_path / "air.db")) as seats:
        seats.execute("CREATE TABLE seats (name TEXT)")
        server, _ = air(tool=book, effects="transactional")
        async with Client(server) as client:
            assert [await call(client, order="1") for _ in "ab"] == ["1", "1"]
            assert [await call(client, order="2", fails=True) for _ in "ab"] == ["failed", "failed"]
        assert seats.execute("SELECT name FROM seats").fetchall() == [("1",)]


async def test_a_tool_goes_on_when_its_client_gives_up(air: Made) -> None:
    begun, gate, calls = asyncio.Event(), asyncio.Event(), list[str]()

    async def book(order: str) -> str:
        calls.append(order)
        begun.set()
        await gate.wait()
        return "ticket"

    server, _ = air(tool=book, effects="external", concurrency=wait("20s"))
    async with Client(server) as client:
        impatient = asyncio.create_task(call(client, order="1"))
        await begun.wait()
        impatient.cancel()
        again = asyncio.create_task(call(client, order="1"))
        gate.set()
        assert await again == "ticket"
        with pytest.raises(asyncio.CancelledError):
            await impatient
    assert calls == ["1"]


async def test_a_call_without_a_key_or_a_user(air: Made) -> None:
    server, done = air("passing", on_missing="pass")
    async with Client(server) as client:
        assert [await call(client, order="", flight="A") for _ in "ab"] == ["A for ", "A for "]
    assert len(done) == 2
    server, done = air("unknown", principal=lambda context: None)
    async with Client(server) as client:
        assert await call(client, order="1", flight="A") == "InvalidKey"
    assert done == []


def test_wrong_settings_are_refused() -> None:
    with closing(Boundary("settings", store="memory://", observers=[])) as boundary:
        with pytest.raises(ConfigurationError, match="principal=subject"):
            OnceTools(boundary, book="order")
        with pytest.raises(ConfigurationError, match="No tool"):
            OnceTools(boundary, principal="shared")
        OnceTools(boundary, principal="shared", book="order")
        with pytest.raises(ConfigurationError, match="belongs to"):
            OnceTools(boundary, principal="shared", book="order")


def _errors() -> list[BaseException]:
    kinds = [getattr(retrysafe, name) for name in retrysafe.__all__]
    ours = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, RetrysafeError | Postponed)]
    return [StoredFailure("Full", "no seats") if kind is StoredFailure else kind("a detail") for kind in ours]


@each_row("error", _errors(), ids=lambda error: type(error).__name__)
def test_every_error_tells_a_model_what_to_do(error: BaseException) -> None:
    text = texts.tell(error)
    assert "{" not in text
    repeats = "Call it again with exactly the same arguments in 1 s." in text
    assert not repeats or getattr(error, "retry_same_key", True), text
    assert repeats or "again" in text or "Nothing was done" in text or "same answer" in text, text


@each_row(
    "given, text, structured",
    [
        ("seat 9", "seat 9", {"result": "seat 9"}),
        (9, "9", {"result": 9}),
        ([1, "a"], '[1, "a"]', {"result": [1, "a"]}),
        ({"seat": 9}, '{"seat": 9}', {"seat": 9}),
        ({"content": "seat 9"}, '{"content": "seat 9"}', {"content": "seat 9"}),
        ({"content": [5]}, '{"content": [5]}', {"content": [5]}),
        ({"content": [{"type": "text", "text": "seat 9"}]}, "seat 9", None),
        ({"content": [], "_meta": 5}, '{"content": [], "_meta": 5}', {"content": [], "_meta": 5}),
        (Decimal("1.50"), "1.50", {"result": "1.50"}),
        (None, None, {"result": None}),
    ],
)
@each_row("by", ["boundary", "operator"])
async def test_a_call_that_a_person_settles_gives_a_result(
    tmp_path: Path, given: Any, text: str | None, structured: Any, by: str
) -> None:
    store = f"sqlite:///{tmp_path}/{uuid4()}.db"
    boundary = Boundary("air", store=store, effects="external", observers=[], codec=CheckedJSON())
    once = OnceTools(boundary, principal="shared", book="order")
    server: MCPServer = MCPServer("air", extensions=[once])

    async def book(order: str) -> Any:
        raise TimeoutError

    server.add_tool(book)
    async with Client(server) as client:
        assert await call(client, order="1") == "failed"
        if by == "boundary":
            assert boundary.resolve("1", "completed", result=given, operation="mcp book")
        else:
            with Operator(store, observers=()) as operator:
                (seen,) = operator.find(states=["unknown"])
                assert operator.resolve(seen, "completed", result=given).done
        again = await client.call_tool("book", {"order": "1"})
        assert [getattr(part, "text", "") for part in again.content] == ([] if text is None else [text])
        assert (again.is_error, again.structured_content) == (False, structured)
        assert (again.meta or {})["dev.retrysafe/replayed"] is True
        assert await call(client, order="2") == "failed"
    boundary.close()


@pytest.mark.slow
@pytest.mark.parametrize("effects", ["keyed", "external"])
async def test_a_server_that_is_killed_in_a_call(tmp_path: Path, effects: str) -> None:
    ledger = tmp_path / "ledger"
    command = (*AIR, str(ledger), f"sqlite:///{tmp_path / 'air.db'}", effects)
    async with spawned(tmp_path, *command) as client:
        assert await call(client, order="1", flight="A") == "ticket for A"
        with pytest.raises(MCPError, match="closed"):
            await call(client, order="2", flight="DIES")
    async with spawned(tmp_path, *command) as client:
        assert await call(client, order="1", flight="A") == "ticket for A"
        again = await call(client, order="2", flight="DIES")
        assert again == ("ticket for DIES" if effects == "keyed" else "OutcomeUnknown")
    lines = ledger.read_text().splitlines()
    assert len(lines) == (3 if effects == "keyed" else 2)
    assert len(set(lines)) == 2, "one key for each order"


async def test_a_guarded_tool_that_the_server_lacks_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    once = OnceTools(Boundary("misspelt", store="memory://"), principal="shared", book="order", boook="order")
    server = MCPServer("air", extensions=[once], middleware=[once])
    server.add_tool(lambda order: order, name="book")
    async with Client(server) as client:
        for _ in range(2):
            await client.list_tools()
    assert [text for text in caplog.messages if "guard" in text] == [
        "The server has no tool boook, so that its guard does nothing."
    ]
