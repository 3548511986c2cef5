"""A test that hangs is named, and the run goes on; children have nothing of earlier tests."""

from __future__ import annotations

from pathlib import Path

import pytest

HANGING = """
import asyncio, os, signal, threading

def hang():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

def test_waits_for_a_child_that_hangs():
    if (child := os.fork()) == 0:
        hang()
    os.waitpid(child, 0)

async def test_waits_on_the_loop():
    await asyncio.Event().wait()

def test_cannot_be_interrupted_and_leaves_a_child_that_hangs():
    if os.fork() == 0:
        hang()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    hang()

def test_beside_them():
    pass
"""


@pytest.mark.one_of("the suite's own tools", of=2)
@pytest.mark.slow
def test_a_test_that_hangs_is_named_and_the_run_goes_on(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that had the pipe of a worker which had ended kept the whole run waiting for ever."""
    pytester.makepyfile(HANGING)
    pytester.makeini("[pytest]\nasyncio_mode = auto\nfaulthandler_timeout = 8\nfaulthandler_exit_on_timeout = true")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    plugins = ("xdist.plugin", "pytest_asyncio.plugin", "tests.deadlines", "tests.forking")
    words = (word for name in plugins for word in ("-p", name))
    ended = pytester.runpytest_subprocess(*words, "-n", "1", timeout=200)
    ended.assert_outcomes(passed=1, failed=3)
    ended.stdout.fnmatch_lines_random(
        [
            "E *Failed: hung for 6 s",
            "FAILED *::test_waits_for_a_child_that_hangs*",
            "FAILED *::test_waits_on_the_loop*",
            "*crashed while running '*::test_cannot_be_interrupted_and_leaves_a_child_that_hangs'*",
        ]
    )
    ended.stderr.fnmatch_lines(["*in hang"])


LEAVING = """
import gc, os

class Client:
    def __del__(self):
        if os.getpid() != parent:
            os._exit(9)

parent = os.getpid()

def test_leaves_a_client():
    gc.disable()
    client = Client()
    client.itself = client

def test_forks():
    if (child := os.fork()) == 0:
        gc.collect()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.slow
def test_a_child_collects_nothing_that_an_earlier_test_has_left(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients of gRPC and Kafka crash it, or keep it waiting for ever."""
    pytester.makepyfile(LEAVING)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.runpytest_subprocess("-p", "tests.forking", timeout=60).assert_outcomes(passed=2)
