"""Serves a console by itself, with uvicorn: to this machine alone, unless there is an authenticator."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterable
from typing import Any

import uvicorn

from retrysafe.console.access import Access, Local, is_loopback
from retrysafe.console.app import Console
from retrysafe.console.security import LOOPBACK
from retrysafe.errors import ConfigurationError


def serve(
    store: Any,
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    rights: Iterable[str] = (),
    access: Access | None = None,
    names: Iterable[str] = (),
    told: Callable[[str], None] = lambda url: None,
    **options: Any,
) -> None:
    """Serve until SIGTERM or SIGINT; ``told`` is called with the address before the first request is taken.

    Without ``access`` every client that reaches it is the user of this machine, with ``rights``; so it is served to
    this machine alone. ``names`` are further names that a request's Host header may have.

    Raises `ConfigurationError` for another address without ``access``, and if the address cannot be bound.
    """
    if access is None and not is_loopback(host):
        raise ConfigurationError(
            f"--host {host} can be reached from other machines, and the console does not know who asks: give --access, "
            "or mount the console behind the authentication of your application."
        )
    if access is not None and (rights := tuple(rights)):
        raise ConfigurationError("--allow is for the user of this machine: with --access, the rights come from there.")
    console = Console(store, access=access or Local(*rights), hosts=(*LOOPBACK, host, *names), **options)
    config = uvicorn.Config(
        console, log_level="warning", access_log=False, server_header=False, lifespan="off", proxy_headers=False
    )
    with _bind(host, port) as listening:
        name = f"[{host}]" if ":" in host else host
        told(f"http://{name}:{listening.getsockname()[1]}/")
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)  # uvicorn hands them on when it has stopped
        try:
            uvicorn.Server(config).run(sockets=[listening])
        finally:
            console.close()


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen()  # so that a browser which is told the address waits, and is not refused
    except OSError as error:
        made.close()
        raise ConfigurationError(f"--host {host} --port {port}: {error.strerror}.") from error
    return made
