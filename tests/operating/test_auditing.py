"""The audit file: whole lines, on disk, appended."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from retrysafe.admin.audit import AuditFile
from tests.operating.test_operator import at_once


def entries(path: Path) -> list[int]:
    return [json.loads(line)["n"] for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_entry_is_on_disk_before_we_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.jsonl"
    synced: list[list[int]] = []
    fsync = os.fsync

    def sync(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(entries(path))

    monkeypatch.setattr(os, "fsync", sync)
    AuditFile(path)({"n": 1})
    assert synced == [[], [1]], "its entry in the folder, then the file"
    AuditFile(path)({"n": 2})
    assert synced[2:] == [[1, 2]]


def test_a_line_that_a_crash_cut_short_does_not_swallow_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text('{"n": 1}\n{"n": ')
    AuditFile(path)({"n": 2, "reason": "größer"})
    assert path.read_text(encoding="utf-8").splitlines()[2] == '{"n": 2, "reason": "größer"}'


def test_entries_of_several_operators_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    write = AuditFile(path)

    def many(start: int) -> None:
        for n in range(start, start + 50):
            write({"n": n, "padding": "x" * 500})

    at_once(*(lambda start=start: many(start) for start in range(0, 200, 50)))
    assert sorted(entries(path)) == list(range(200))


def test_others_cannot_read_it(tmp_path: Path) -> None:
    AuditFile(tmp_path / "audit.jsonl")({"n": 1})
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o007 == 0
