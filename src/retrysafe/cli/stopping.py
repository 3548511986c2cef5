"""Stops commands that run until a signal: the first one lets them finish, the second one ends them at once."""

from __future__ import annotations

import argparse
import logging
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.stop_signal import stopped_by_signals

_LOG = logging.getLogger("retrysafe")
WITHIN = 25.0
"""Seconds for which an orderly end may take: less than the 30 s after which Kubernetes sends SIGKILL."""


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

    A thread says it: a handler of signals may have interrupted the main thread while it was writing itself.
    """
    heard: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def first() -> None:
        stop()
        heard.put(True)

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
    try:
        with stopped_by_signals(first, again=lambda number: os._exit(128 + number)):
            yield
    finally:
        heard.put(False)
        telling.join()


def add_stop_within(parser: argparse.ArgumentParser) -> None:
    """Add the option that says how long an orderly end may take."""
    parser.add_argument(
        "--stop-within",
        metavar="TIME",
        default=f"{WITHIN:g}s",
        help="after SIGTERM or SIGINT: end at once when what is in progress takes longer (default: 25s)",
    )


def stop_within(options: argparse.Namespace) -> float:
    """The seconds that it says."""
    return seconds_of(options.stop_within, "--stop-within")
