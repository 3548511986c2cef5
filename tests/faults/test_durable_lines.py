"""Files that processes append to: a line that somebody is writing is not one that a crash has cut short."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from retrysafe.admin.archive import JsonLines
from retrysafe.admin.audit import AuditFile
from retrysafe.admin.durable_lines import appending
from retrysafe.backends.driver import run
from retrysafe.backends.registry import connect
from retrysafe.protocol.procedures import forgotten
from tests.faults.helpers import fill, until
from tests.tables import each_row

Append = Callable[[], object]


def audit(path: Path) -> Append:
    """Writes one line to an audit file."""
    return lambda: AuditFile(path)({"n": 1})


def archive(path: Path) -> Append:
    """Writes one line to an archive."""
    url = f"sqlite:///{path}.db"
    backend = connect(url)
    fill(url, 1)
    records = run(forgotten(backend.store, 10), backend.client())
    return lambda: JsonLines(path)(records)


@each_row("kind", [audit, archive])
def test_a_line_being_written_is_not_taken_for_a_torn_one(kind: Callable[[Path], Append], tmp_path: Path) -> None:
    path = tmp_path / "lines"
    thread = threading.Thread(target=kind(path))
    with path.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write('{"format":')
        other.flush()
        thread.start()
        until(lambda: not thread.is_alive() or is_waited_for(path))
        other.write("1}\n")
    thread.join(60)
    first, second = path.read_text().splitlines()
    assert first == '{"format":1}'
    assert second.startswith("{")


def is_waited_for(path: Path) -> bool:
    """Tell whether a process waits for the lock on the file."""
    inode = f":{path.stat().st_ino} "
    return any("->" in lock and inode in lock for lock in Path("/proc/locks").read_text().splitlines())


def test_a_folder_that_cannot_be_synchronised_is_no_reason_to_fail_but_a_broken_disk_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(number: int) -> None:
        def fsync(file: int) -> None:
            if stat.S_ISDIR(os.fstat(file).st_mode):
                raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", fsync)

    fail(errno.EINVAL)
    with appending(tmp_path / "odd", 0o600):
        pass
    fail(errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)), appending(tmp_path / "broken", 0o600):
        pytest.fail("its name may not last")
