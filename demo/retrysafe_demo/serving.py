"""A worker that serves its lane's API with uvicorn, on the socket that the lane's four workers share.

Why not ``uvicorn --workers 4``: its supervisor takes a worker that is stopped for a broken one, waits seconds for its
sign of life, restarts no other meanwhile, and then kills it. Here stopped workers must come back, and are not to be
killed but by the schedule. All else is the same: one listening socket, and four processes that accept from it.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import MutableMapping
from typing import Any

import uvicorn

from retrysafe.http.asgi import App, Message, Receive, Scope, Send
from retrysafe_demo import api, lanes
from retrysafe_demo.client import ATTEMPT, FAULT, Bank, mishaps
from retrysafe_demo.lanes import Lane, Setting
from retrysafe_demo.schedule import Fault
from retrysafe_demo.scheduled import Scheduled, Telling, hear, say_ready


def prepare() -> None:
    """Import what uvicorn imports late, so that a forked worker need not."""
    _config(api.unsafe(lanes.bare(Bank(0)))).load()


def serve(setting: Setting) -> None:
    """Serve until the coordinator hangs up, then finish what was begun."""
    gates = Gates()
    server = Server(_config(Stage(_application(setting), gates)))
    threading.Thread(target=_listen, args=(server, gates), daemon=True).start()
    server.run(sockets=[socket.socket(fileno=setting.listener)])


def _config(app: Any) -> uvicorn.Config:
    """Standard output belongs to the coordinator: uvicorn must not log there."""
    return uvicorn.Config(app, log_config=None, access_log=False, ws="none", lifespan="on")


def _application(setting: Setting) -> App:
    bank, keys = Bank(setting.bank_port), setting.bank_has_keys
    if setting.lane == Lane.UNSAFE:
        return api.unsafe(lanes.bare(bank))
    if setting.lane == Lane.NAIVE:
        return api.naive(lanes.bare(bank), setting.keys_file)
    payments = lanes.boundary(setting.store, run=setting.run, bank_has_keys=keys, observers=[Telling()])
    return api.retrysafe(lanes.guarded(bank, bank_has_keys=keys), payments)


class Server(uvicorn.Server):
    """Tells the coordinator when it serves."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        await super().startup(sockets)
        say_ready()


class Gates:
    """Attempts that stand before the charge, until the coordinator lets them go on."""

    def __init__(self) -> None:
        self._gates: dict[int, threading.Event] = {}
        self._turn = threading.Lock()
        self._all_open = False

    def wait(self, number: int) -> None:
        """Hold the attempt in its thread."""
        self._gate(number).wait()

    def open(self, number: int) -> None:
        """Let it go on, also if it comes only now."""
        self._gate(number).set()

    def open_all(self) -> None:
        """Hold nobody any more."""
        with self._turn:
            self._all_open = True
            for gate in self._gates.values():
                gate.set()

    def _gate(self, number: int) -> threading.Event:
        with self._turn:
            gate = self._gates.setdefault(number, threading.Event())
            if self._all_open:
                gate.set()
            return gate


def _listen(server: Server, gates: Gates) -> None:
    """Open gates, and end the server when the coordinator has hung up."""
    while (message := hear()) is not None:
        gates.open(message["go"])
    gates.open_all()
    server.should_exit = True


class Stage:
    """Around the whole application: lets happen to each request what its fields say."""

    def __init__(self, app: App, gates: Gates) -> None:
        self._app = app
        self._gates = gates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        fields = {name.decode(): value.decode() for name, value in scope["headers"]}
        fault = fields.get(FAULT.lower())
        scheduled = Scheduled(int(fields[ATTEMPT.lower()]), Fault[fault] if fault else None, self._gates.wait)
        mishaps.set(scheduled)

        async def sending(message: Message) -> None:
            if _is_success(message):
                scheduled.before_answer()
            await send(message)

        await self._app(scope, receive, sending)


def _is_success(message: MutableMapping[str, Any]) -> bool:
    return bool(message["type"] == "http.response.start" and message["status"] < 300)
