"""The four worker processes of a lane, and the supervisor that forks them anew when they are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path

from retrysafe_demo.lanes import Lane, Setting
from retrysafe_demo.processes import ENDING, Child, DemoError
from retrysafe_demo.talk import Lines, Message, Say, pack

WORKERS = 4
LONGEST_SILENCE = 20.0
"""Seconds after which a worker that does not answer is killed."""
MOST_STILLBORN = 3


class Worker:
    """A worker as the coordinator sees it: two pipes, whichever process is at their other ends."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process = 0
        self.is_ready = False
        self.is_dying = False
        self.lines = Lines()
        self._hears, self._told = os.pipe()
        self.pipe, self._says = os.pipe()

    @property
    def ends(self) -> tuple[int, int]:
        """The descriptors that are the process's: where it hears, and where it speaks."""
        return self._hears, self._says

    def handed_over(self) -> None:
        """The process has its ends; ours must go, lest its end go unnoticed."""
        for end in self.ends:
            os.close(end)

    def tell(self, message: Message) -> None:
        """Tell it something; if it is dead, its supervisor will say so."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._told, pack(message))

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal. It has not been waited for unless it is not ready, so the number is its own."""
        if self.is_ready:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process, number)

    def hang_up(self) -> None:
        """Let it end by itself."""
        if self._told >= 0:
            os.close(self._told)
        self._told = -1

    def remove(self) -> None:
        """Let go of its pipes, once it is gone: a killed process may still be about to make a file."""
        self.hang_up()
        deadline = time.monotonic() + ENDING
        while wait([self.pipe], max(0.0, deadline - time.monotonic())) and os.read(self.pipe, 65536):
            pass
        os.close(self.pipe)


class Workers:
    """The workers of one lane. ``complain`` is told of whatever no schedule has asked for."""

    def __init__(self, lane: Lane, complain: Callable[[str, str], None]) -> None:
        self.all: list[Worker] = []
        self.supervisor: Child | None = None
        self.have_served = False
        self._lane = lane
        self._complain = complain
        self._stillborn = 0

    def open(self, setting: Setting, log: Path) -> None:
        """Start them."""
        self.all = [Worker(number) for number in range(1, WORKERS + 1)]
        inherited = [end for worker in self.all for end in worker.ends]
        if setting.listener is not None:
            inherited.append(setting.listener)
        self.supervisor = Child("worker", log=log, inherited=inherited)
        pipes = [worker.ends for worker in self.all]
        self.supervisor.tell(pack({"setting": setting._asdict(), "pipes": pipes}))
        for worker in self.all:
            worker.handed_over()

    def hear(self, worker: Worker) -> list[Message]:
        """Read a worker's messages of its attempts, and of its being killed."""
        data = os.read(worker.pipe, 65536)
        if not data:
            raise DemoError(f"the workers of lane {self._lane} are gone: {self._last_words()}")
        messages = worker.lines.feed(data)
        for message in messages:
            match message["say"]:
                case Say.READY:
                    worker.process = message["process"]
                    self.have_served = worker.is_ready = True
                    self._stillborn = 0
                case Say.DYING:
                    worker.is_dying = True
                case Say.KILLED:
                    self._killed(worker)
        return [message for message in messages if message["say"] != Say.READY]

    def _killed(self, worker: Worker) -> None:
        """Its supervisor has forked another."""
        if not worker.is_ready:
            self._stillborn += 1
            if self._stillborn >= MOST_STILLBORN:
                raise DemoError(f"the workers of lane {self._lane} do not start: {self._last_words()}")
        if not worker.is_dying:
            self._complain(f"worker {worker.number}", f"died by itself: {self._last_words()}")
        worker.is_ready = worker.is_dying = False

    def _last_words(self) -> str:
        return "" if self.supervisor is None else self.supervisor.last_words()

    def tell(self, number: int, message: Message) -> None:
        """Tell a worker something."""
        self.all[number - 1].tell(message)

    def wake(self, number: int) -> None:
        """Let a stopped worker go on."""
        self.all[number - 1].signal(signal.SIGCONT)

    def kill(self, number: int) -> None:
        """End a worker that is silent."""
        self._complain(f"worker {number}", f"silent for {LONGEST_SILENCE:.0f} s and killed")
        self.all[number - 1].is_dying = True
        self.all[number - 1].signal(signal.SIGKILL)

    def is_ready(self, number: int) -> bool:
        """Tell whether a worker can take work."""
        return self.all[number - 1].is_ready

    def close(self) -> None:
        """Let them end by themselves, when they have finished what they have begun."""
        for worker in self.all:
            worker.hang_up()
        if self.supervisor is not None:
            self.supervisor.finish()

    def remove(self) -> None:
        """Leave none behind."""
        if self.supervisor is not None:
            self.supervisor.remove()
        while self.all:
            self.all.pop().remove()
