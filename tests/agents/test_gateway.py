"""The gateway in front of an MCP server that does not know of it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from retrysafe.cli import main
from tests.agents.calling import AIR, GATEWAY, call, spawned
from tests.processes import environment
from tests.tables import each_row

pytestmark = pytest.mark.slow


def _command(folder: Path, *options: str, server: tuple[str, ...] = (sys.executable, *AIR)) -> list[str]:
    guard = ("--name", "air", "--guard", "book=order", "--principal", "shared", *options)
    return [*GATEWAY, "--store", f"sqlite:///{folder / 'air.db'}", *guard, "--", *server, str(folder / "ledger")]


@pytest.mark.parametrize(("mode", "effects"), [("auto", "keyed"), ("legacy", "external")])
async def test_each_intent_has_its_effect_once(tmp_path: Path, mode: str, effects: str) -> None:
    again = {"keyed": "failed", "external": "OutcomeUnknown"}[effects]
    async with spawned(tmp_path, *_command(tmp_path, "--effects", effects), mode=mode) as client:
        hints = {tool.name: tool.annotations for tool in (await client.list_tools()).tools}
        assert hints["book"] is not None
        assert hints["book"].idempotent_hint is True
        assert hints["look"] is None
        for expected, arguments in (
            ("ticket for A", {"order": "1", "flight": "A"}),
            ("ticket for A", {"order": "1", "flight": "A"}),
            ("KeyReused", {"order": "1", "flight": "B"}),
            ("failed", {"order": "2", "flight": "FULL"}),
            (again, {"order": "2", "flight": "FULL"}),
            ("failed", {"order": "3", "flight": {}}),
            ("ticket for A", {"order": "3", "flight": "A"}),
            ("InvalidKey", {"flight": "A"}),
            ({"keyed": "LeaseLost", "external": "OutcomeUnknown"}[effects], {"order": "4", "flight": "DIES"}),
            ("ticket for A", {"order": "1", "flight": "A"}),
            ({"keyed": "ticket for DIES", "external": "OutcomeUnknown"}[effects], {"order": "4", "flight": "DIES"}),
        ):
            assert await call(client, **arguments) == expected, arguments
        assert await call(client, "look", flight="A") == "A has seats", "the server was started again"
    orders = [line.split()[0] for line in (tmp_path / "ledger").read_text().splitlines()]
    assert orders == (["1", "2", "2", "3", "4", "4"] if effects == "keyed" else ["1", "2", "3", "4"])


async def test_a_call_that_its_client_has_given_up_is_let_finish(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    async with spawned(tmp_path, *_command(tmp_path)) as client:
        impatient = asyncio.create_task(call(client, order="1", flight="SLOW"))
        while not ledger.exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.01)
        assert await call(client, order="1", flight="SLOW") == "InProgress"
        impatient.cancel()
        ledger.with_suffix(".gate").touch()
        while (again := await call(client, order="1", flight="SLOW")) == "InProgress":  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
        assert again == "ticket for SLOW"
    assert len(ledger.read_text().splitlines()) == 1


async def test_a_call_that_an_operator_settles_gives_a_result_and_does_not_end_the_gateway(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'air.db'}"
    async with spawned(tmp_path, *_command(tmp_path, "--effects", "external")) as client:
        for order, result, expected in (
            ("1", '"seat 9"', "seat 9"),
            ("2", '{"$": ["decimal", "1.5"]}', "1.5"),
            ("3", '{"$": ["object", "Seat", {}]}', "ResultUnreadable"),
        ):
            assert await call(client, order=order, flight="FULL") == "failed"
            asked = ("keys", "resolve", order, "--store", store, "--as", "completed", "--result", result)
            assert await asyncio.to_thread(main, asked) == 0
            assert await call(client, order=order, flight="FULL") == expected
        assert await call(client, order="4", flight="A") == "ticket for A"


class Pipe:
    """A gateway without a client: lines are written and read."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def tell(self, message: Any) -> None:
        """Write a line: text as it is, anything else as JSON."""
        assert self.process.stdin is not None
        line = message if isinstance(message, str) else json.dumps(message)
        self.process.stdin.write(line.encode() + b"\n")
        await self.process.stdin.drain()

    async def hear(self) -> Any:
        """The next line; None at the end."""
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        return json.loads(line) if line else None

    async def ask(self, method: str, id_: Any = 1, **params: Any) -> Any:
        """The reply to a request."""
        await self.tell({"jsonrpc": "2.0", "id": id_, "method": method, "params": params})
        return await self.hear()


ECHO = """
import json, os, sys, time
for line in sys.stdin:
    message = json.loads(line) if line.startswith("{") else None
    method = message and message.get("method")
    params = message and message.get("params") or {}
    with open(sys.argv[1], "a") as seen:
        print(line.strip() if message is None else method, params.get("_meta", ""), file=seen)
    while params.get("arguments", {}).get("slow") and not os.path.exists(sys.argv[1] + ".gate"):
        time.sleep(0.01)
    if method == "die":
        sys.exit(3)
    if method == "tools/call" and params["arguments"].get("error"):
        print(json.dumps({"id": message["id"], "error": params["arguments"]["error"]}), flush=True)
    elif method == "tools/call" and params["arguments"].get("silent") and not os.path.exists(sys.argv[1] + ".silent"):
        open(sys.argv[1] + ".silent", "w").close()
    elif message and "id" in message:
        print(json.dumps({"id": message["id"], "result": {"content": [], "method": method}}), flush=True)
"""


async def _started(folder: Path, *options: str) -> Pipe:
    command = _command(folder, *options, server=(sys.executable, "-c", ECHO))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdin=pipe, stdout=pipe, env=environment(), limit=1 << 22
    )
    return Pipe(process)


async def test_messages_pass_as_they_are(tmp_path: Path) -> None:
    gateway = await _started(tmp_path, "--effects", "keyed")
    assert (await gateway.ask("initialize", id_="retrysafe"))["id"] == "retrysafe"
    await gateway.tell({"method": "notifications/initialized"})
    await gateway.tell("this is no message")
    assert (await gateway.ask("x", id_=7, big="x" * 1_000_000))["result"] == {"content": [], "method": "x"}
    assert (await gateway.ask("tools/call", name="book", arguments=[]))["error"]["code"] == -32000, "the server fell"
    assert (await gateway.tell([{"method": "x"}]), (await gateway.hear())["error"]["code"]) == (None, -32600)
    for code, then in ((-32602, {"error": None}), (-32603, {})):  # refused arguments are corrected; a failure is not
        arguments = {"order": code, "error": {"code": code, "message": "m"}}
        assert (await gateway.ask("tools/call", name="book", arguments=arguments))["error"]["code"] == code
        again = await gateway.ask("tools/call", name="book", arguments={**arguments, **then})
        assert again.get("result", {}).get("method", again.get("error")) in ("tools/call", arguments["error"])
    await gateway.tell({"id": 9, "method": "die"})
    assert (await gateway.hear())["error"]["code"] == -32000
    assert "result" in await gateway.ask("x")
    gateway.process.stdin.close()  # type: ignore[union-attr]
    assert await gateway.process.wait() == 0
    seen = (tmp_path / "ledger").read_text().splitlines()
    methods = [line.partition(" {")[0].strip() for line in seen]
    greeting = ["initialize", "notifications/initialized"]
    assert methods[:5] == [*greeting, "this is no message", "x", "tools/call"]
    assert methods[-3:] == [*greeting, "x"], "a server that is started again is greeted by the client"
    keys = [line.partition(" {")[2] for line in seen if "idempotencyKey" in line]
    assert len(keys) == 4
    assert len(set(keys)) == 2, "each intent has one key"


@each_row("effects, expected", [("keyed", None), ("external", "OutcomeUnknown")])
async def test_a_gateway_that_is_told_to_end(tmp_path: Path, effects: str, expected: str | None) -> None:
    params = {"name": "book", "arguments": {"order": "1", "silent": True}}
    gateway = await _started(tmp_path, "--effects", effects)
    await gateway.tell({"id": 1, "method": "tools/call", "params": params})
    while not (tmp_path / "ledger.silent").exists():  # noqa: ASYNC110 - the server makes it when it has the call
        await asyncio.sleep(0.01)
    gateway.process.send_signal(signal.SIGTERM)
    ended = await gateway.hear()
    assert ended["id"] == 1
    assert ended["result"]["isError"]
    assert await gateway.process.wait() == 0
    gateway = await _started(tmp_path, "--effects", effects)
    again = await gateway.ask("tools/call", **params)
    assert again["result"].get("_meta", {}).get("dev.retrysafe/error") == expected
    gateway.process.stdin.close()  # type: ignore[union-attr]
    await gateway.process.wait()


async def test_a_client_that_dies_leaves_its_call_to_be_answered(tmp_path: Path) -> None:
    gateway, ledger = await _started(tmp_path), tmp_path / "ledger"
    params = {"name": "book", "arguments": {"order": "1", "slow": True}}
    await gateway.tell({"id": 1, "method": "tools/call", "params": params})
    while not ledger.exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.01)
    transport: Any = gateway.process.stdout._transport  # type: ignore[union-attr]
    transport.close()
    gateway.process.stdin.close()  # type: ignore[union-attr]
    (tmp_path / "ledger.gate").touch()
    assert await gateway.process.wait() == 0
    gateway = await _started(tmp_path)
    assert (await gateway.ask("tools/call", **params))["result"]["_meta"] == {"dev.retrysafe/replayed": True}
    gateway.process.stdin.close()  # type: ignore[union-attr]
    await gateway.process.wait()
    assert ledger.read_text().count("tools/call") == 1


def test_wrong_options_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ("--store", f"sqlite:///{tmp_path / 'air.db'}")
    for arguments, expected in (
        ((*store, "--name", "air", "--guard", "book", "--", "server"), "--principal"),
        ((*store, "--name", "air", "--principal", "shared", "--", "server"), "--guard"),
        ((*store, "--name", "air", "--guard", "book", "--principal", "shared"), "COMMAND"),
    ):
        with pytest.raises(SystemExit):
            main(["gateway", "mcp", *arguments])
        assert expected in capsys.readouterr().err
