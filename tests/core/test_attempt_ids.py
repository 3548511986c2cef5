"""Attempt ids name the process that made them, whatever its machine is called."""

from __future__ import annotations

import os

import pytest

from retrysafe.claims import attempt_ids
from retrysafe.claims.attempt_ids import LONGEST, Worker, new, worker_of
from tests.tables import each_row


def test_an_id_is_new_and_names_this_process() -> None:
    first, second = new(), new()
    assert first != second
    worker = worker_of(first)
    assert worker is not None
    assert worker == worker_of(second)
    assert worker.pid == os.getpid()
    assert os.uname().nodename.split(".")[0].endswith(worker.host)


@pytest.mark.slow
def test_a_forked_child_has_ids_of_its_own() -> None:
    new()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, new().encode())
        os._exit(0)
    os.waitpid(child, 0)
    told = os.read(reading, 100).decode()
    os.close(reading)
    os.close(writing)
    worker = worker_of(told)
    assert worker is not None
    assert worker.pid == child


@each_row(
    ("name", "host"),
    [
        ("web-3.prod.example.com", "web-3"),
        ("payments-api-7d9f8b6c5d-x2x4z", "payments-api-7d9f8b6c5d-x2x4z"),
        ("x" * 250, "x" * 250),
        ("a@b:1 c\x1b[2J\n'$(id)", "a-b-1-c--2J----id-"),
        ("käse", "k-se"),
        ("", "unnamed"),
    ],
)
def test_an_id_is_one_plain_word_that_every_store_takes(monkeypatch: pytest.MonkeyPatch, name: str, host: str) -> None:
    class Named:
        nodename = name

    monkeypatch.setattr("os.uname", Named)
    attempt_ids._worker.cache_clear()
    made = new()
    attempt_ids._worker.cache_clear()
    assert len(made) <= LONGEST
    assert made.isascii()
    worker = worker_of(made)
    assert worker is not None
    assert worker.host in (host, host[-len(worker.host) :])
    assert len(worker.host) > min(len(host), 24) - 1


@each_row("attempt", ["", "0" * 32, "a@b", "a@b:", "a@:7", "a@b:x", "a@b:²", "a@b:-7"])
def test_an_id_of_another_kind_names_nobody(attempt: str) -> None:
    assert worker_of(attempt) is None


def test_of_a_host_with_colons_the_last_one_counts() -> None:
    assert worker_of("a@::1:7") == Worker("::1", 7)
