"""A row in a process of its own: what breaks or hangs there is reported, and nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

GRACE = 10
"""Seconds in which a row that takes too long may take down what it has set up."""


class RowFailed(Exception):
    """A row could not be measured; the text says why."""


def measured(module: str, row: str, effort: str, seconds: float) -> dict[str, Any]:
    """Return the result of `benchmarks.measuring`. Raises `RowFailed`, also when it takes longer than ``seconds``."""
    with tempfile.TemporaryDirectory() as folder:
        found, log = Path(folder, "found.json"), Path(folder, "log")
        command = [sys.executable, "-m", "benchmarks.measuring", module, row, effort, str(found)]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)  # so that it drops its databases
                with suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE)
                raise RowFailed(f"not done after {seconds:.0f} s") from None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if code:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise RowFailed(lines[-1][:500] if lines else f"exit code {code}")
        result: dict[str, Any] = json.loads(found.read_text(encoding="utf-8"))
        return result
