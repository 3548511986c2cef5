"""The threads in which claims of event loops are entered, where a store serves sync code only."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from retrysafe.entrypoint import _in_entering


@pytest.mark.slow
def test_claims_of_an_event_loop_are_entered_in_a_child_of_its_process() -> None:
    """An executor counts on idle threads, which only the parent has: the child waited for ever."""
    with asyncio.Runner() as runner:
        assert runner.run(_in_entering(os.getpid)) == os.getpid()
        if (child := os.fork()) == 0:
            signal.alarm(30)
            os._exit(runner.run(_in_entering(os.getpid)) != os.getpid())
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert runner.run(_in_entering(os.getpid)) == os.getpid()
