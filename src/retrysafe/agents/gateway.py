"""A guard in front of an MCP server that cannot be changed, over stdio: one JSON-RPC message a line, both ways.

Calls of guarded tools get ids of the gateway's own and are done in a claim; every other message passes as it is, but
for the hints of guarded tools in tools/list. If the server ends, every open request is answered, and the next message
starts it again, with the client's own initialize before it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from retrysafe.agents.tool_calls import META, ProtocolError, Result, ToolCalls
from retrysafe.boundary import Boundary
from retrysafe.claims.claim import current
from retrysafe.claims.key_spaces import origin_of_caller
from retrysafe.errors import ConfigurationError, LeaseLost, OutcomeUnknown

Message = dict[str, Any]
LONGEST_LINE = 64 << 20
"""Bytes of a message."""
_ENDED = "The server ended during this request, which may have been done."
_OWN = "retrysafe-"


class Gateway:
    """Stands between a client, on standard input and output, and a server, which it starts.

    Arguments:
        boundary: the boundary that does each call once.
        tools: each guarded tool with the argument that names the intent, or None if only ``_meta`` has a key.
        command: the server and its arguments.
        principal: the one user whose calls these are, or "shared".
    """

    def __init__(
        self, boundary: Boundary, tools: Mapping[str, str | None], command: Sequence[str], principal: str
    ) -> None:
        self._calls = ToolCalls(boundary, tools, self, origin_of_caller(1))
        self._boundary, self._command, self._principal = boundary, command, principal
        self._server: Process | None = None
        self._stops = False
        """True after SIGTERM: a server that has ended is not started again."""
        self._starting = asyncio.Lock()
        self._numbers = count()
        self._greeting: list[Message] = []
        """The messages with which the client has begun: a server that is started again gets them too."""
        self._awaited: dict[str, asyncio.Future[Message]] = {}
        """Replies to requests of our own, by their ids."""
        self._passed: dict[Any, str] = {}
        """The methods of the client's requests that are open and not guarded, by their ids."""
        self._guarded: dict[Any, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Serve until the client closes its end, or SIGTERM; then the server has ended, and every claim is left."""
        loop, reader = asyncio.get_running_loop(), StreamReader(LONGEST_LINE)
        source, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        output = os.fdopen(os.dup(sys.stdout.fileno()), "wb", 0)  # a transport closes what it is given
        sink, flow = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, output)
        self._client = StreamWriter(sink, flow, None, loop)
        async with asyncio.TaskGroup() as self._tasks:
            await self._start()

            def stop() -> None:
                self._stops = True
                source.close()
                if self._server is not None:
                    self._server.terminate()

            loop.add_signal_handler(signal.SIGTERM, stop)
            while line := await reader.readline():
                await self._take(line)
            await asyncio.gather(*self._guarded.values(), return_exceptions=True)
            if self._server is not None and self._server.stdin is not None:
                self._server.stdin.close()

    # ------------------------------------------------------------ the client

    async def _take(self, line: bytes) -> None:
        message = _parsed(line)
        method, id_, params = message.get("method"), message.get("id"), message.get("params")
        params = params if isinstance(params, dict) else {}
        if "batch" in message:
            error = {"code": -32600, "message": "Nothing was done: a batch cannot be guarded. Send its messages alone."}
            await self._answer(None, error=error)
        elif method == "tools/call" and id_ is not None and self._guards(params):
            task = self._guarded[id_] = self._tasks.create_task(self._guard(id_, message, params))
            task.add_done_callback(lambda _: self._guarded.pop(id_, None))
        elif method == "notifications/cancelled" and (guarded := self._guarded.get(params.get("requestId"))):
            guarded.cancel()
        else:
            if method is not None and id_ is not None:
                self._passed[id_] = method
            with suppress(LeaseLost):  # then the request is answered with the others that the server has left
                await self._send(line)
            if method == "initialize":
                self._greeting = [message]
            elif method == "notifications/initialized":
                self._greeting.append(message)

    def _guards(self, params: Message) -> bool:
        return str(params.get("name")) in self._calls.tools and isinstance(params.get("arguments", {}), dict)

    async def _guard(self, id_: Any, message: Message, params: Message) -> None:
        meta = params.get("_meta") or {}

        async def call() -> Result:
            if self._boundary.effects == "keyed":
                params["_meta"] = {**meta, META: current().key_for("mcp")}
            try:
                reply = await self._ask(message, self._send)
            except LeaseLost as ended:
                raise OutcomeUnknown(ended.detail) if self._boundary.effects == "external" else ended from None
            if not isinstance(reply.get("result"), dict):
                raise ProtocolError(reply.get("error") or {"code": -32603, "message": "The reply has no result."})
            result: Result = reply["result"]
            return result

        arguments = params.get("arguments", {})
        try:
            result = await self._calls.run(params["name"], arguments, meta, self._principal, call)
        except ProtocolError as error:
            await self._answer(id_, error=error.error)
        else:
            await self._answer(id_, result=result)

    async def _answer(self, id_: Any, **answer: Any) -> None:
        await self._tell(_line({"jsonrpc": "2.0", "id": id_, **answer}))

    async def _tell(self, line: bytes) -> None:
        with suppress(ConnectionError):  # the client is gone, and what is under way comes to its end all the same
            self._client.write(line)
            await self._client.drain()

    # ------------------------------------------------------------ the server

    async def _start(self) -> None:
        try:
            self._server = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, limit=LONGEST_LINE
            )
        except OSError as error:
            raise ConfigurationError(f"The server {self._command[0]!r} cannot be started: {error}.") from error
        self._tasks.create_task(self._listen(self._server))

    async def _send(self, line: bytes) -> None:
        """Hand a message to the server, which is started again if it has ended; raises `LeaseLost` if it ends now."""
        async with self._starting:
            if self._server is None and not self._stops:
                await self._start()
                for message in self._greeting:
                    if "id" in message:
                        await self._ask(message, self._write)  # the client has the answer to it
                    else:
                        await self._write(_line(message))
        await self._write(line)

    async def _write(self, line: bytes) -> None:
        if self._server is None or self._server.stdin is None:
            raise LeaseLost(_ENDED)
        try:
            self._server.stdin.write(line)
            await self._server.stdin.drain()
        except ConnectionError as error:
            raise LeaseLost(_ENDED) from error

    async def _ask(self, message: Message, send: Callable[[bytes], Awaitable[None]]) -> Message:
        """The reply to a request that is sent under an id of our own; raises `LeaseLost` if the server ends."""
        reply = asyncio.get_running_loop().create_future()
        own = f"{_OWN}{next(self._numbers)}"
        self._awaited[own] = reply
        try:
            await send(_line({**message, "id": own}))
            found: Message = await reply
            return found
        finally:
            del self._awaited[own]

    async def _listen(self, server: Process) -> None:
        assert server.stdout is not None
        try:
            while line := await server.stdout.readline():
                message = _parsed(line)
                id_ = None if "method" in message else message.get("id")
                if str(id_).startswith(_OWN):
                    if (reply := self._awaited.get(str(id_))) is not None and not reply.done():
                        reply.set_result(message)
                    continue
                if self._passed.pop(id_, None) == "tools/list" and "result" in message:
                    self._calls.annotate(message["result"])
                    line = _line(message)
                await self._tell(line)
            await server.wait()
        finally:
            self._server = None
            for reply in self._awaited.values():
                if not reply.done():
                    reply.set_exception(LeaseLost(_ENDED))
        passed, self._passed = self._passed, {}
        for id_ in passed:
            await self._answer(id_, error={"code": -32000, "message": _ENDED})


def _parsed(line: bytes) -> Message:
    """The message of a line, with nothing in it for what is no message and passes as it is."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {"batch": found} if isinstance(found, list) else {}


def _line(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
