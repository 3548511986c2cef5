"""Processes that are made to crash: forked, listened to, let go on or taken leave of."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import struct
import sys
import time
from collections.abc import Callable, Sequence
from itertools import takewhile
from multiprocessing.connection import wait
from typing import Any

from retrysafe.testing.crashing.points import Ended
from retrysafe.testing.crashing.tracing import Tell

Work = Callable[[Tell, Callable[[], None]], None]
"""The work of a child, with a way to tell its parent, and one to wait for the parent's leave."""

_PR_SET_PDEATHSIG = 1
_LENGTH = struct.Struct("!I")


class Child:
    """One process: forked from a parent without connections and threads."""

    def __init__(self, work: Work, limit: float) -> None:
        told, telling = os.pipe()
        waiting, leave = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(told)
            os.close(leave)
            _live(work, telling, waiting, limit)
        os.close(telling)
        os.close(waiting)
        self._told, self._leave = told, leave
        self._buffer = b""
        self._events: list[tuple[Any, ...]] = []
        self.stopped = False
        self.open = True
        self.awaited = False
        self.hung = False
        self.longest_silence = 0.0
        """Seconds in its run between two things it told."""
        self._heard = time.monotonic()

    def fileno(self) -> int:
        return self._told

    def read(self) -> None:
        data = os.read(self._told, 1 << 16)
        if not data:
            self.open = False
            _, status = os.waitpid(self.pid, 0)
            self.hung = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
            os.close(self._told)
            os.close(self._leave)
            return
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            self._take(pickle.loads(self._buffer[_LENGTH.size : end]))
            self._buffer = self._buffer[end:]

    def _take(self, event: tuple[Any, ...]) -> None:
        self.stopped = self.stopped or event[0] == "stopped"
        self.awaited = self.awaited or event[0] == "waiting"
        now = time.monotonic()
        if event[0] in ("call", "outcome"):
            self.longest_silence = max(self.longest_silence, now - self._heard)
        self._heard = now
        self._events.append(event)

    def go_on(self) -> None:
        """Wake it up where it has stopped itself."""
        if self.open and self.stopped:
            os.waitpid(self.pid, os.WUNTRACED)
            os.kill(self.pid, signal.SIGCONT)
            self.stopped = False

    def give_leave(self) -> None:
        """Let it go on from where it waits for leave."""
        if self.open:
            os.write(self._leave, b"!")

    def end(self) -> None:
        if self.open:
            os.kill(self.pid, signal.SIGKILL)
            while self.open:
                self.read()

    def messages(self, kind: str) -> list[Any]:
        return [event[1] if len(event) > 1 else None for event in self._events if event[0] == kind]

    @property
    def ended(self) -> Ended:
        outcome, settled = (self.messages("outcome") or [("", False)])[-1]
        story = (event[1] for event in self._events if event[0] in ("call", "outcome", "again"))
        known = tuple(self.messages("known"))  # connections that a driver makes where no stack shows it
        return Ended(
            story=tuple(told[0] if type(told) is tuple else told for told in story),
            at=next(iter(self.messages("at")), None),
            way=tuple(
                event[1] for event in takewhile(lambda event: event[0] != "at", self._events) if event[0] == "call"
            ),
            outcome=outcome,
            settled=settled,
            problem=next(iter(self.messages("problem")), ""),
            rows=next(iter(self.messages("rows")), None),
            unseen=tuple(what for what in dict.fromkeys(self.messages("unseen")) if not what.startswith(known)),
            in_memory=tuple(dict.fromkeys(self.messages("in memory"))),
            modules=next(iter(self.messages("modules")), ()),
            hung=self.hung,
        )


def listen(children: Sequence[Child], until: Callable[[], bool], silence: float) -> None:
    """Take in what children tell until something is so, they have ended, or been silent for so many seconds."""
    while not until():
        waiting = {child.fileno(): child for child in children if child.open}
        ready = wait(list(waiting), silence) if waiting else []
        if not ready:
            return
        for pipe, child in waiting.items():
            if pipe in ready:
                child.read()


def _live(work: Work, telling: int, waiting: int, limit: float) -> None:
    code = 1
    try:
        die_with_parent()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, limit)
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)

        def tell(event: tuple[Any, ...]) -> None:
            data = pickle.dumps(event)
            os.write(telling, _LENGTH.pack(len(data)) + data)

        def wait() -> None:
            tell(("waiting",))
            os.read(waiting, 1)

        work(tell, wait)
        code = 0
    finally:
        os._exit(code)


def die_with_parent() -> None:
    """Let no process outlive the one that waits for it, however that one ends; where the system can do so."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def is_forkable() -> bool:
    return hasattr(os, "fork") and sys.platform != "emscripten"
