"""An orderly end that does not come: the process ends by itself, within what a supervisor waits."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, threading
from retrysafe.cli.stopping import ended_by_signals
with ended_by_signals(lambda: None, lambda: "the broker is silent.", within=0.1):
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait()
"""


@pytest.mark.slow
@pytest.mark.fault(86)
def test_an_end_that_takes_too_long_is_cut_off() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 128 + signal.SIGTERM
    assert "has not ended within 0.1 s (--stop-within)" in done.stderr
