"""Serves a gateway with uvicorn: its sockets, its workers, and how it stops."""

from __future__ import annotations

import functools
import os
import signal
import socket
import tempfile
from collections.abc import Callable
from contextlib import ExitStack

import uvicorn
from uvicorn.supervisors import Multiprocess

from retrysafe.errors import ConfigurationError
from retrysafe.gateway.app import Gateway
from retrysafe.gateway.metrics import DIRECTORY
from retrysafe.gateway.protocol import Protocol
from retrysafe.gateway.settings import Address, Settings

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_BACKLOG = 2048
_PATIENCE_WITH_WORKERS = 15
"""Seconds after which a worker that gives no sign is replaced: more than it takes to start on a busy machine."""


class _Workers(Multiprocess):
    """Workers of uvicorn's, whose sockets are closed by all when they stop."""

    def terminate_all(self) -> None:
        """Stop them; what still came to a socket that we hold would wait for nobody until the last one has ended."""
        for one in self.sockets:
            one.close()
        super().terminate_all()


def serve(settings: Settings, told: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; ``told`` is called with each address before the first request is taken.

    Then no connection is accepted any more, running requests get ``grace`` seconds, and what is cut is recorded as its
    effects want it. A worker that dies is replaced. Raises `ConfigurationError` if an address cannot be bound.
    """
    with ExitStack() as stack:
        listening = [_bound(settings.listen, "listen")]
        if settings.admin is not None:
            listening.append(_bound(settings.admin, "admin"))
        for one in listening:
            stack.enter_context(one)
        admin_port = listening[1].getsockname()[1] if settings.admin is not None else None
        for one, what in zip(listening, ("serving", "admin"), strict=False):
            told(f"{what:<13}http://{_shown(one)}")
        if settings.workers > 1:
            os.environ[DIRECTORY] = stack.enter_context(tempfile.TemporaryDirectory(prefix="retrysafe-gateway-"))
        config = uvicorn.Config(
            functools.partial(Gateway, settings, admin_port=admin_port),
            factory=True,
            workers=settings.workers,
            lifespan="on",
            http=Protocol,
            ws="none",
            access_log=False,
            log_level="error",
            proxy_headers=False,
            server_header=False,
            date_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=max(1, round(settings.grace)),
            timeout_worker_healthcheck=_PATIENCE_WITH_WORKERS,
        )
        if settings.workers > 1:
            _Workers(config, sockets=listening).run()
        else:
            _run(uvicorn.Server(config), listening)


def _run(server: uvicorn.Server, listening: list[socket.socket]) -> None:
    """Serve in this process; a signal that stopped it in good order is no reason to die of it afterwards."""
    before = [signal.signal(number, lambda *_: None) for number in _SIGNALS]
    try:
        server.run(listening)
    finally:
        for number, handler in zip(_SIGNALS, before, strict=True):
            signal.signal(number, handler)


def _bound(address: Address, name: str) -> socket.socket:
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(_BACKLOG)
        made.set_inheritable(True)
    except OSError as error:
        made.close()
        raise ConfigurationError(f"{name} {host}:{port}: {error.strerror or error}.") from error
    return made


def _shown(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
