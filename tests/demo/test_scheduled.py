"""The mishaps of a worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

STOPS = 30
_STOPPING = f"""
import os, threading
from retrysafe_demo.schedule import Fault
from retrysafe_demo.scheduled import Scheduled

def stop():
    for number in range({STOPS}):
        Scheduled(number, Fault.PAUSE_BEFORE_CHARGE, lambda number: None).before_charge()

thread = threading.Thread(target=stop)
thread.start()
thread.join()
"""


@pytest.mark.slow
def test_a_thread_that_stops_its_process_says_nothing_until_it_goes_on() -> None:
    """A signal to the process alone may be another thread's, and the one that sent it would run on for a while."""
    with subprocess.Popen([sys.executable, "-c", _STOPPING], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pipe, said = process.stdout.fileno(), b""
        try:
            for _ in range(STOPS):
                _, status = os.waitpid(process.pid, os.WUNTRACED)
                assert os.WIFSTOPPED(status)
                said += os.read(pipe, 65536)
                assert b"pausing" in said.splitlines()[-1]
                process.send_signal(signal.SIGCONT)
            said += process.stdout.read()
            process.wait(60)
        finally:
            process.kill()  # a stopped process would be waited for without end
    assert process.returncode == 0
    assert said.count(b"resumed") == said.count(b"pausing") == STOPS
