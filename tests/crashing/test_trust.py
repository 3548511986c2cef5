"""Faults that the kit must not miss or must not blame: each was once a report not to be believed."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from sqlite3 import connect as imported_by_its_name
from typing import Any

import pytest

from retrysafe import ConfigurationError
from retrysafe.testing.crashing import crash_points
from tests.crashing.test_kit import Files, charge, charge_once
from tests.faults.helpers import until
from tests.tables import each_row

pytestmark = pytest.mark.slow


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def count(path: str) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute("SELECT count(*) FROM charges").fetchone()[0])


# ---------------------------------------------------------------- who judges


@pytest.mark.one_of("words of the kit for crashes", of=3)
def test_a_check_may_say_it_in_the_words_of_pytest(files: Files) -> None:
    """`pytest.fail` raises what is no Exception."""

    def check(path: str) -> None:
        if count(path) != 1:
            pytest.fail("charged twice")

    report = crash_points(charge, fresh=files.fresh, check=check, pairs=0)
    assert "check: Failed: charged twice" in str(report)


@pytest.mark.one_of("words of the kit for crashes", of=3)
def test_a_check_that_dies_is_no_approval(files: Files) -> None:
    def check(path: str) -> None:
        if count(path) != 1:
            os._exit(3)

    report = crash_points(charge, fresh=files.fresh, check=check, pairs=0)
    assert "the process that looked at the end has died" in str(report)


def test_tables_too_large_to_compare_are_refused(files: Files) -> None:
    def fresh() -> str:
        path = files.fresh()
        with closing(sqlite3.connect(path)) as db, db:
            db.execute(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000) "
                "INSERT INTO charges SELECT 'old', i FROM n"
            )
        return path

    with pytest.raises(ConfigurationError, match="table charges has more than 10000 rows"):
        crash_points(charge, fresh=fresh, check=lambda path: None, pairs=0)


# ---------------------------------------------------------------- what is asked for outside


def _mark_then_charge(url: str, path: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        with db:
            first = db.execute("INSERT INTO charges SELECT 'mark', 0 WHERE NOT EXISTS (SELECT 1 FROM charges)").rowcount
        if first:
            urllib.request.urlopen(urllib.request.Request(url, data=b"A"), timeout=60).close()


@pytest.mark.one_of("words of the kit for crashes", of=3)
def test_an_effect_that_is_never_asked_for_is_found(files: Files, bank: tuple[str, str]) -> None:
    report = files.explore(lambda path: _mark_then_charge(f"{bank[0]}/charges", path))
    assert "POST http://127.0.0.1/charges: 0 effects asked for instead of 1" in str(report)


async def _shop(scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
    charge_once(scope["path"].removeprefix("/at"))
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"charged"})


@pytest.mark.one_of("words of the kit for crashes", of=3)
def test_a_request_to_an_application_in_this_process_is_no_effect(files: Files) -> None:
    """The application's work is explored; its callers ask it twice by design."""

    async def run(path: str) -> None:
        import httpx

        transport = httpx.ASGITransport(app=_shop)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            (await client.post(f"/at{path}")).raise_for_status()

    report = files.explore(run)
    assert report.ok, str(report)
    assert not any("POST" in call.label for call in report.boundaries)


def _send_to_a_queue(endpoint: str) -> None:
    import boto3

    options = {"region_name": "us-east-1", "aws_access_key_id": "a", "aws_secret_access_key": "b"}
    client = boto3.client("sqs", endpoint_url=endpoint, **options)
    client.send_message(QueueUrl=f"{endpoint}/queue", MessageBody="charge A")


_QUEUE = """
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Queue(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        answer = b'{"MD5OfMessageBody": "f49f5c5ca2f5a1a6a3d4ee0c8c4ff9c3", "MessageId": "1"}'
        self.send_response(200)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
    def log_message(self, *_): pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Queue)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@pytest.mark.one_of("words of the kit for crashes", of=3)
def test_a_message_that_is_sent_twice_is_found() -> None:
    with subprocess.Popen([sys.executable, "-c", _QUEUE], stdout=subprocess.PIPE, text=True) as queue:
        assert queue.stdout is not None
        endpoint = f"http://127.0.0.1:{queue.stdout.readline().strip()}"
        try:
            report = crash_points(_send_to_a_queue, fresh=lambda: endpoint, check=lambda url: None, pairs=0)
        finally:
            queue.kill()
    assert "sqs SendMessage: 2 effects asked for instead of 1" in str(report)


# ---------------------------------------------------------------- ways to open and to ask


class _OwnCursor(sqlite3.Cursor):
    """As Django's backend has one."""


class _OwnConnection(sqlite3.Connection):
    """As an application may have one."""


def _by_a_cursor_of_its_own(path: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.cursor(factory=_OwnCursor).execute("INSERT INTO charges VALUES ('A', 0)")


def _by_a_connection_of_its_own(path: str) -> None:
    with closing(sqlite3.connect(path, 5.0, 0, "DEFERRED", True, _OwnConnection)) as db, db:
        assert isinstance(db, _OwnConnection)
        db.execute("INSERT INTO charges VALUES ('A', 0)")


@pytest.mark.one_of("words of the kit for crashes", of=3)
@pytest.mark.parametrize("run", [_by_a_cursor_of_its_own, _by_a_connection_of_its_own], ids=lambda run: run.__name__)
def test_statements_by_other_classes_are_boundaries(run: Callable[[str], None], files: Files) -> None:
    report = files.explore(run)
    assert [call.label for call in report.boundaries] == ["INSERT INTO charges VALUES ('A', 0)", "COMMIT"]
    assert "table charges: 2 rows instead of 1" in str(report)


def _by_another_name(path: str) -> None:
    charge_once(path)
    with closing(imported_by_its_name(path)) as db, db:
        db.execute("INSERT INTO charges VALUES ('A', 0)")


@pytest.mark.one_of("words of the kit for crashes", of=3)
def test_a_connect_that_was_imported_by_its_name_is_told(files: Files) -> None:
    report = files.explore(_by_another_name)
    assert any("imported by its name" in what for what in report.unseen), report.unseen


class _Later:
    """Awaitable, and no coroutine."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def __await__(self) -> Any:
        yield from asyncio.sleep(0).__await__()
        self._work()


@pytest.mark.one_of("words of the kit for crashes", of=3)
def test_run_fresh_and_check_may_all_be_awaited(files: Files) -> None:
    numbers = itertools.count()

    async def fresh() -> str:
        next(numbers)
        return files.fresh()

    async def check(path: str) -> None:
        assert count(path) == 1, "charged twice"

    def run(path: str) -> Awaitable[None]:
        return _Later(lambda: charge(path))

    report = crash_points(run, fresh=fresh, check=check, pairs=0)
    assert "check: AssertionError: charged twice" in str(report)


# ---------------------------------------------------------------- what is asked of the kit


@pytest.mark.parametrize(
    ("watch", "told"),
    [
        ("json:dumps", "a tuple of names"),
        (("json.dumps",), "a tuple of names"),
        (("json:nothing",), "nothing"),
        (("nowhere_at_all:call",), "nowhere_at_all"),
    ],
)
def test_operations_that_cannot_be_watched_are_refused(watch: Any, told: str, files: Files) -> None:
    with pytest.raises(ConfigurationError, match=told):
        files.explore(charge_once, watch=watch)


_WAITS = """
import os, sys, threading
from pathlib import Path
from retrysafe.testing import crash_points

def run(folder):
    Path(folder, str(os.getpid())).touch()
    threading.Event().wait()

crash_points(run, fresh=lambda: sys.argv[1], check=lambda folder: None, patience=600)
"""


@each_row("way", [signal.SIGKILL, signal.SIGINT], ids=lambda way: way.name)
def test_no_process_outlives_the_one_that_asked(way: signal.Signals, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _WAITS, str(tmp_path)], stderr=subprocess.DEVNULL) as asking:
        (running,) = until(lambda: [int(path.name) for path in tmp_path.iterdir()])
        asking.send_signal(way)
        try:
            asking.wait(30)
        except subprocess.TimeoutExpired:  # Python drops an interrupt that comes in a destructor
            asking.send_signal(way)
    assert running != asking.pid
    until(lambda: not _is_alive(running))


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
