"""The dashboard is what Grafana imports, and a real Prometheus that scraped our metrics answers each of its queries."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import prometheus_client
import pytest
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider

from retrysafe.claims.observers import EVENTS
from retrysafe.cli import main
from retrysafe.observability.dashboard import rows
from retrysafe.observability.metrics import COUNTERS, GAUGES, MEASURES
from retrysafe.observability.otel import OpenTelemetryObserver
from retrysafe.protocol.events import Event
from tests.conftest import require
from tests.observing.test_metrics import VALUES
from tests.ports import free_port

SCRAPES = 4
"""After so many have begun, three are stored: a rate needs two."""

GRID = {
    "type": "object",
    "required": ["x", "y", "w", "h"],
    "properties": {
        "x": {"type": "integer", "minimum": 0, "maximum": 23},
        "y": {"type": "integer", "minimum": 0},
        "w": {"type": "integer", "minimum": 1, "maximum": 24},
        "h": {"type": "integer", "minimum": 1},
    },
    "additionalProperties": False,
}
SOURCE = {
    "type": "object",
    "required": ["type", "uid"],
    "properties": {"type": {"const": "prometheus"}, "uid": {"const": "${datasource}"}},
}
PANEL = {
    "type": "object",
    "required": ["id", "type", "title", "gridPos"],
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "type": {"enum": ["row", "timeseries"]},
        "title": {"type": "string", "minLength": 1},
        "description": {"type": "string"},
        "gridPos": GRID,
        "datasource": SOURCE,
        "fieldConfig": {"type": "object", "required": ["defaults", "overrides"]},
        "targets": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["refId", "expr", "datasource"],
                "properties": {"refId": {"type": "string"}, "expr": {"type": "string"}, "datasource": SOURCE},
            },
        },
    },
    "if": {"properties": {"type": {"const": "row"}}},
    "then": {"required": ["collapsed", "panels"]},
    "else": {"required": ["targets", "datasource", "fieldConfig", "options"]},
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["title", "uid", "schemaVersion", "time", "templating", "annotations", "panels", "tags", "editable"],
    "properties": {
        "id": {"type": "null"},
        "uid": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,40}$"},
        "title": {"type": "string", "minLength": 1},
        "tags": {"type": "array", "items": {"type": "string"}},
        "schemaVersion": {"type": "integer", "minimum": 36},
        "graphTooltip": {"enum": [0, 1, 2]},
        "time": {"type": "object", "required": ["from", "to"]},
        "templating": {
            "type": "object",
            "required": ["list"],
            "properties": {
                "list": {"type": "array", "items": {"type": "object", "required": ["name", "type", "query"]}}
            },
        },
        "annotations": {"type": "object", "required": ["list"]},
        "panels": {"type": "array", "minItems": 1, "items": PANEL},
    },
}
"""Grafana's documented form of a dashboard ("JSON model"), as far as we use it."""


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The dashboard as the command prints it."""
    assert main(["alerts", "--dashboard"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_it_is_of_the_documented_schema(printed: dict[str, Any]) -> None:
    jsonschema.validate(printed, SCHEMA)
    ids = [panel["id"] for panel in printed["panels"]]
    assert len(ids) == len({*ids})
    places = [panel["gridPos"] for panel in printed["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in itertools.combinations(places, 2):
        assert (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        ), "panels overlap"


def lost(ours: Any, read: Any, path: str = "") -> Iterator[str]:
    """Yield the parts of ours that were not read, or were read as something else."""
    if isinstance(ours, dict) and isinstance(read, dict):
        for name, value in ours.items():
            yield from lost(value, read.get(name), f"{path}.{name}")
    elif isinstance(ours, list) and isinstance(read, list) and len(ours) == len(read):
        for number, (one, other) in enumerate(zip(ours, read, strict=True)):
            yield from lost(one, other, f"{path}[{number}]")
    elif ours != read:
        yield f"{path}: {ours!r} was read as {read!r}"


def read_by_grafana(given: dict[str, Any]) -> Any:
    """The dashboard as the types that Grafana generates from its own schema read it."""
    plugins.register_default_plugins()
    return json.loads(JSONEncoder().encode(Dashboard.from_json(given)))


def test_grafanas_own_types_read_all_of_it(printed: dict[str, Any]) -> None:
    assert not [*lost(printed, read_by_grafana(printed))]


@pytest.mark.parametrize("field", ["gridPos", "fieldConfig", "targets", "datasource"])
def test_a_field_that_grafana_does_not_know_is_lost(printed: dict[str, Any], field: str) -> None:
    panel = next(one for one in printed["panels"] if one["type"] == "timeseries")
    panel[f"{field}s"] = panel.pop(field)
    assert [*lost(printed, read_by_grafana(printed))]


def test_every_metric_has_a_panel() -> None:
    titles = {panel.title.partition(",")[0] for panels in rows().values() for panel in panels}
    assert {metric.name for metric in (*COUNTERS, *GAUGES, *MEASURES)} <= titles
    glance = [panel.title for panel in rows()["At a glance"]]
    assert glance[:3] == ["Hit rate", "Duplicate rate", "Conflict rate"]
    assert {"retrysafe.outbox.lag", "retrysafe.inbox.lag"} < {*glance}


class Fed:
    """A process in which every event happens once before each scrape."""

    def __init__(self) -> None:
        self.provider = MeterProvider([PrometheusMetricReader()], shutdown_on_exit=False)
        self._observer = OpenTelemetryObserver(self.provider)
        self._working: list[Any] = []
        self.scraped = threading.Event()
        self._scrapes = 0

    def metrics(self) -> bytes:
        self._scrapes += 1
        if self._scrapes >= SCRAPES:
            self.scraped.set()
        for name, side in itertools.product(EVENTS, ("outbox", "inbox", "records")):
            self._observer(self._event(name, side=side))
        watch = self._observer.watch(self._event("received"))
        for name, step in (("started", ""), ("store_request", "claim"), ("store_request", "settle"), ("completed", "")):
            watch(self._event(name, step=step, seconds=0.2))
        if not self._working:
            self._working.append(watch)
        else:
            watch.close(None)
        return prometheus_client.generate_latest()

    @staticmethod
    def _event(name: str, **fields: Any) -> Event:
        given = {field: VALUES.get(field, "text") for field in EVENTS[name].fields}
        return Event(name, "b", "o", "", "", given | {field: fields[field] for field in fields if field in given})


@contextmanager
def served(fed: Fed) -> Iterator[int]:
    """Serve the metrics on a port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = fed.metrics()
            self.send_response(200)
            self.send_header("Content-Type", prometheus_client.CONTENT_TYPE_LATEST)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def prometheus(folder: Path, target: int) -> Iterator[str]:
    """A Prometheus of its own that scrapes a port every second."""
    job = {"job_name": "fed", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
    settings = {"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}
    (folder / "prometheus.yml").write_text(json.dumps(settings), encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    program = f"{os.environ['RETRYSAFE_TEST_PROMETHEUS']}/prometheus"
    options = ("--config.file=prometheus.yml", f"--storage.tsdb.path={folder}/data", f"--web.listen-address={address}")
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([program, *options], cwd=folder, stdout=log, stderr=log)
        try:
            yield f"http://{address}"
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def fed() -> Iterator[Fed]:
    before = {*prometheus_client.REGISTRY._collector_to_names}
    made = Fed()
    yield made
    for collector in {*prometheus_client.REGISTRY._collector_to_names} - before:
        prometheus_client.REGISTRY.unregister(collector)


@pytest.mark.slow
@pytest.mark.one_of("slow tests")
def test_prometheus_has_data_for_every_panel(printed: dict[str, Any], fed: Fed, tmp_path: Path) -> None:
    require("prometheus")
    with served(fed) as port, prometheus(tmp_path, port) as url, httpx.Client(base_url=url) as client:
        assert fed.scraped.wait(60), (tmp_path / "prometheus.log").read_text()
        silent = []
        for panel in printed["panels"]:
            for target in panel.get("targets", ()):
                query = target["expr"].replace("$__rate_interval", "30s").replace("$boundary", ".*")
                answer = client.get("/api/v1/query", params={"query": query}).json()
                assert answer["status"] == "success", (panel["title"], answer)
                values = [float(series["value"][1]) for series in answer["data"]["result"]]
                if not any(abs(value) > 0 for value in values):
                    silent.append((panel["title"], values))
        assert not silent
