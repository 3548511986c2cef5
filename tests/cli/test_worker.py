"""The address of a worker: its metrics, whether it is alive, and whether it is ready."""

from __future__ import annotations

import json
import re
import socket
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from retrysafe.backends.registry import connect
from retrysafe.cli import main
from retrysafe.cli.worker import SILENT, Health
from retrysafe.messaging import Outbox
from retrysafe.messaging.brokers.sqlite import declare
from retrysafe.protocol.events import Event
from tests.faults.helpers import until
from tests.processes import Child
from tests.tables import each_row

SERVICE = """
from retrysafe import Boundary
from retrysafe.messaging import Inbox

boundary = Boundary("stock", store="{store}", effects="transactional", window="15d")


@Inbox(boundary).handler("reserve")
def reserve(message):
    pass
"""


def write_to(folder: Path) -> str:
    """Write a message into an outbox; return its store."""
    store = f"sqlite:///{folder / 'shop.db'}"
    connect(store).migrate()
    with closing(sqlite3.connect(folder / "shop.db")) as connection, connection:
        connection.execute("BEGIN IMMEDIATE")
        Outbox(store, source="/shop", observers=()).add(connection, "orders", {"n": 1}, key="A")
    return store


def told(name: str, **fields: Any) -> Event:
    return Event(name, "retrysafe.outbox", "", "", "", fields)


@each_row(
    ("events", "after", "live", "ready", "lag"),
    [
        ([], 0.0, True, False, 0),
        ([told("relay_seen")], 0.0, True, True, 0),
        ([told("relay_seen"), told("relay_failed", error="away")], 0.0, True, False, 0),
        ([told("relay_failed", error="away"), told("relay_seen")], 0.0, True, True, 0),
        ([told("consumer_seen")], SILENT + 1, False, False, 0),
        ([told("consumer_lag", partition="a", messages=3), told("consumer_seen")], 0.0, True, True, 3),
        ([told("backlog", due=2), told("relay_seen"), told("backlog", due=7)], 0.0, True, True, 7),
        ([told("consumer_seen"), told("lag_uncounted", error="away")], 0.0, True, False, 0),
    ],
)
def test_health_follows_the_last_sign_of_life(
    events: list[Event], after: float, live: bool, ready: bool, lag: int
) -> None:
    now = [100.0]
    health = Health(lambda: now[0])
    for event in events:
        assert health.is_enabled(event.name)
        health(event)
    now[0] += after
    assert health.live()[0] is live
    well, fields = health.ready()
    assert (well, fields["lag"]) == (ready, lag)
    assert bool(fields["error"]) is (not events or events[-1].name in ("relay_failed", "lag_uncounted"))


@each_row("given", ["x", "1:x", "70000", ""])
def test_an_address_that_is_none_is_refused(given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = f"sqlite:///{tmp_path / 'shop.db'}"
    write_to(tmp_path)
    assert main(["relay", "--store", store, "--broker", store, "--metrics", given]) == 2
    assert "is no address: give PORT, or HOST:PORT" in capsys.readouterr().err


@pytest.mark.slow
def test_an_address_that_is_taken_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = write_to(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["relay", "--store", store, "--broker", store, "--metrics", port]) == 2
    assert f"--metrics {port}: [Errno 98] Address already in use" in capsys.readouterr().err


def asked(url: str) -> tuple[int, str]:
    try:
        with urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.slow
@each_row("worker", ["relay", "inbox"])
def test_a_worker_serves_its_metrics_and_says_when_it_is_ready(worker: str, tmp_path: Path) -> None:
    folder = tmp_path / worker
    folder.mkdir()
    store, broker = write_to(folder), f"sqlite:///{folder / 'broker.db'}"
    declare(folder / "broker.db", [("orders", "stock")])
    (folder / "service.py").write_text(SERVICE.format(store=store))
    relay = ["relay", "--store", store, "--broker", broker]
    inbox = ["inbox", "run", "service:reserve", "--broker", broker, "--group", "stock"]
    command = [sys.executable, "-m", "retrysafe", *(relay if worker == "relay" else inbox), "--metrics", "0"]
    with Child(*command, env={"PYTHONPATH": str(folder)}) as child:
        until(lambda: "has /metrics" in child.errors)
        (url,) = re.findall(
            rf"retrysafe \S+: {worker}(?: reserve)? begins on sqlite:\S+ with sqlite:\S+; (http://127.0.0.1:\d+) has",
            child.errors,
        )
        until(lambda: asked(f"{url}/ready")[0] == 200)
        assert json.loads(asked(f"{url}/live")[1])["silent"] < SILENT
        counted = "retrysafe_outbox_published" if worker == "relay" else "retrysafe_inbox_lag"
        until(lambda: counted in asked(f"{url}/metrics")[1])
        assert asked(f"{url}/other")[0] == 404
        assert child.stop() == 0
