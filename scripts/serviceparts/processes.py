"""Processes of servers: found, signalled, killed with all their children, run as another user."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serviceparts.errors import ServiceError
from serviceparts.places import LOOPBACK, STOP_DEADLINE

POLL_INTERVAL = 0.05


@dataclass(frozen=True)
class Process:
    """A server that we started; `born` (in clock ticks since boot) tells it from a later user of its pid."""

    pid: int
    born: int
    port: int

    def alive(self) -> bool:
        return birth(self.pid) == self.born


def proc_stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the command's name, or None when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def birth(pid: int) -> int | None:
    """Return the start time of the process, or None when it is gone (a zombie is gone)."""
    fields = proc_stat(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else None


def descendants(pid: int) -> list[int]:
    """Every living child of the process, and theirs."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := proc_stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    queue = [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def send(pid: int, signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll until the condition holds; False when the time is over."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_INTERVAL)
    return True


def kill_tree(process: Process) -> None:
    """SIGKILL the process and all below it. It is frozen first, so that it can neither fork nor tidy up."""
    send(process.pid, signal.SIGSTOP)
    doomed = [(pid, birth(pid)) for pid in (process.pid, *descendants(process.pid))]
    for pid, _ in doomed:
        send(pid, signal.SIGKILL)
    gone = wait_for(lambda: all(born is None or birth(pid) != born for pid, born in doomed), STOP_DEADLINE)
    if not gone:
        raise ServiceError(f"process {process.pid} or a child of it outlived SIGKILL")


def answers_on(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), timeout=1).close()
    except OSError:
        return False
    return True


def say(text: str) -> None:
    """A line to whoever waits, whole also where several are written at once."""
    sys.stderr.write(f"{text}\n")


def quiet(command: list[str], user: str | None = None) -> bool:
    """Run the command with its output thrown away; whether it succeeded."""
    return subprocess.run(command, capture_output=True, check=False, **identity(user)).returncode == 0


def identity(user: str | None) -> dict[str, Any]:
    """The arguments that make `subprocess` run a command as another user."""
    if user is None:
        return {}
    entry = pwd.getpwnam(user)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": [], "cwd": "/"}


def user_exists(name: str) -> bool:
    """Tell whether the system has a user of this name."""
    return any(entry.pw_name == name for entry in pwd.getpwall())


def logged(command: list[str], log: Path, within: float = 1200) -> bool:
    """Run the command with its output appended to the log; whether it succeeded ``within`` so many seconds."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        try:
            done = subprocess.run(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, timeout=within)
        except subprocess.TimeoutExpired as late:
            output.write(f"{late}\n".encode())
            return False
        return done.returncode == 0
