"""How commands end that run until they are stopped: at the first signal in good order, at the second at once."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from retrysafe.stop_signal import stopped_by_signals

_LOG = logging.getLogger("retrysafe")


@contextmanager
def ended_by_signals(
    stop: Callable[[], None], waits_for: Callable[[], str], say: Callable[[str], None] = _LOG.info
) -> Iterator[None]:
    """Let the first SIGTERM or SIGINT call ``stop``, and say what is waited for; let the second end the process.

    ``waits_for`` is asked when the first has come. The second ends the process with exit code 128 + its number, without
    waiting for threads: one of them may be what never ends.

    A thread says it: a handler of signals may have interrupted the main thread while it was writing itself.
    """
    heard: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def first() -> None:
        stop()
        heard.put(True)

    def tell() -> None:
        if heard.get():
            say(f"Stopping: {waits_for()} A second SIGTERM or SIGINT ends the process at once.")

    telling = threading.Thread(target=tell, name="retrysafe-stopping", daemon=True)
    telling.start()
    try:
        with stopped_by_signals(first, again=lambda number: os._exit(128 + number)):
            yield
    finally:
        heard.put(False)
        telling.join()
