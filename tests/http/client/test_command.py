"""`retrysafe requests`: what is in a journal, and resuming it by a client of the user's."""

from __future__ import annotations

import json
import sys
import time as real
from pathlib import Path

import pytest

from retrysafe.cli import main
from retrysafe.cli import requests as requests_of_the_command
from retrysafe.http.client import Journal
from tests.http.client.senders import Time
from tests.http.client.server import Server, drops_request, says
from tests.http.client.test_durable import entry, left_behind

pytestmark = pytest.mark.slow

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
    assert head.split() == ["key", "method", "url", "age", "sent", "last", "state"]
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


@pytest.mark.parametrize("kind", CLIENTS)
def test_entries_that_stay_in_the_journal_are_not_done(
    place: Path, server: Server, capsys: pytest.CaptureFixture[str], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"shop_once_{kind.replace('-', '_')}"
    (place / f"{name}.py").write_text(
        "from retrysafe.http.client import Host, Journal, Retries\n"
        f"retries = Retries([Host({server.origin!r})], journal=Journal('calls.db'), observers=(), max_attempts=1)\n"
        + CLIENTS[kind]
    )
    server.will(says(503))
    assert main(["requests", "resume", "--client", f"{name}:client", "--json"]) == 1
    old, fresh = map(json.loads, capsys.readouterr().out.splitlines())
    assert (fresh["status"], fresh["in_journal"], old["in_journal"]) == (503, True, True)
    assert main(["requests", "discard", old["key"]]) == 0
    server.will(says(503))
    monkeypatch.delitem(sys.modules, name)
    assert main(["requests", "resume", "--client", f"{name}:client"]) == 1
    assert capsys.readouterr().out.endswith("503  stays in the journal\n")
    monkeypatch.delitem(sys.modules, name)
    assert main(["requests", "resume", "--client", f"{name}:client"]) == 0


def test_outcomes_are_printed_as_they_come(
    place: Path, server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import httpx

    seen: list[str] = []

    class Silent(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            seen.append(capsys.readouterr().out)
            raise httpx.ReadTimeout("")

    client = httpx.Client(transport=Silent())
    monkeypatch.setattr(requests_of_the_command, "_client", lambda _: client)
    assert main(["requests", "resume", "--client", "any"]) == 1
    assert "RequestOutcomeUnknown" in seen[0], "of the older one"
    assert capsys.readouterr().out.endswith("ReadTimeout  stays in the journal\n")


def test_impossible_requests_are_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, complaint in (
        (["list", "--journal", "nowhere.db"], "the file does not exist"),
        (["resume", "--client", "nowhere:client"], "ModuleNotFoundError"),
        (["resume", "--client", "json:__name__"], "neither an httpx client"),
    ):
        assert main(["requests", *arguments]) == 2
        assert complaint in capsys.readouterr().err


def test_entries_of_a_living_process_are_not_discarded(
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
