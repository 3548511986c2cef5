"""A client and a server for ASGI applications without sockets: every message is the test's own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

Message = MutableMapping[str, Any]


@dataclass
class Exchanged:
    """The answers over one connection."""

    messages: list[Message] = field(default_factory=list)

    @property
    def started(self) -> list[Message]:
        return [message for message in self.messages if message["type"] == "http.response.start"]

    @property
    def status(self) -> int:
        assert len(self.started) == 1, f"{len(self.started)} responses"
        return int(self.started[0]["status"])

    @property
    def lines(self) -> list[tuple[str, str]]:
        return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in self.started[0]["headers"]]

    def header(self, name: str) -> str | None:
        found = [value for field, value in self.lines if field == name]
        assert len(found) <= 1
        return found[0] if found else None

    @property
    def bodies(self) -> list[Message]:
        return [message for message in self.messages if message["type"] == "http.response.body"]

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.bodies)

    @property
    def complete(self) -> bool:
        return bool(self.bodies) and not self.bodies[-1].get("more_body", False)

    @property
    def replayed(self) -> bool:
        return self.header("idempotent-replayed") == "true"

    @property
    def code(self) -> str:
        assert self.header("content-type") == "application/problem+json", (self.lines, self.body)
        return str(json.loads(self.body)["code"])


class Connection:
    """One request to an application, as a server would carry it."""

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        key: str | None = None,
        *,
        method: str = "POST",
        path: str = "/orders",
        query: bytes = b"",
        headers: Iterable[tuple[str, str]] = (),
        body: bytes | Iterable[bytes] = b"{}",
        leaves_after: int | None = None,
        **scope: Any,
    ) -> None:
        self.app = app
        self.answer = Exchanged()
        self.left = asyncio.Event()
        self.gone: Exception = OSError("the client has gone")
        self.sent = asyncio.Event()
        self.on_send: Callable[[Message], Awaitable[None] | None] | None = None
        self.chunks = [body] if isinstance(body, bytes) else list(body)
        self.leaves_after = leaves_after
        self.reads = 0
        lines = [*headers, *([] if key is None else [("idempotency-key", key)])]
        if not any(name == "content-type" for name, _ in lines):
            lines.append(("content-type", "application/json"))
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": "http",
            "server": ("test", 80),
            "client": ("client", 1),
            "root_path": "",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query,
            "headers": [(name.encode(), value.encode()) for name, value in lines],
            **scope,
        }

    async def receive(self) -> Message:
        self.reads += 1
        if self.leaves_after is not None and self.reads > self.leaves_after:
            self.left.set()
        if self.left.is_set() and (self.leaves_after is not None or self.reads > len(self.chunks)):
            return {"type": "http.disconnect"}
        if self.reads <= len(self.chunks):
            chunk = self.chunks[self.reads - 1]
            return {"type": "http.request", "body": chunk, "more_body": self.reads < len(self.chunks)}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self.left.is_set():
            raise self.gone
        if self.on_send is not None:
            waited = self.on_send(message)
            if waited is not None:
                await waited
        self.answer.messages.append(message)
        self.sent.set()

    async def until(self, enough: Callable[[], bool]) -> None:
        """Wait until what was sent is enough."""
        while not enough():
            self.sent.clear()
            await self.sent.wait()

    async def run(self) -> Exchanged:
        await self.app(self.scope, self.receive, self.send)
        return self.answer


async def post(app: Callable[..., Awaitable[None]], key: str | None = "k", **request: Any) -> Exchanged:
    """One request, to its end."""
    return await Connection(app, key, **request).run()
