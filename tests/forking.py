"""The resources that forked children of tests must not have: the pipes of their worker, and garbage of earlier tests.

The end of a worker would go unseen for as long as a child has its pipes. Clients of Kafka and gRPC that a test has left
to the garbage collector crash a child that collects them, or keep it waiting for threads that only its parent has.
"""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Generator
from typing import Any

import pytest

_ended: list[str] = []
"""Tests since the last collection."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Note that something may have been left."""
    try:
        return (yield)
    finally:
        _ended.append(item.nodeid)


def pytest_sessionstart(session: pytest.Session) -> None:
    """See to each fork."""
    os.register_at_fork(before=_collect)
    for plugin in session.config.pluginmanager.get_plugins():
        if type(plugin).__name__ == "WorkerInteractor":
            _keep_from_children(plugin.channel.gateway._io)


def _collect() -> None:
    if _ended:
        _ended.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # of what an earlier test has left open
            gc.collect()


def _keep_from_children(pipes: Any) -> None:
    ends = {pipes.infile.fileno(): os.O_RDONLY, pipes.outfile.fileno(): os.O_WRONLY}

    def leave() -> None:
        for end, how in ends.items():
            nothing = os.open(os.devnull, how)
            os.dup2(nothing, end)
            os.close(nothing)

    os.register_at_fork(after_in_child=leave)
