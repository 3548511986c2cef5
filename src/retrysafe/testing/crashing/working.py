"""The processes of a point: they begin on fresh state, go on to the end, and look at the result."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, NamedTuple

from retrysafe.errors import InProgress, OutcomeUnknown, StoredFailure
from retrysafe.testing.crashing.places import list_modules
from retrysafe.testing.crashing.points import STOPS, Action, Point
from retrysafe.testing.crashing.snapshots import snapshot
from retrysafe.testing.crashing.tracing import Tell, Tracer

SETTLED = (OutcomeUnknown, StoredFailure)
"""Errors that are ends: no retry changes them."""
PAUSE, MOST_PAUSE = 0.002, 0.02
"""Seconds between two retries: at first, and at most."""
ENOUGH, PERSISTENT = 20, 0.5
"""After so many attempts, and so many seconds, an error will not go away."""


class Experiment(NamedTuple):
    """The operation that is explored."""

    run: Callable[[Any], Any]
    fresh: Callable[[], Any]
    check: Callable[[Any], Any]
    patience: float
    """Seconds that a process may take."""


class CrashWorker:
    """One process at work. ``words`` name the tables that are compared."""

    def __init__(self, experiment: Experiment, tracer: Tracer, words: frozenset[str]) -> None:
        self._experiment, self._tracer, self._words = experiment, tracer, words
        self._error: BaseException | None = None

    def begin(self, point: Point | None) -> Callable[[Tell, Callable[[], None]], None]:
        """Make fresh state, and run on it for the first time."""

        def work(tell: Tell, wait: Callable[[], None]) -> None:
            try:
                state = _complete(self._experiment.fresh())
                before = pickle.dumps(state)
            except BaseException as error:  # noqa: BLE001 - for the report
                tell(("failed", _render(error)))
                return
            tell(("state", state))
            self._tracer.watch(tell, point)
            settled = self._attempt(state, tell)
            if settled and point is not None and point.action is Action.CRASH_AFTER:
                self._tracer.note_return()
            if pickle.dumps(state) != before:
                tell(("in memory", "the value of fresh(), which run() changed"))
            if point is None:
                tell(("modules", list_modules()))
            elif point.action in STOPS:
                wait()
            if point is not None and not settled:
                self._to_the_end(state, tell)
            self._judge(state, tell, again=point is not None)

        return work

    def retry(self, state: Any, then: Point | None = None, *, lapsed: bool = True) -> Callable[..., None]:
        """Run again on what another process has left, to the end."""

        def work(tell: Tell, wait: Callable[[], None]) -> None:
            self._tracer.watch(tell, then, lapsed=lapsed)
            self._to_the_end(state, tell)
            self._judge(state, tell, again=True)

        return work

    def overtake(self, state: Any, *, lapsed: bool) -> Callable[..., None]:
        """Run while another process stands still: to the end if its lease has lapsed, else as it is told."""

        def work(tell: Tell, wait: Callable[[], None]) -> None:
            self._tracer.watch(tell, None, lapsed=lapsed)
            if lapsed:
                self._to_the_end(state, tell)
            else:
                self._attempt(state, tell)

        return work

    # ------------------------------------------------------------ in the process

    def _attempt(self, state: Any, tell: Tell) -> bool:
        """Run once; whether that was an end."""
        error = self._error = self._run(state)
        settled = error is None or isinstance(error, SETTLED)
        tell(("outcome", ("done" if error is None else _render(error), settled)))
        if isinstance(error, InProgress):
            self._tracer.aged.clear()  # the next attempt's records have lapsed by then
        return settled

    def _run(self, state: Any) -> BaseException | None:
        try:
            with self._tracer.run():
                result = self._experiment.run(state)
                if inspect.isawaitable(result):
                    asyncio.run(self._main(result))
        except BaseException as error:  # noqa: BLE001 - also what cancels: the caller lives on, and tries again
            return error
        finally:
            self._tracer.task = None
        return None

    async def _main(self, awaited: Awaitable[Any]) -> None:
        self._tracer.task = asyncio.current_task()
        await awaited

    def _to_the_end(self, state: Any, tell: Tell) -> None:
        begun = time.monotonic()
        for number in count(1):
            if self._attempt(state, tell):
                return
            waited = time.monotonic() - begun
            busy = isinstance(self._error, InProgress)
            if waited > self._experiment.patience / 2 or (not busy and number >= ENOUGH and waited > PERSISTENT):
                return
            self._tracer.lapsed = True
            time.sleep(min(number * PAUSE, MOST_PAUSE))

    def _judge(self, state: Any, tell: Tell, *, again: bool) -> None:
        """Retry once more where a caller would, whose answer was lost; then look."""
        if again:
            tell(("again", "and once more, as by a caller whose answer was lost"))
            self._run(state)
        self._tracer.watching = False
        try:
            _complete(self._experiment.check(state))
        except BaseException as error:  # noqa: BLE001 - whatever the check raises is what it has found
            tell(("problem", f"check: {_render(error)}"))
        try:
            tell(("rows", snapshot(self._tracer.databases, self._words)))
        except Exception as error:  # noqa: BLE001 - what cannot be compared is not well
            tell(("problem", f"the tables cannot be read: {_render(error)}"))


def _complete(value: Any) -> Any:
    """The value itself, or what it comes to when it is awaited."""
    if not inspect.isawaitable(value):
        return value

    async def await_value() -> Any:
        return await value

    return asyncio.run(await_value())


def _render(error: BaseException) -> str:
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
