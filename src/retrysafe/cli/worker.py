"""The HTTP address of a worker, by --metrics: what it measures, and whether it is alive and ready to work."""

from __future__ import annotations

import argparse
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import retrysafe
from retrysafe.backends.spec import library
from retrysafe.backends.urls import without_password
from retrysafe.cli.brokers import BROKER
from retrysafe.cli.options import add_option
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.events import Event, Observer

SILENT = 300.0
"""Seconds without a sign of life after which a worker is no longer alive: more than one call of a broker may take."""
_SEEN = frozenset({"relay_seen", "consumer_seen"})
_FAILED = frozenset({"relay_failed", "consumer_failed", "queue_missing", "lag_uncounted"})


class Health:
    """An observer that knows from events whether a worker is alive, whether it is ready, and how far it is behind."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._error = "It has not begun."
        self._lags: dict[str, int] = {}

    def is_enabled(self, name: str, /) -> bool:
        """Tell whether an event says something of the worker's health."""
        return name in _SEEN or name in _FAILED or name in ("backlog", "consumer_lag")

    def __call__(self, event: Event, /) -> None:
        """Take a sign of life, an error, or a lag."""
        match event.name:
            case "backlog":
                self._lags["outbox"] = int(event.fields["due"])
            case "consumer_lag":
                self._lags[str(event.fields["partition"])] = int(event.fields["messages"])
            case name:
                self._last = self._clock()
                self._error = "" if name in _SEEN else str(event.fields["error"])

    def live(self) -> tuple[bool, dict[str, Any]]:
        """Tell whether it has given a sign of life, good or bad, within `SILENT` seconds."""
        silent = self._clock() - self._last
        return silent < SILENT, {"silent": round(silent, 1)}

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Tell whether its last sign of life was no error: broker and database answer."""
        live, fields = self.live()
        ready = live and not self._error
        return ready, {**fields, "error": self._error, "lag": sum(self._lags.values())}


def add_metrics(parser: argparse.ArgumentParser) -> None:
    add_option(
        parser,
        "--metrics [HOST:]PORT",
        "serve /metrics for Prometheus, /live and /ready there (HOST: 127.0.0.1; port 0: any)",
    )


@contextmanager
def serve_health(options: argparse.Namespace, worker: str, store: str) -> Iterator[tuple[Observer, ...]]:
    """Tell in one line that a worker begins, and serve the address of --metrics meanwhile; yield its observers."""
    log, broker = logging.getLogger("retrysafe"), options.broker or os.environ.get(BROKER)
    of = "".join(f" {word} {without_password(url)}" for word, url in (("on", store), ("with", broker)) if url)
    if options.metrics is None:
        log.info("retrysafe %s: %s begins%s", retrysafe.__version__, worker, of)
        yield ()
        return
    health, observers = Health(), _meter()
    try:
        server = ThreadingHTTPServer(_address(options.metrics), _handler_of(health))
    except OSError as error:
        raise ConfigurationError(f"--metrics {options.metrics}: {error}. Nothing was begun; give another.") from error
    server.daemon_threads = True
    host, port = server.server_address[:2]
    threading.Thread(target=server.serve_forever, name="retrysafe-metrics", daemon=True).start()
    log.info(
        "retrysafe %s: %s begins%s; http://%s:%s has /metrics, /live, /ready",
        *(retrysafe.__version__, worker, of, host, port),
    )
    try:
        yield (health, *observers)
    finally:
        server.shutdown()
        server.server_close()


def _meter() -> tuple[Observer, ...]:
    reader = _library("opentelemetry.exporter.prometheus").PrometheusMetricReader()
    provider = _library("opentelemetry.sdk.metrics").MeterProvider([reader], shutdown_on_exit=False)
    return (_library("retrysafe.observability.otel").OpenTelemetryObserver(provider),)


def _library(module: str) -> Any:
    return library(module, "metrics", "--metrics")


def _address(given: str) -> tuple[str, int]:
    host, _, port = given.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise ConfigurationError(f"--metrics: {given!r} is no address: give PORT, or HOST:PORT.")
    return host.strip("[]") or "127.0.0.1", int(port)


def _handler_of(health: Health) -> type[BaseHTTPRequestHandler]:
    client = _library("prometheus_client")
    asked = {"/live": health.live, "/ready": health.ready}

    class WorkerHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._send(200, client.CONTENT_TYPE_LATEST, client.generate_latest())
            elif path in asked:
                well, fields = asked[path]()
                self._send(200 if well else 503, "application/json", json.dumps(fields).encode())
            else:
                self._send(404, "text/plain", b"There are /metrics, /live and /ready.\n")

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: probes come every few seconds."""

    return WorkerHandler
