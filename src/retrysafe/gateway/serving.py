"""Starts a gateway: reads its settings, says what it promises, and serves with uvicorn.

Settings come from the command line, a file, the environment and the upstream's OpenAPI document.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import os
import signal
import socket
import tempfile
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import URLError

import uvicorn
from uvicorn.supervisors import Multiprocess

from retrysafe.backends.urls import without_password
from retrysafe.errors import ConfigurationError, StoreMisconfigured, StoreUnavailable
from retrysafe.gateway.app import Gateway
from retrysafe.gateway.config import Loaded, load
from retrysafe.gateway.guards import GuardedRoute, Guards
from retrysafe.gateway.metrics import DIRECTORY
from retrysafe.gateway.openapi import routes_of
from retrysafe.gateway.protocol import Protocol
from retrysafe.gateway.settings import Address, Claims, Settings, TrustedHeader
from retrysafe.gateway.tables import address

PROMISES = {
    "external": "sent once; if its answer is lost, the key is unknown until it is settled",
    "keyed": "sent again after a lost answer, with the same derived key: once, if the upstream recognises keys",
}
PASSED_BY = "a route that requires keys is passed by /path/, /Path and /path;x, if the service takes them for /path"


def summary(settings: Settings, guards: Guards) -> Iterator[str]:
    """Line by line: where, whose, and what a retry of each route can rely on."""
    yield f"upstream     {without_password(settings.upstream)}"
    yield f"store        {guards.boundary.entrypoint.address}"
    yield f"boundary     {settings.name}"
    yield f"principal    {_principal(settings)}"
    yield f"workers      {settings.workers}, {settings.grace:g} s to finish when stopped"
    yield "routes       the first that matches counts"
    for one in guards.all[:-1]:
        yield from _route(one, one.route.match)
    yield from _route(guards.defaults, f"all others ({', '.join(sorted(guards.defaults.guard.policy.methods))})")
    if guards.defaults.route.key != "required" and any(one.route.key == "required" for one in guards.all):
        yield f"warning      {PASSED_BY}"


def _route(one: GuardedRoute, where: str) -> Iterator[str]:
    route, guard = one
    if route.key == "off":
        yield f"  {where}: not guarded"
        return
    duplicate = "409" if route.concurrency is None else f"waits {route.concurrency:g} s"
    yield (
        f"  {where}: key {route.key}, window {guard.boundary.window:g} s, duplicate {duplicate}, "
        f"effects {route.effects}, derived key {'not sent' if route.forward_key == 'off' else route.forward_key}"
    )
    yield f"    {PROMISES[route.effects]}"


def _principal(settings: Settings) -> str:
    match settings.principal:
        case TrustedHeader(header, trusted):
            return f"header {header}, from {', '.join(map(str, trusted))}"
        case Claims() as claims:
            return f"claim {claims.claim} of a token in {claims.header} ({', '.join(claims.algorithms)})"
        case _:
            return "shared: all clients share their keys"


_PATIENCE = 10.0


def settings_of(options: argparse.Namespace, *, store: str, secret: str) -> Settings:
    """The settings of a command line; ``store`` and ``secret`` are the variables that it may leave to."""
    loaded = Loaded({}, None) if options.config is None else load(options.config)
    settings = loaded.settings(
        upstream=options.upstream,
        store=options.store or loaded.values.get("store") or os.environ.get(store),
        listen=_address("--listen", options.listen),
        admin=_address("--admin", options.admin),
        principal=options.principal,
        workers=options.workers,
        secret=loaded.values.get("secret") or os.environ.get(secret),
    )
    source = options.openapi or loaded.openapi
    if source is None:
        return settings
    found = routes_of(_document(source, settings.upstream), settings.defaults, settings.upstream)
    return replace(settings, routes=(*settings.routes, *_new(found, settings)))


def _new(found: Iterable[Any], settings: Settings) -> list[Any]:
    """Routes that the file does not have itself: what it says comes first."""
    named = {route.match for route in settings.routes}
    return [route for route in found if route.match not in named]


def _address(name: str, value: str | None) -> Any:
    try:
        return None if value is None else address(value)
    except ValueError as error:
        raise ConfigurationError(f"{name}: {error}") from error


def _document(source: str, upstream: str) -> Any:
    """A file, unless it is a URL, or there is no such file and it is a path on the upstream."""
    try:
        if "://" not in source and (not source.startswith("/") or Path(source).is_file()):
            return json.loads(Path(source).read_text(encoding="utf-8"))
        url = source if "://" in source else upstream.rstrip("/") + source
        with urllib.request.urlopen(url, timeout=_PATIENCE) as response:
            return json.loads(response.read())
    except (OSError, URLError) as error:
        raise ConfigurationError(
            f"openapi {without_password(source)}: {getattr(error, 'reason', None) or error}."
        ) from error
    except ValueError as error:
        raise ConfigurationError(f"openapi {without_password(source)}: this is not JSON: {error}.") from error


async def check_store(guards: Guards) -> str | None:
    """Return a warning if the store is away: it may come back, and until then requests are answered with 503.

    Raises `RetrysafeError` for what waiting does not help, such as tables that are missing.
    """
    try:
        await guards.ask_store()
    except StoreMisconfigured:
        raise
    except StoreUnavailable as error:
        return f"warning      the store does not answer: {error.args[0]}"
    finally:
        await guards.aclose()
    return None


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_BACKLOG = 2048
_PATIENCE_WITH_WORKERS = 15
"""Seconds after which a worker that gives no sign is replaced: more than it takes to start on a busy machine."""


class _Workers(Multiprocess):
    """Workers of uvicorn's, whose sockets are closed by all when they stop."""

    def terminate_all(self) -> None:
        """Stop them; requests that still came to a socket of ours would wait in vain until the last one has ended."""
        for one in self.sockets:
            one.close()
        super().terminate_all()


def serve(settings: Settings, told: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; ``told`` is called with each address before the first request is taken.

    Then no connection is accepted any more, running requests get ``grace`` seconds, and what is cut is recorded as its
    effects want it. A worker that dies is replaced. Raises `ConfigurationError` if an address cannot be bound.
    """
    with ExitStack() as stack:
        listening = [_bind(settings.listen, "listen")]
        if settings.admin is not None:
            listening.append(_bind(settings.admin, "admin"))
        for one in listening:
            stack.enter_context(one)
        admin_port = listening[1].getsockname()[1] if settings.admin is not None else None
        for one, what in zip(listening, ("serving", "admin"), strict=False):
            told(f"{what:<13}http://{_render_address(one)}")
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
            target = inspect.signature(Multiprocess).parameters.get("target") and uvicorn.Server(config).run
            _Workers(config, sockets=listening, **({"target": target} if target else {})).run()  # uvicorn before 0.52
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


def _bind(address: Address, name: str) -> socket.socket:
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


def _render_address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
