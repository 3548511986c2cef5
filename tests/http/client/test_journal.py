"""A journal that several calls use at once, and what it keeps of a request."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from retrysafe.errors import ConfigurationError
from retrysafe.http.client import Host, Journal, Resumed, Retries
from retrysafe.http.client.httpx import AsyncRetryTransport, RetryTransport
from tests.http.client.child import BODY
from tests.http.client.conftest import Make
from tests.http.client.senders import FAILURES, Time
from tests.http.client.server import Received, Server, drops_answer, says
from tests.http.client.test_durable import entry, left_behind

pytestmark = pytest.mark.slow


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "calls.db"


# ---------------------------------------------------------------- several calls with one key


def test_c02_a_request_stays_until_every_call_has_ended(server: Server, path: Path, time: Time) -> None:
    journal, now = Journal(path), time.environment.wall()
    one = entry(server, time)

    def standing() -> list[bool]:
        return [journal.is_held(found, now) for found in journal.pending()]

    for run in "abc":
        journal.begin(one, now, 60, run)
    journal.settle(one.id, "a")
    assert standing() == [True]
    journal.release(one.id, "b", 1, "503")
    assert standing() == [True], "the third one is at it"
    journal.settle(one.id, "c")
    assert standing() == [False], "the doubt of the second one stays"
    journal.begin(one, now, 60, "d")
    journal.settle(one.id, "d")
    assert standing() == [], "a later call has found out"
    journal.close()


def test_c02_a_former_owner_of_a_request_has_no_say(server: Server, path: Path, time: Time) -> None:
    journal, now = Journal(path), time.environment.wall()
    one = entry(server, time)
    journal.begin(one, now, 60, "late")
    assert journal.take(one.id, now + 61, 60) is not None
    journal.settle(one.id, "late")
    assert len(journal.pending()) == 1
    journal.begin(one, now + 61, 60, "next")
    journal.settle(one.id, "late")
    assert len(journal.pending()) == 1
    journal.settle(one.id, "next")
    assert journal.pending() == []
    journal.close()


def test_c02_a_call_of_another_process_is_counted(server: Server, path: Path, time: Time) -> None:
    journal, now = Journal(path), time.environment.wall()
    one = entry(server, time)
    journal.begin(one, now, 60, "ours")
    code = (
        "import sys; from retrysafe.http.client import Journal\n"
        "journal = Journal(sys.argv[1]); (one,) = journal.pending()\n"
        "journal.begin(one, float(sys.argv[2]), 60, 'theirs')\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path), str(now)], check=True, timeout=60)
    journal.settle(one.id, "ours")
    (pending,) = journal.pending()
    assert pending.runs == ("theirs",)
    journal.settle(one.id, "theirs")
    assert journal.pending() == []
    journal.close()


def test_c02_one_calls_answer_does_not_end_the_others_doubt(make: Make, server: Server, path: Path) -> None:
    first_ended = threading.Event()

    def refuses_late(at: Server, connection: Any, request: Received) -> bool:
        at.go_on.wait(60)
        return says(404)(at, connection, request)

    def drops_later(at: Server, connection: Any, request: Received) -> bool:
        at.execute(request)
        at.go_on.set()
        first_ended.wait(60)
        return False

    server.will(refuses_late, drops_later)
    journal = Journal(path)
    first, second = make(journal=journal, max_attempts=1), make(journal=journal, max_attempts=1)

    def refused() -> None:
        assert first.post(server.url, Idempotency_Key="k").status == 404
        first_ended.set()

    thread = threading.Thread(target=refused)
    thread.start()
    server.wait_for(1)
    with pytest.raises(FAILURES):
        second.post(server.url, Idempotency_Key="k")
    thread.join()
    assert [one.key for one in journal.pending()] == ["k"]


# ---------------------------------------------------------------- what is sent again


@pytest.mark.parametrize("declared", [False, True])
def test_c18_the_key_is_resumed_in_the_form_in_which_it_was_sent(
    make: Make, server: Server, path: Path, time: Time, declared: bool
) -> None:
    server.will(drops_answer)
    journal = Journal(path)
    with pytest.raises(FAILURES):
        make(journal=journal, hosts=[Host(server.origin, key_syntax="bare")], max_attempts=1).post(server.url)
    hosts = [Host(server.origin)] if declared else []
    (resumed,) = make(journal=journal, hosts=hosts).resume(journal, time.environment.wall)
    assert resumed.error is None
    first, second = (request.header("idempotency-key") for request in server.requests)
    assert second == first


def test_c01_a_header_of_any_bytes_is_resumed(make: Make, server: Server, path: Path, time: Time) -> None:
    journal = Journal(path)
    sender: Any = make(journal=journal, max_attempts=1)
    name, value = b"X-Name", "caf\u00e9".encode("latin-1" if sender.name == "requests" else "utf-8")
    server.will(drops_answer)
    with pytest.raises(FAILURES):
        if sender.name == "httpx":
            sender.client.post(server.url, headers=[(name, value)], content=BODY)
        elif sender.name == "requests":
            sender.session.post(server.url, headers={name: value}, data=BODY)
        else:
            sender.runner.run(sender.client.post(server.url, headers=[(name, value)], content=BODY))
    (resumed,) = sender.resume(journal, time.environment.wall)
    assert resumed.error is None
    assert [request.header("x-name") for request in server.requests] == [value.decode("latin-1")] * 2


def test_c02_resuming_reads_each_body_once(
    make: Make, server: Server, path: Path, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_behind(path, *(entry(server, time, f"k{number}") for number in range(5)))
    journal = Journal(path)
    sender = make(journal=journal)
    # Not deleted: it would come back as the last member of its class, and the reference is generated in order.
    monkeypatch.setattr(Journal, "pending", None)
    assert len(sender.resume(journal, time.environment.wall)) == 5
    assert sorted(server.effects) == [f"k{number}" for number in range(5)]


def test_no_repr_shows_what_is_secret(server: Server, time: Time) -> None:
    one = entry(server, time, "very-secret", url=f"{server.url}?token=secret", body=b"secret")
    for shown in (repr(one), str(one), repr(Resumed(one, None, None))):
        assert "secret" not in shown
        assert one.name in shown


# ---------------------------------------------------------------- processes and tasks


def test_c02_a_process_that_ends_without_a_word_leaves_nothing_behind(path: Path) -> None:
    code = "import sys, os; from retrysafe.http.client import Journal; Journal(sys.argv[1]).owner; os._exit(0)"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=60)
    journal = Journal(path)
    name = journal.owner.name
    assert [one.name for one in path.parent.glob("*.owner-*")] == [f"{path.name}.owner-{name}"]
    journal.close()


def test_c02_a_fork_in_the_midst_of_a_transaction_gives_a_child_that_is_refused(path: Path) -> None:
    journal = Journal(path)
    begun, go_on = threading.Event(), threading.Event()

    def writes() -> None:
        with journal._transaction():
            begun.set()
            go_on.wait(60)

    thread = threading.Thread(target=writes)
    thread.start()
    assert begun.wait(60)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            journal.pending()
        except ConfigurationError as error:
            code = 0 if "forked while its parent used the file" in str(error) else 2
        finally:
            os._exit(code)
    go_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert journal.pending() == []
    journal.close()


@pytest.mark.parametrize("name", ["begin", "settle"])
@pytest.mark.parametrize("by", ["task", "scope"])
def test_c02_a_task_cancelled_while_it_writes_leaves_its_request_to_be_resumed(
    server: Server, path: Path, monkeypatch: pytest.MonkeyPatch, name: str, by: str
) -> None:
    journal = Journal(path)
    writing, written = threading.Event(), threading.Event()
    do: Callable[..., Any] = getattr(journal, name)

    def slowly(*given: Any) -> Any:
        if writing.is_set():
            return do(*given)
        writing.set()
        written.wait(60)
        return do(*given)

    monkeypatch.setattr(journal, name, slowly)

    async def cancelled() -> None:
        retries = Retries([Host(server.origin)], journal=journal, observers=())
        scope = anyio.CancelScope()

        async def post() -> None:
            with scope:
                async with httpx.AsyncClient(transport=AsyncRetryTransport(retries), trust_env=False) as client:
                    await client.post(server.url, content=BODY)
                    raise AssertionError("nobody may have the answer")

        task = asyncio.create_task(post())
        await asyncio.to_thread(writing.wait, 60)
        if by == "task":
            task.cancel()
        else:
            scope.cancel()
        asyncio.get_running_loop().call_later(0.05, written.set)
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled() or by == "scope"
        assert task.cancelled() or task.exception() is None

    asyncio.run(cancelled())
    (pending,) = journal.pending()
    assert not pending.owner
    assert len(server.effects) == (name == "settle")
    journal.close()


# ---------------------------------------------------------------- whose eyes it is for


@pytest.mark.parametrize("mode", [0o644, 0o666, 0o660])
def test_a_journal_that_others_could_read_is_taken_from_them(path: Path, mode: int) -> None:
    Journal(path).close()
    files = [path, path.with_name("calls.db-wal"), path.with_name("calls.db-shm")]
    with sqlite3.connect(path) as keeps:  # so that SQLite leaves its files beside it
        keeps.execute("SELECT * FROM requests").fetchall()
        for file in files:
            file.chmod(mode)
        journal = Journal(path)
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
        journal.close()
    keeps.close()


def test_a_journal_of_somebody_elses_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Journal(path).close()
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(ConfigurationError, match="belongs to another user"):
        Journal(path)


def test_other_objects_beside_a_journal_are_refused(path: Path, tmp_path: Path) -> None:
    path.with_name("calls.db-wal").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="belongs to another user"):
        Journal(path)


def test_headers_whose_names_tell_of_a_secret_are_not_written(path: Path, time: Time) -> None:
    def fails(_: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("cut")

    names = ["X-Vault-Token", "Ocp-Apim-Subscription-Key", "X-Client-Secret", "X-Session-Id", "X-Signature", "X-Own"]
    journal = Journal(path, secrets=["X-Own"])
    retries = Retries(
        [Host("https://api.example.com")], journal=journal, max_attempts=1, environment=time.environment, observers=()
    )
    transport = RetryTransport(retries, httpx.MockTransport(fails))
    with httpx.Client(transport=transport) as client, pytest.raises(httpx.ReadError):
        client.post("https://api.example.com/", headers={**dict.fromkeys(names, "s3cr3t"), "X-Plain": "kept"})
    (left,) = journal.pending()
    assert ("x-plain", "kept") in left.headers
    assert "s3cr3t" not in str(left.headers)
    journal.close()
