"""The conformance fixture as an ASGI and as a WSGI application: put your layer around one, and run the runner on it.

Both keep calls and gates in the process, so a server runs them with one worker process (a WSGI server with at least
six threads). What they don't do themselves is offered by who wraps them: ``controls`` answers further control
requests, and ``effect`` is called with the id of each execution, to write it into the transaction of the layer.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from retrysafe.errors import ConfigurationError

LONGEST_WAIT = 30.0
"""Seconds after which a gate opens by itself."""
ASGI_FEATURES = frozenset({"gate", "stream", "raise", "hop", "background"})
WSGI_FEATURES = frozenset({"gate", "stream", "raise"})
_JSON = ("Content-Type", "application/json")

Control = Callable[[str], None]
Controls = Mapping[str, Control]
Lines = list[tuple[str, str]]


class AskedRequest(Exception):
    """The handler raises what its script told it to raise."""


class HandlerScript(NamedTuple):
    """The runner's instructions for the handler; the members are those of the fixture contract."""

    id: str = ""
    status: int = 200
    headers: Iterable[tuple[str, str]] = ()
    text: str | None = None
    base64: str | None = None
    repeat: int = 1
    gate: str = ""
    raises: str = ""
    stream: bool = False
    background: str = ""

    @classmethod
    def read(cls, header: str) -> HandlerScript:
        """Read the field ``Fixture-Script``; an empty one means the defaults."""
        told = json.loads(header or "{}")
        return cls(**{"raises" if name == "raise" else name: value for name, value in told.items()})

    def answer(self, body: bytes, content_type: str) -> tuple[Lines, bytes]:
        """Field lines and one piece of the body, given the request's."""
        lines = [(name, value) for name, value in self.headers]
        if self.base64 is not None:
            return lines, base64.b64decode(self.base64)
        if self.text is not None:
            return lines, self.text.encode()
        return [*lines, ("Content-Type", content_type)] if content_type else lines, body


class Gate:
    """Shut until it is opened, once and for all; threads and tasks wait at it."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._lock = threading.Lock()
        self._wakers: list[Callable[[], object]] = []

    def open(self) -> None:
        with self._lock:
            self._open.set()
            wakers, self._wakers = self._wakers, []
        for wake in wakers:
            wake()

    def wait(self) -> None:
        self._open.wait(LONGEST_WAIT)

    async def pass_through(self) -> None:
        loop, opened = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            if self._open.is_set():
                return
            self._wakers.append(lambda: loop.call_soon_threadsafe(opened.set))
        with suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_WAIT):
                await opened.wait()


class AppState:
    """Calls and gates, shared by all threads and loops of a process.

    Arguments:
        capabilities: The capability document without ``fixture``, as `Capabilities` reads it.
        controls: Further control requests by name (``elapse``, ``store``), called with the value of their parameter.
        effects: Counts the committed effects of an id; None if there is no database.
    """

    def __init__(
        self,
        capabilities: Mapping[str, Any],
        controls: Controls | None = None,
        effects: Callable[[str], int] | None = None,
    ) -> None:
        self._capabilities = {"fixture": 1, **capabilities}
        self._controls = dict(controls or {})
        self._effects = effects
        self._executions: Counter[str] = Counter()
        self._background: Counter[str] = Counter()
        self._gates: dict[str, Gate] = {}
        self._lock = threading.Lock()

    def run(self, script: HandlerScript, effect: Callable[[str], object] | None = None) -> None:
        """Do what comes before the response, in a thread: count, write the effect, wait at the gate, raise."""
        self._begin(script)
        if effect is not None:
            effect(script.id)
        if script.gate == "before":
            self.gate(script.id).wait()
        _raise("before", script)

    async def arun(self, script: HandlerScript, effect: Callable[[str], Awaitable[object]] | None = None) -> None:
        self._begin(script)
        if effect is not None:
            await effect(script.id)
        if script.gate == "before":
            await self.gate(script.id).pass_through()
        _raise("before", script)

    def pieces(self, script: HandlerScript, piece: bytes) -> Iterator[bytes]:
        """The body of a response that is streamed, in a thread."""
        for number in range(script.repeat):
            if number == 1 and script.gate == "between":
                self.gate(script.id).wait()
            if number == 1:
                _raise("between", script)
            yield piece

    async def apieces(self, script: HandlerScript, piece: bytes) -> AsyncIterator[bytes]:
        for number in range(script.repeat):
            if number == 1 and script.gate == "between":
                await self.gate(script.id).pass_through()
            if number == 1:
                _raise("between", script)
            yield piece

    def _begin(self, script: HandlerScript) -> None:
        with self._lock:
            self._executions[script.id] += 1

    def work_after(self, script: HandlerScript) -> None:
        """The work in the background: counted; raises if told to."""
        with self._lock:
            self._background[script.id] += 1
        if script.background == "raise":
            raise AskedRequest("told to raise after the response")

    def gate(self, id: str) -> Gate:
        with self._lock:
            return self._gates.setdefault(id, Gate())

    def control(self, path: str, query: str) -> tuple[int, bytes]:
        """Answer a control request; ``path`` is what comes after ``/fixture``."""
        name = path.strip("/")
        value = next((value for _, value in parse_qsl(query)), "")
        if name == "":
            return _answer(self._capabilities)
        if name == "calls":
            return _answer(self._calls(value))
        if name == "release":
            self.gate(value).open()
        elif name == "reset":
            self._reset()
        elif name not in self._controls:
            return 404, b"{}"
        if name in self._controls:
            self._controls[name](value)
        return _answer({})

    def _calls(self, id: str) -> dict[str, int]:
        with self._lock:
            counted = {"executions": self._executions[id], "background": self._background[id]}
        return counted if self._effects is None else {**counted, "effects": self._effects(id)}

    def _reset(self) -> None:
        with self._lock:
            self._executions.clear()
            self._background.clear()
            gates = list(self._gates.values())
        for gate in gates:
            gate.open()


def _raise(where: str, script: HandlerScript) -> None:
    if script.raises == where:
        raise AskedRequest(f"told to raise {where} the response")


def _answer(value: Any) -> tuple[int, bytes]:
    return 200, json.dumps(value).encode()


# ---------------------------------------------------------------- ASGI

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
AsgiApp = Callable[[Any, Receive, Send], Awaitable[None]]


def asgi(
    capabilities: Mapping[str, Any],
    *,
    controls: Controls | None = None,
    effect: Callable[[str], Awaitable[None]] | None = None,
    effects: Callable[[str], int] | None = None,
) -> AsgiApp:
    """The fixture as an ASGI application.

    Arguments:
        capabilities: The capability document without ``fixture``; `ASGI_FEATURES` are those of this application.
        controls: Further control requests by name, called with the value of their query parameter.
        effect: Writes an effect for an id into the transaction of the layer.
        effects: Counts the committed effects of an id.
    """
    return asgi_on(AppState(capabilities, controls, effects), effect)


def asgi_on(state: AppState, effect: Callable[[str], Awaitable[None]] | None = None) -> AsgiApp:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise ConfigurationError(f"the fixture speaks HTTP, not {scope['type']}")
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if path == "/fixture" or path.startswith("/fixture/"):
            query = scope["query_string"].decode()
            status, body = await asyncio.to_thread(state.control, path.removeprefix("/fixture"), query)
            await _send(send, status, [_JSON], [body], scope["method"])
        else:
            await _act(state, effect, scope, receive, send)

    return app


async def _lifespan(receive: Receive, send: Send) -> None:
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})


async def _act(state: AppState, effect: Any, scope: Any, receive: Receive, send: Send) -> None:
    fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    script = HandlerScript.read(fields.get("fixture-script", ""))
    body = await _body(receive)
    await state.arun(script, effect)
    lines, piece = script.answer(body, fields.get("content-type", ""))
    if script.stream:
        await _stream(send, script, lines, state.apieces(script, piece))
    else:
        await _send(send, script.status, lines, [piece * script.repeat], scope["method"])
    if script.background:
        state.work_after(script)


async def _body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


async def _stream(send: Send, script: HandlerScript, lines: Lines, pieces: AsyncIterator[bytes]) -> None:
    await send(_start(script.status, lines))
    async for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send(send: Send, status: int, lines: Lines, body: list[bytes], method: str) -> None:
    whole = b"" if status in (204, 304) else b"".join(body)
    length = [] if status in (204, 304) else [("Content-Length", str(len(whole)))]
    await send(_start(status, [*lines, *length]))
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else whole})


def _start(status: int, lines: Lines) -> dict[str, Any]:
    fields = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in lines]
    return {"type": "http.response.start", "status": status, "headers": fields}


# ---------------------------------------------------------------- WSGI

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def wsgi(
    capabilities: Mapping[str, Any],
    *,
    controls: Controls | None = None,
    effect: Callable[[str], None] | None = None,
    effects: Callable[[str], int] | None = None,
) -> WsgiApp:
    """The fixture as a WSGI application; the arguments are those of `asgi`, and `WSGI_FEATURES` its features."""
    return wsgi_on(AppState(capabilities, controls, effects), effect)


def wsgi_on(state: AppState, effect: Callable[[str], None] | None = None) -> WsgiApp:
    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/fixture" or path.startswith("/fixture/"):
            status, body = state.control(path.removeprefix("/fixture"), environ.get("QUERY_STRING", ""))
            start_response(f"{status} -", [_JSON, ("Content-Length", str(len(body)))])
            return [body]
        return _act_in_wsgi(state, effect, environ, start_response)

    return app


def _act_in_wsgi(
    state: AppState, effect: Any, environ: dict[str, Any], start_response: Callable[..., Any]
) -> Iterable[bytes]:
    script = HandlerScript.read(environ.get("HTTP_FIXTURE_SCRIPT", ""))
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    state.run(script, effect)
    lines, piece = script.answer(body, environ.get("CONTENT_TYPE", ""))
    bodyless = script.status in (204, 304)
    if script.stream:
        start_response(f"{script.status} -", lines)
        return state.pieces(script, piece)
    whole = b"" if bodyless else piece * script.repeat
    start_response(f"{script.status} -", lines if bodyless else [*lines, ("Content-Length", str(len(whole)))])
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [whole]
