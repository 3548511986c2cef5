"""Stops commands that run until a signal: the first one lets them finish, the second one ends them at once."""

from __future__ import annotations

import argparse
import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from retrysafe import runtime
from retrysafe.cli.options import add_option
from retrysafe.protocol.durations import seconds as seconds_of

_LOG = logging.getLogger("retrysafe")
WITHIN = 25.0
"""Seconds for which an orderly end may take: less than the 30 s after which Kubernetes sends SIGKILL."""
SAME = 1.0
"""Seconds for which a further signal is the first one again: a terminal and a supervisor may both pass on a Ctrl-C."""


def end_process(number: int, _: object) -> NoReturn:
    """Do what a signal without a handler does."""
    os._exit(128 + number)


_UNHANDLED = (signal.SIG_DFL, signal.default_int_handler, end_process)


def heed_as_first_process() -> None:
    """Let SIGTERM end a process with the id 1, as in a container: the kernel hands it no signal without a handler."""
    if runtime.pid == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end_process)


@contextmanager
def end_by_signals(
    stop: Callable[[], None],
    waits_for: Callable[[], str],
    say: Callable[[str], None] = _LOG.info,
    *,
    within: float = WITHIN,
) -> Iterator[None]:
    """Let the first SIGTERM or SIGINT call ``stop``, and say what is waited for; let the second end the process.

    So does the end of ``within`` seconds: a database and a broker that have fallen silent are waited for in turn, each
    for as long as its own time limit.

    ``waits_for`` is asked when the first has come. The second ends the process with exit code 128 + its number, without
    waiting for threads: one of them may be what never ends.

    A thread says it: a handler of signals may have interrupted the main thread while it was writing itself. Only the
    main thread may set handlers; a signal that the program handles keeps its own.
    """
    heard: queue.SimpleQueue[bool] = queue.SimpleQueue()
    process = runtime.pid
    first: float | None = None

    def hear(number: int, _: object) -> None:
        nonlocal first
        now = time.monotonic()
        if process != runtime.pid:  # a child that a handler has forked
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        elif first is None:
            first = now
            stop()
            heard.put(True)
        elif now - first > SAME:
            end_process(number, None)

    def tell() -> None:
        if not heard.get():
            return
        say(f"Stopping: {waits_for()} A second SIGTERM or SIGINT ends the process at once.")
        try:
            heard.get(timeout=within)
        except queue.Empty:
            _LOG.warning("What is waited for has not ended within %g s (--stop-within): the process ends now.", within)
            os._exit(128 + signal.SIGTERM)

    telling = threading.Thread(target=tell, name="retrysafe-stopping", daemon=True)
    telling.start()
    before: dict[signal.Signals, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                if signal.getsignal(number) in _UNHANDLED:
                    before[number] = signal.signal(number, hear)
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is hear:  # else a library has taken it meanwhile
                signal.signal(number, handler)
        heard.put(False)
        telling.join()


def add_stop_within(parser: argparse.ArgumentParser) -> None:
    add_option(
        parser,
        "--stop-within TIME",
        "after SIGTERM or SIGINT: end at once when what is in progress takes longer (default: 25s)",
        f"{WITHIN:g}s",
    )


def stop_within(options: argparse.Namespace) -> float:
    return seconds_of(options.stop_within, "--stop-within")
