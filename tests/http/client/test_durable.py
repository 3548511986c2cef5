"""C2 and C3: requests that survive their client, whatever kills it."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from retrysafe import ConfigurationError
from retrysafe.backends.sql.drivers.sqlite_pool import Borrowed
from retrysafe.http.client import (
    Host,
    Journal,
    JournalUnavailable,
    RequestKeyReused,
    RequestOutcomeUnknown,
    RequestTooLarge,
    Resumed,
    Retries,
)
from retrysafe.http.client.hosts import origin_of
from retrysafe.http.client.httpx import AsyncRetryTransport, aresume
from retrysafe.http.client.journal import Entry, identity
from tests.http.client.child import BODY
from tests.http.client.conftest import Make
from tests.http.client.senders import FAILURES, SENDERS, Time
from tests.http.client.server import Received, Server, delayed, drops_answer, running, says, stalls, well
from tests.http.observing import Recorder
from tests.ports import free_port

pytestmark = pytest.mark.slow

PATIENCE = 60


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "calls.db"


def child(role: str, sender: str, path: Path, url: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.http.client.child", role, sender, str(path), url]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=PATIENCE)


def entry(server: Server, time: Time, key: str = "k", **fields: Any) -> Entry:
    """Write the entry of a process that died without a trace."""
    now = time.environment.wall()
    made = Entry(identity("", server.url, key), "", key, "POST", server.url, (), BODY, now, now + 86400)
    return made._replace(**fields)


def left_behind(path: Path, *entries: Entry) -> None:
    """Put entries into a journal as a process would that is no more."""
    dead = Journal(path)
    for one in entries:
        dead.begin(one, one.created, 60)
    dead.close()


def test_c02_the_request_is_in_the_journal_before_its_first_byte_leaves(make: Make, server: Server, path: Path) -> None:
    found: list[tuple[Any, ...]] = []

    def looks(at: Server, connection: Any, request: Received) -> bool:
        with closing(sqlite3.connect(path)) as other:
            found.extend(other.execute("SELECT key, method, url, headers, body FROM requests"))
        return says(201)(at, connection, request)

    server.will(looks)
    journal = Journal(path)
    make(journal=journal).post(
        server.url.replace("//", "//user:password@"),
        BODY,
        Content_Type="application/json",
        Authorization="Bearer secret",
        Cookie="secret=1",
        X_Api_Key="secret",
    )
    ((key, method, url, headers, body),) = found
    assert (key, method, url, body) == (server.keys[0], "POST", server.url, BODY)
    assert '["content-type", "application/json"]' in headers
    assert "secret" not in headers + url
    assert "password" not in headers + url
    assert path.stat().st_mode & 0o777 == 0o600
    assert journal.pending() == []


def test_c02_the_journal_is_on_disk_before_it_returns(path: Path, server: Server, time: Time) -> None:
    journal = Journal(path)
    with Borrowed(journal._connections) as connection:
        pass  # it keeps one, and uses that
    for do, synchronous in (
        (lambda: journal.begin(entry(server, time), 0, 1), 2),
        (lambda: journal.settle(entry(server, time).id), 1),
        (lambda: journal.release(entry(server, time).id), 2),
    ):
        do()
        assert connection.execute("PRAGMA synchronous").fetchone() == (synchronous,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    journal.close()


def test_c02_a_client_killed_in_mid_request_resumes_with_its_key(
    make: Make, server: Server, path: Path, time: Time
) -> None:
    server.will(stalls)
    process = child("sends", make().name, path, server.url)
    server.wait_for(1)
    kill(process)
    journal = Journal(path)
    again = make(journal=journal, client={"headers": {"Authorization": "Bearer new"}, "params": {"not": "added"}})
    (resumed,) = again.resume(journal, time.environment.wall)
    assert resumed.response.status_code == 201
    assert resumed.response.headers["idempotent-replayed"] == "true"
    first, second = server.requests
    assert (
        (second.key, second.target, second.body)
        == (first.key, first.target, first.body)
        == (first.key, "/orders", BODY)
    )
    assert second.header("content-type") == "application/json"
    assert second.header("x-trace") == "t1"
    assert (first.header("authorization"), second.header("authorization")) == ("Bearer secret", "Bearer new")
    assert server.effects == [first.key]
    assert again.resume(journal, time.environment.wall) == []


def test_c02_a_client_killed_before_the_first_byte_resumes(make: Make, server: Server, path: Path) -> None:
    process = child("dies", make().name, path, server.url)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == -9
    assert server.requests == []
    journal = Journal(path)
    (pending,) = journal.pending()
    (resumed,) = make(journal=journal).resume(journal, lambda: pending.created)
    assert resumed.response.status_code == 201
    assert server.effects == [pending.key]


def test_c02_several_processes_resume_each_request_once(server: Server, path: Path, time: Time) -> None:
    import time as real

    time.offset = real.time() - time.now
    left_behind(path, *(entry(server, time, f"k{number}") for number in range(24)))
    server.will(*[delayed(well)] * 4)
    processes = [child("resumes", sender, path, server.url) for sender in [*SENDERS, "httpx"]]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    server.wait_for(4)
    assert len(set(server.keys)) == 4, "all are at work, each at another request"
    server.go_on.set()
    counts = [int(process.communicate(timeout=PATIENCE)[0]) for process in processes]
    assert sum(counts) == 24
    assert sorted(server.effects) == sorted(f"k{number}" for number in range(24))
    assert len(server.requests) == 24


def test_c02_two_journals_of_one_process_share_a_file(make: Make, server: Server, path: Path, time: Time) -> None:
    left_behind(path, entry(server, time))
    one, other = Journal(path), Journal(path)
    assert one.owner is not other.owner
    server.will(says(503))
    (resumed,) = make(journal=other, max_attempts=1).resume(one, time.environment.wall)
    assert resumed.response.status_code == 503
    other.close()
    (pending,) = one.pending()
    assert (pending.owner, pending.last) == ("", "503")
    assert one.take(pending.id, time.environment.wall(), 60) is not None
    with Journal(path)._transaction():
        pass
    assert one.is_held(one.pending()[0], time.environment.wall()), "its name lasts as long as it is open"
    name = one.owner.name
    one.close()
    assert list(path.parent.glob(f"*{name}*")) == []


def test_c02_entries_of_a_living_process_are_left_alone(make: Make, server: Server, path: Path, time: Time) -> None:
    server.will(stalls)
    import time as real

    time.offset = real.time() - time.now
    process = child("sends", "httpx", path, server.url)
    server.wait_for(1)
    journal = Journal(path)
    sender = make(journal=journal)
    assert sender.resume(journal, time.environment.wall) == []
    time.now += 3600
    assert len(sender.resume(journal, time.environment.wall)) == 1, "what it holds is free when its deadline has passed"
    assert len(server.effects) == 1
    kill(process)


def test_c02_doubtful_entries_stay_and_answered_ones_go(make: Make, server: Server, path: Path) -> None:
    journal = Journal(path)
    sender = make(journal=journal, max_attempts=2)
    server.will(says(503), says(503))
    assert sender.post(server.url).status == 503
    server.will(drops_answer, drops_answer)
    with pytest.raises(FAILURES) as failed:
        sender.post(server.url)
    assert "stays in the journal" in failed.value.__notes__[0]
    assert next((one.last, one.attempts, one.owner) for one in journal.pending()) == ("503", 2, "")
    assert len(journal.pending()) == 2
    server.will(drops_answer, says(403))
    assert sender.post(server.url).status == 403
    assert len(journal.pending()) == 3, "a refusal by who knows no keys says nothing of the attempt before it"
    for _ in range(2):
        assert sender.post(server.url).status == 201
    server.will(says(404))
    assert sender.post(server.url).status == 404
    assert len(journal.pending()) == 3


def test_c02_entries_certainly_not_sent_do_not_stay(make: Make, path: Path) -> None:
    journal = Journal(path)
    url = f"http://127.0.0.1:{free_port()}/"
    with pytest.raises(FAILURES):
        make(journal=journal, hosts=[Host(origin_of(url))]).post(url)
    assert journal.pending() == []


def test_c02_a_cancelled_request_stays(make: Make, server: Server, path: Path, time: Time) -> None:
    class Stop(BaseException):
        pass

    def stop(occurrence: Any) -> None:
        if occurrence.name == "request_retried":
            raise Stop

    server.will(drops_answer)
    journal = Journal(path)
    with pytest.raises(Stop):
        make(journal=journal, observers=[stop]).post(server.url)
    (resumed,) = make(journal=journal).resume(journal, time.environment.wall)
    assert resumed.response.status_code == 201
    assert len(server.effects) == 1


@pytest.mark.parametrize("hedge_after", [None, 30])
def test_c02_a_cancelled_task_leaves_its_request_to_be_resumed(
    server: Server, path: Path, time: Time, hedge_after: float | None
) -> None:
    journal = Journal(path)
    retries = Retries(
        [Host(server.origin)], journal=journal, hedge_after=hedge_after, observers=(), environment=time.environment
    )

    async def cancelled() -> list[Resumed]:
        async with httpx.AsyncClient(transport=AsyncRetryTransport(retries), trust_env=False) as client:
            task = asyncio.create_task(client.post(server.url, content=BODY))
            await asyncio.to_thread(server.wait_for, 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return [one async for one in aresume(client, journal, wall=time.environment.wall)]

    server.will(stalls)
    (resumed,) = asyncio.run(cancelled())
    assert resumed.response.headers["idempotent-replayed"] == "true"
    assert (len(server.requests), len(server.effects)) == (2, 1)
    assert journal.pending() == []
    journal.close()


def test_c02_the_same_key_goes_on_where_it_was(make: Make, server: Server, path: Path, time: Time) -> None:
    left_behind(path, entry(server, time, "order-17"))
    journal = Journal(path)
    sender = make(journal=journal)
    with pytest.raises(RequestKeyReused, match="in the journal"):
        sender.post(server.url, b"another body", Idempotency_Key="order-17")
    assert server.requests == []
    time.now += 86400
    with pytest.raises(RequestOutcomeUnknown):
        sender.post(server.url, BODY, Idempotency_Key="order-17")
    time.now -= 86400
    assert sender.post(server.url, BODY, Idempotency_Key="order-17").status == 201
    assert server.effects == ["order-17"]


def test_c02_nothing_is_sent_that_cannot_be_journalled(make: Make, server: Server, path: Path) -> None:
    journal = Journal(path)
    sender = make(journal=journal, body_limit=4)
    with pytest.raises(RequestTooLarge):
        sender.post(server.url, iter([b"one", b"two"]))
    with journal._transaction() as connection:
        connection.execute("DROP TABLE requests")
    with pytest.raises(JournalUnavailable):
        sender.post(server.url)
    assert server.requests == []


def test_c02_an_answer_is_not_lost_with_the_journal(make: Make, server: Server, path: Path, seen: Recorder) -> None:
    journal = Journal(path)

    def breaks(at: Server, connection: Any, request: Received) -> bool:
        with closing(sqlite3.connect(path)) as other:
            other.execute("ALTER TABLE requests RENAME TO gone")
        return says(201)(at, connection, request)

    server.will(breaks)
    assert make(journal=journal).post(server.url).status == 201
    assert "request_unsettled" in seen.names


def test_c03_past_its_retention_a_request_is_not_sent(make: Make, server: Server, path: Path, time: Time) -> None:
    left_behind(path, entry(server, time), entry(server, time, "undeclared", recognised_until=None))
    journal = Journal(path)
    sender = make(journal=journal)
    time.now += 86400
    found = sender.resume(journal, time.environment.wall)
    assert [type(one.error) for one in found] == [RequestOutcomeUnknown] * 2
    assert server.requests == []
    assert len(journal.pending()) == 2, "they stay until a person discards them"
    assert journal.discard(found[0].entry.id)
    assert len(journal.pending()) == 1


def test_c03_nor_between_two_attempts(make: Make, server: Server, time: Time) -> None:
    server.will(drops_answer, says(503, headers={"Retry-After": "30"}))
    with pytest.raises(RequestOutcomeUnknown):
        make(hosts=[Host(server.origin, retention=20)]).post(server.url)
    assert len(server.requests) == 2
    assert len(set(server.keys)) == 1


def test_a_client_without_the_journal_is_noticed(make: Make, server: Server, path: Path, time: Time) -> None:
    left_behind(path, entry(server, time))
    journal = Journal(path)
    with pytest.raises(ConfigurationError, match="has no retrysafe transport with this journal"):
        make().resume(journal, time.environment.wall)
    (pending,) = journal.pending()
    assert pending.owner == ""
    journal.close()


def test_scopes_do_not_meet(make: Make, server: Server, path: Path, time: Time) -> None:
    other = Journal(path, scope="tenant-b")
    server.will(drops_answer)
    with pytest.raises(FAILURES):
        make(journal=other, max_attempts=1).post(server.url, BODY, Idempotency_Key="k")
    journal = Journal(path)
    sender = make(journal=journal)
    assert sender.post(server.url, b"another", Idempotency_Key="k").status == 201
    assert sender.resume(journal, time.environment.wall) == []
    assert len(other.pending()) == 1


def test_credentials_go_only_where_they_are_meant_for(make: Make, server: Server, path: Path, time: Time) -> None:
    with running() as other:
        elsewhere = entry(server, time, "theirs")._replace(url=other.url, id=identity("", other.url, "theirs"))
        left_behind(path, entry(server, time, "ours"), elsewhere)
        journal = Journal(path)
        sender = make(journal=journal, client={"headers": {"Authorization": "Bearer ours"}})
        assert len(sender.resume(journal, time.environment.wall, origin=server.origin)) == 1
        if sender.name != "requests":
            based = make(journal=journal, client={"base_url": server.origin})
            assert based.resume(journal, time.environment.wall) == []
        assert (server.keys, other.requests) == (["ours"], [])
        hosts = [Host(other.origin)]
        assert len(make(journal=journal, hosts=hosts).resume(journal, time.environment.wall)) == 1
        assert other.effects == ["theirs"]


def test_a_file_of_something_else_is_refused(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE precious (line TEXT)")
    with pytest.raises(ConfigurationError, match="a database of another application"):
        Journal(path)
    with pytest.raises(JournalUnavailable):
        Journal(path / "no" / "folder.db")


def test_a_forked_child_has_a_name_of_its_own(path: Path, time: Time, server: Server) -> None:
    import os

    journal = Journal(path)
    mine = journal.owner.name
    journal.begin(entry(server, time), time.environment.wall(), 60)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(
            writing, f"{journal.owner.name} {journal.take(entry(server, time).id, time.environment.wall(), 1)}".encode()
        )
        os._exit(0)
    os.waitpid(pid, 0)
    told = os.read(reading, 1000).decode().split()
    os.close(reading)
    os.close(writing)
    assert told[0] != mine
    assert told[1] == "None", "its parent is at it"
    journal.close()


def test_retries_without_a_journal_write_nothing(make: Make, server: Server, tmp_path: Path) -> None:
    make().post(server.url)
    assert list(tmp_path.iterdir()) == []
    assert Retries().journal is None
