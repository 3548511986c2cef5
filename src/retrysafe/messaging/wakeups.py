"""Who writes into an outbox wakes the relays of its process.

A message can be seen when its transaction has committed, which its writer knows and we do not: relays that are woken
look again at once, then a little less often each time, so that they meet the commit soon after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from retrysafe.backends.backend import Backend
from retrysafe.stop_signal import StopSignal

_bells: WeakKeyDictionary[Backend, set[StopSignal]] = WeakKeyDictionary()


@contextmanager
def woken(backend: Backend, bell: StopSignal) -> Iterator[None]:
    """Let those who write into a backend's outbox wake this bell's loop."""
    bells = _bells.setdefault(backend, set())
    bells.add(bell)
    try:
        yield
    finally:
        bells.discard(bell)


def wake(backend: Backend) -> None:
    """Wake the relays of a backend in this process."""
    for bell in tuple(_bells.get(backend, ())):
        bell.nudge()
