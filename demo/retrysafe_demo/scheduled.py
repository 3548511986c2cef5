"""The scheduled mishaps of a worker's attempts, and the worker's reports of them."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from retrysafe import Event
from retrysafe.protocol.events import Watch
from retrysafe_demo.client import Mishaps, mishaps
from retrysafe_demo.schedule import Fault
from retrysafe_demo.talk import Message, Say, pack

Gate = Callable[[int], None]
"""Holds the attempt of a number until the coordinator lets it go on."""


def hear() -> Message | None:
    """The coordinator's next message; None when there will be no more."""
    line = sys.stdin.buffer.readline()
    return json.loads(line) if line.endswith(b"\n") else None


def say(what: Say, **fields: Any) -> None:
    """Tell the coordinator; a short line reaches a pipe whole or not at all, from whatever thread."""
    os.write(1, pack({"say": what, **fields}))


def say_ready() -> None:
    """Tell the coordinator that this process can take work."""
    say(Say.READY, process=os.getpid())


class Scheduled(Mishaps):
    """The mishaps of one attempt."""

    def __init__(self, number: int, fault: Fault | None, gate: Gate) -> None:
        self.number = number
        self.fault = fault
        self.reached = False
        self._gate = gate

    def before_charge(self) -> None:
        """The bank has not been called yet."""
        self.reached = True
        self.tell(Say.REACHED)
        match self.fault:
            case Fault.CONCURRENT:
                self._gate(self.number)
            case Fault.KILL_BEFORE_CHARGE:
                self._die()
            case Fault.PAUSE_BEFORE_CHARGE:
                self._stop()

    def after_charge(self, *, recognised: bool) -> None:
        """The bank has answered."""
        if recognised:
            self.tell(Say.RECOGNISED)
        match self.fault:
            case Fault.KILL_AFTER_CHARGE:
                self._die()
            case Fault.PAUSE_AFTER_CHARGE:
                self._stop()

    def before_answer(self) -> None:
        """All is noted, and who asked has no answer yet."""
        if self.fault is Fault.KILL_BEFORE_ANSWER and self.reached:
            self._die()

    def _die(self) -> None:
        """Be killed, as by the kernel when memory runs out: nothing is closed and nothing cleaned up."""
        self.tell(Say.DYING)
        _signal_myself(signal.SIGKILL)

    def _stop(self) -> None:
        """Be stopped, every thread of the process, until the coordinator lets it go on."""
        self.tell(Say.PAUSING)
        _signal_myself(signal.SIGSTOP)
        self.tell(Say.RESUMED)

    def tell(self, what: Say) -> None:
        """Tell the coordinator something of this attempt."""
        say(what, attempt=self.number)


def _signal_myself(number: signal.Signals) -> None:
    """Signal the process through this thread, which so cannot run on until another thread takes the signal."""
    signal.pthread_kill(threading.get_ident(), number)


_TOLD = {"takeover": Say.TAKEOVER, "lease_lost": Say.FENCED}


class Told:
    """The boundary's reports of one claim; from whatever thread, they are of the attempt that made the claim."""

    def __init__(self, attempt: Mishaps) -> None:
        self._attempt = attempt

    def __call__(self, event: Event, /) -> None:
        """Tell it, if the coordinator counts it."""
        if isinstance(self._attempt, Scheduled) and event.name in _TOLD:
            self._attempt.tell(_TOLD[event.name])

    def close(self, error: BaseException | None) -> None:
        """The attempt is over."""


class Telling:
    """An observer that tells the coordinator which attempts took a key over, and which had lost theirs."""

    def __call__(self, event: Event, /) -> None:
        """There is nothing to tell but of attempts."""

    def watch(self, received: Event) -> Watch:
        """Watch one claim."""
        return Told(mishaps.get())
