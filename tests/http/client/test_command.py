"""`retrysafe requests`: what is in a journal, and resuming it by a client of the user's."""

from __future__ import annotations

import json
import time as real
from pathlib import Path

import pytest

from retrysafe.cli import main
from retrysafe.http.client import Journal
from tests.http.client.senders import Time
from tests.http.client.server import Server, drops_request
from tests.http.client.test_durable import entry, left_behind

CLIENTS = {
    "httpx": "import httpx\nfrom retrysafe.http.client.httpx import RetryTransport\n"
    "client = httpx.Client(transport=RetryTransport(retries), headers={'Authorization': 'Bearer new'})\n",
    "httpx-async": "import httpx\nfrom retrysafe.http.client.httpx import AsyncRetryTransport\n"
    "def client():\n"
    "    return httpx.AsyncClient(transport=AsyncRetryTransport(retries), headers={'Authorization': 'Bearer new'})\n",
    "requests": "import requests\nfrom retrysafe.http.client.requests import RetryAdapter\n"
    "client = requests.Session()\nclient.mount('http://', RetryAdapter(retries))\n"
    "client.headers['Authorization'] = 'Bearer new'\n",
}


@pytest.fixture
def place(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a journal of two requests, one of which is too old."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("RETRYSAFE_JOURNAL", "calls.db")
    time = Time()
    time.offset = real.time() - time.now
    old = real.time() - 90_000
    left_behind(
        tmp_path / "calls.db",
        entry(server, time, "fresh", headers=(("content-type", "text/plain"),)),
        entry(server, time, "old", created=old, recognised_until=old + 86_400),
    )
    return tmp_path


def test_list_and_show(place: Path, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["requests", "list"]) == 0
    head, old, fresh = capsys.readouterr().out.splitlines()
    assert head.split() == ["key", "method", "url", "age", "sent", "last", "standing"]
    assert old.endswith("unknown")
    assert fresh.endswith("resumable")
    assert main(["requests", "show", fresh.split()[0], "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["url"], shown["headers"], shown["body_bytes"]) == (server.url, ["content-type: text/plain"], 14)
    assert main(["requests", "show", fresh.split()[0]]) == 0
    assert "recognised until" in capsys.readouterr().out
    assert main(["requests", "show", "ffffffff"]) == 1
    assert main(["requests", "show", ""]) == 1
    assert main(["requests", "list", "--scope", "other"]) == 0
    assert capsys.readouterr().out == "no requests\n"


@pytest.mark.parametrize("kind", CLIENTS)
def test_resume(place: Path, server: Server, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    name = f"shop_{kind.replace('-', '_')}"
    (place / f"{name}.py").write_text(
        "from retrysafe.http.client import Host, Journal, Retries\n"
        f"retries = Retries([Host({server.origin!r})], journal=Journal('calls.db'), observers=(), base=0.001)\n"
        + CLIENTS[kind]
    )
    server.will(drops_request)
    assert main(["requests", "resume", "--client", f"{name}:client", "--json"]) == 1
    old, fresh = map(json.loads, capsys.readouterr().out.splitlines())
    assert "RequestOutcomeUnknown" in old["error"]
    assert fresh["status"] == 201
    assert server.effects == ["fresh"]
    assert [request.header("authorization") for request in server.requests] == ["Bearer new"] * 2
    journal = Journal("calls.db")
    assert [one.key for one in journal.pending()] == ["old"]
    journal.close()
    assert main(["requests", "discard", old["key"]]) == 0
    assert main(["requests", "resume", "--client", f"{name}:client"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "nothing to resume"


def test_what_cannot_be_done_is_said(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, complaint in (
        (["list", "--journal", "nowhere.db"], "no such file"),
        (["resume", "--client", "nowhere:client"], "ModuleNotFoundError"),
        (["resume", "--client", "json:__name__"], "no client of httpx"),
    ):
        assert main(["requests", *arguments]) == 2
        assert complaint in capsys.readouterr().err


def test_what_a_living_process_is_at_is_not_discarded(
    place: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal("calls.db")
    fresh = journal.pending()[-1]
    assert journal.take(fresh.id, real.time(), 60) is not None
    assert main(["requests", "list"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("under way")
    assert main(["requests", "discard", fresh.name]) == 2
    assert len(journal.pending()) == 2
    journal.close()
