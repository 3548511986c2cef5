"""Takes an operation through every point: runs it uncrashed, then crashes it at each boundary, and compares."""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, NamedTuple

from retrysafe.errors import ConfigurationError
from retrysafe.testing.crashing.children import Child, Work, listen
from retrysafe.testing.crashing.comparing import Uncrashed, is_done, problems, watch_for_the_unseen
from retrysafe.testing.crashing.executors import instrument_executors
from retrysafe.testing.crashing.instruments import instrument, watch_also
from retrysafe.testing.crashing.points import Action, Ended, Point
from retrysafe.testing.crashing.report import Report, Violation
from retrysafe.testing.crashing.snapshots import volatile
from retrysafe.testing.crashing.tracing import Tell, Tracer
from retrysafe.testing.crashing.working import CrashWorker, Experiment

SILENCE, SILENCES = 0.04, 5
"""A process that has been silent for so many seconds, and for so many times the longest silence of a run that nothing
disturbs, seems to wait for a lock of the one that stands still."""
REFUSED = 5
"""Attempts after which a process will not come to its end while the other stands still."""


class Exploration(NamedTuple):
    """The arguments of an exploration."""

    experiment: Experiment
    watch: tuple[str, ...]
    pairs: int
    seed: int


class _Tried(NamedTuple):
    """The result of one point."""

    violation: Violation | None
    unknown: bool
    unseen: tuple[str, ...]


def explore(wanted: Exploration) -> Report:
    """Explore, in a process that has neither connections nor threads."""
    begun = time.monotonic()
    explorer = _Explorer(wanted)
    uncrashed = explorer.run_uncrashed()
    singles = _singles(len(uncrashed.calls))
    pairs = _pairs(wanted.pairs, len(uncrashed.calls), Random(wanted.seed))
    tried = explorer.try_all([*singles, *pairs])
    return Report(
        boundaries=uncrashed.calls,
        violations=tuple(one.violation for one in tried if one.violation is not None),
        points=len(singles),
        pairs=len(pairs),
        seed=wanted.seed,
        unknown=sum(one.unknown for one in tried),
        unseen=tuple(dict.fromkeys(what for one in tried for what in one.unseen)),
        seconds=time.monotonic() - begun,
    )


def _singles(boundaries: int) -> list[Point]:
    """Every action at every boundary, and the loss of the last answer."""
    points = [Point(boundary, action) for boundary in range(1, boundaries + 1) for action in Action]
    return [*points, Point(boundaries + 1, Action.CRASH_AFTER)]


def _pairs(count: int, boundaries: int, chance: Random) -> list[Point]:
    """A sample of crashes of which the retry crashes too."""

    def one(then: Point | None = None) -> Point:
        return Point(chance.randint(1, boundaries), chance.choice((Action.CRASH_BEFORE, Action.CRASH_AFTER)), then)

    return [one(one()) for _ in range(count)]


class _Explorer:
    def __init__(self, wanted: Exploration) -> None:
        self._experiment = wanted.experiment
        self._tracer = Tracer()
        self._instrumented: set[str] = set()
        self._words: frozenset[str] = frozenset()
        self._apart = False
        """True if each run has state of its own."""
        self._silence = SILENCE
        instrument_executors(self._tracer)
        for target in wanted.watch:
            watch_also(self._tracer, target)
        watch_for_the_unseen(self._tracer)

    # ------------------------------------------------------------ without crashes

    def run_uncrashed(self) -> Uncrashed:
        """Twice, on fresh state each time: what differs then says nothing when it differs after a crash."""
        self._import(self._run_uncrashed()[0].modules)
        self._silence = SILENCE  # without the time that the imports took
        scout, _ = self._run_uncrashed()
        self._words = frozenset(re.findall(r"\w+", " ".join(call.label for call in scout.calls).lower()))
        (one, state), (other, others) = self._run_uncrashed(), self._run_uncrashed()
        self._apart = pickle.dumps(state) != pickle.dumps(others)
        _check_trace(one, other)
        one_rows, other_rows = one.rows or {}, other.rows or {}
        self._uncrashed = Uncrashed(tuple(one.calls), one_rows, volatile(one_rows, other_rows))
        return self._uncrashed

    def _import(self, modules: Iterable[str]) -> None:
        """Import what the run needs before its processes are forked, and instrument it."""
        for name in modules:
            with suppress(ImportError):
                importlib.import_module(name)
        instrument(self._tracer, self._instrumented)
        gc.collect()
        gc.freeze()

    def _run_uncrashed(self) -> tuple[Ended, Any]:
        children: list[Child] = []
        try:
            child = self._run(children, self._worker.begin(None))
        finally:
            for one in children:
                one.end()
        state, ended = self._state(child), child.ended
        self._silence = max(self._silence, SILENCES * child.longest_silence)
        if ended.in_memory:
            raise ConfigurationError(
                f"crash_points() needs state outside the process, and found {', '.join(ended.in_memory)}: a crash "
                "would lose it. Let fresh() make a file or a database, and return its path or DSN."
            )
        if not is_done(ended):
            why = "it hung." if ended.hung else ended.outcome or "the process died."
            raise ConfigurationError(f"crash_points(): run() fails without any crash: {why}")
        if ended.problem or ended.rows is None:
            why = ended.problem or "the process that looked has died."
            raise ConfigurationError(f"crash_points(): check() fails after a run that nothing disturbed: {why}")
        return ended, state

    # ------------------------------------------------------------ the points

    def try_all(self, points: Sequence[Point]) -> list[_Tried]:
        """Try every point, as many at once as there are processors if each has state of its own."""
        lanes = min(len(points), os.cpu_count() or 1) if self._apart else 1
        if lanes == 1:
            return [self._try(point) for point in points]
        children = [Child(partial(self._tell_all, points[lane::lanes]), 0) for lane in range(lanes)]
        self._hear(children)
        told = [child.messages("tried") for child in children]
        if sum(map(len, told)) != len(points):
            raise ConfigurationError("crash_points(): a process that explores has died.")
        return [told[number % lanes][number // lanes] for number in range(len(points))]

    def _tell_all(self, points: Sequence[Point], tell: Tell, _: Callable[[], None]) -> None:
        for point in points:
            tell(("tried", self._try(point)))

    def _try(self, point: Point) -> _Tried:
        follow = {Action.CANCEL: self._cancel, Action.FREEZE: self._stop, Action.OVERLAP: self._stop}
        children: list[Child] = []
        try:
            follow.get(point.action, self._crash)(point, children)
        finally:
            for child in children:
                child.end()
        processes = tuple(child.ended for child in children)
        found = problems(self._uncrashed, point, processes)
        calls = self._uncrashed.calls
        at = calls[point.boundary - 1] if point.boundary <= len(calls) else None
        return _Tried(
            violation=Violation(point, at, tuple(found), processes) if found else None,
            unknown=processes[-1].settled and not is_done(processes[-1]),
            unseen=tuple(what for process in processes for what in process.unseen),
        )

    def _crash(self, point: Point, children: list[Child]) -> None:
        first = self._run(children, self._worker.begin(point))
        if point.then is not None:
            second = self._run(children, self._worker.retry(self._state(first), point.then))
            if second.messages("rows"):
                return  # the retry was over before it came to its own crash
        self._run(children, self._worker.retry(self._state(first)))

    def _cancel(self, point: Point, children: list[Child]) -> None:
        self._run(children, self._worker.begin(point))

    def _stop(self, point: Point, children: list[Child]) -> None:
        """The first process is the last in the list: it is the one that looks at the end."""
        first = Child(self._worker.begin(point), self._experiment.patience)
        children.append(first)
        listen([first], lambda: first.stopped or first.awaited, self._patience)
        rival = Child(
            self._worker.overtake(self._state(first), lapsed=point.action is Action.FREEZE), self._experiment.patience
        )
        children.insert(0, rival)
        listen([rival], lambda: not rival.open or len(rival.messages("outcome")) >= REFUSED, self._silence)
        first.go_on()
        listen([first, rival], lambda: not rival.open and (first.awaited or not first.open), self._patience)
        first.give_leave()
        self._hear([first, rival])

    # ------------------------------------------------------------ processes

    @property
    def _patience(self) -> float:
        return self._experiment.patience + 1

    @property
    def _worker(self) -> CrashWorker:
        return CrashWorker(self._experiment, self._tracer, self._words)

    def _run(self, children: list[Child], work: Work) -> Child:
        """A process, listened to until it has ended."""
        child = Child(work, self._experiment.patience)
        children.append(child)
        self._hear([child])
        return child

    def _hear(self, children: Sequence[Child]) -> None:
        listen(children, lambda: not any(child.open for child in children), 2 * self._patience)

    def _state(self, first: Child) -> Any:
        told = first.messages("state")
        if not told:
            why = next(iter(first.messages("failed")), "its process died")
            raise ConfigurationError(
                f"crash_points(): fresh() failed, or what it returns cannot be pickled: {why}. It is called in "
                "processes of its own, so each name must be new: uuid4(), not a counter."
            )
        return told[0]


def _check_trace(one: Ended, other: Ended) -> None:
    """Two undisturbed runs must make the same calls, or no boundary could be found again."""
    if not one.calls:
        raise ConfigurationError(
            "crash_points() saw no call that leaves the process: run() must open its connections itself, and use "
            f"one of the libraries that are watched, or name its calls in watch=. {_also(one.unseen)}"
        )
    for mine, others in zip(one.calls, other.calls, strict=False):
        if mine.label != others.label:
            raise ConfigurationError(_not_deterministic(f"{mine.label!r} ({mine.place})", f"{others.label!r}"))
    if len(one.calls) != len(other.calls):
        raise ConfigurationError(_not_deterministic(f"{len(one.calls)} calls", f"{len(other.calls)}"))


def _also(unseen: tuple[str, ...]) -> str:
    return f"It did see: {', '.join(unseen)}." if unseen else ""


def _not_deterministic(one: str, other: str) -> str:
    return (
        f"crash_points() needs a run that makes the same calls each time; two runs differed: {one}, then {other}. "
        "Take chance, concurrency and clocks out of run()."
    )
