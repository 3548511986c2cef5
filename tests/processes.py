"""Child processes of tests, which speak in lines on their standard output."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 60.0
"""Seconds within which a child says its next line, and ends when it is told to."""


def environment() -> dict[str, str]:
    """The environment of a child process that imports what this one imports."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*(path for path in sys.path if path), str(ROOT)])}


class Program(subprocess.Popen[str]):
    """A program, which is killed if its ``with`` block fails: `subprocess.Popen` would wait for it without end."""

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, *rest)


def ended_by(process: Program, number: int) -> bool:
    """Tell whether it has ended, now that it was sent the signal once more."""
    process.send_signal(number)
    with suppress(subprocess.TimeoutExpired):
        process.wait(0.05)
    return process.returncode is not None


class Child:
    """A child process, which is killed at the end of its ``with`` block if it has not ended by then."""

    def __init__(self, *command: str, env: Mapping[str, str] = {}) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=ROOT, env={**environment(), **env}
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._errors: list[str] = []
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._errors.append(line)
            sys.stderr.write(line)

    @property
    def errors(self) -> str:
        """Its output on standard error."""
        return "".join(self._errors)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()

    def hears(self) -> str:
        """The next line it says; empty when it has ended."""
        try:
            line = self._lines.get(timeout=PATIENCE)
        except queue.Empty:
            raise AssertionError("the child said nothing in time") from None
        if line is None:
            self._lines.put(None)  # for whoever asks again
        return line or ""

    def until(self, beginning: str) -> str:
        """Wait for a line that begins so; return its rest."""
        while not (line := self.hears()) or not line.startswith(beginning):
            assert line, f"it ended: {self.errors}"
        return line.removeprefix(beginning).strip()

    def go_on(self) -> None:
        """Let it go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("go on\n")
        self.process.stdin.flush()

    def says(self) -> list[str]:
        """All lines that it still says until it ends."""
        found = list(iter(self.hears, ""))
        self.ends()
        self._close()
        return found

    def ends(self) -> int:
        """Its exit code, when it has ended."""
        return self.process.wait(PATIENCE)

    def stop(self) -> int:
        """Its exit code after a SIGTERM."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.ends()
        self._close()
        return code

    def kill(self) -> None:
        """SIGKILL, if it has not ended."""
        with suppress(ProcessLookupError):
            self.process.kill()
        self.ends()
        self._close()

    def _close(self) -> None:
        for reader in self._readers:
            reader.join(PATIENCE)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with suppress(BrokenPipeError):
                pipe.close() if pipe is not None else None
