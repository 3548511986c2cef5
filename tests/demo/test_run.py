"""The whole demo, in this process, with a view that meddles."""

from __future__ import annotations

import io
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from retrysafe_demo.lane_run import LaneRun
from retrysafe_demo.lanes import Lane
from retrysafe_demo.payments import shipped, take
from retrysafe_demo.posts import Form
from retrysafe_demo.processes import DemoError
from retrysafe_demo.report import Findings
from retrysafe_demo.run import Options, run

pytestmark = pytest.mark.slow

PAYMENTS = take(shipped(), 4)


class Watching:
    """A view that shows nothing, and remembers lanes and processes."""

    def __init__(self) -> None:
        self.lanes: Sequence[LaneRun] = ()
        self.watched: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def refresh(self, lanes: Sequence[LaneRun], now: float) -> None:
        self.lanes = lanes
        for process in {process for lane in lanes for process in lane.processes} - set(self.watched):
            with suppress(ProcessLookupError):
                self.watched[process] = os.pidfd_open(process)

    def conclude(self, findings: Findings) -> None:
        return

    def all_gone(self) -> bool:
        """Tell whether every process of the demo ends, at once or soon."""
        gone = [bool(wait([watched], 60)) for watched in self.watched.values()]
        for watched in self.watched.values():
            os.close(watched)
        return len(gone) >= 6 and all(gone)


class Planting(Watching):
    """Writes one charge more into the ledger of the retrysafe lane, behind the bank's back."""

    def refresh(self, lanes: Sequence[LaneRun], now: float) -> None:
        if not self.lanes:
            (lane,) = [lane for lane in lanes if lane.lane is Lane.RETRYSAFE]
            entry = {**PAYMENTS[0].as_json(), "payment": PAYMENTS[0].id, "charge": "ch_planted"}
            with lane.ledger.open("a") as file:
                file.write(json.dumps(entry) + "\n")
        super().refresh(lanes, now)


class Interrupting(Watching):
    """Ctrl-C as soon as a worker is stopped."""

    def refresh(self, lanes: Sequence[LaneRun], now: float) -> None:
        super().refresh(lanes, now)
        if any(lane.counts["pauses"] for lane in lanes):
            raise KeyboardInterrupt


class Finalised(io.BytesIO):
    """Ctrl-C comes while its finalizer runs, where Python drops whatever is raised."""

    def close(self) -> None:
        if not self.closed:
            super().close()
            signal.raise_signal(signal.SIGINT)


class Overhearing(Watching):
    """Ctrl-C once, when it cannot be raised."""

    def refresh(self, lanes: Sequence[LaneRun], now: float) -> None:
        if not self.lanes:
            Finalised()
        super().refresh(lanes, now)


class Locked:
    """The lock of a `subprocess.Popen`: Ctrl-C comes once, when it has been taken and could not yet be let go."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._is_quiet = True

    def acquire(self, blocking: bool) -> bool:
        taken: bool = self._lock.acquire(blocking)
        quiet, self._is_quiet = self._is_quiet, False
        if quiet:
            signal.raise_signal(signal.SIGINT)
        return taken

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        assert self._lock.acquire(timeout=5), "nobody lets it go"

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Polled(Watching):
    """Ctrl-C once, while it is asked whether a bank lives."""

    def refresh(self, lanes: Sequence[LaneRun], now: float) -> None:
        process: Any = lanes[0].bank.process
        if not self.lanes:
            process._waitpid_lock = Locked(process._waitpid_lock)
        super().refresh(lanes, now)


class Robbing(Watching):
    """Kills a bank."""

    def refresh(self, lanes: Sequence[LaneRun], now: float) -> None:
        super().refresh(lanes, now)
        lanes[0].bank.process.kill()


@pytest.mark.one_of("runs of the demo", of=3)
def test_the_audit_believes_the_ledger_and_not_the_workers(tmp_path: Path) -> None:
    view = Planting()
    findings = run(Options(3, PAYMENTS, keep=tmp_path / "kept", form=Form.FUNCTIONS), view)
    assert findings.counts[Lane.RETRYSAFE].charged_twice == 1
    assert findings.exit_code == 1
    assert view.all_gone()
    assert (tmp_path / "kept" / "retrysafe" / "bank-ledger.jsonl").is_file()
    with pytest.raises(DemoError, match="give a folder that is not there yet"):
        run(Options(3, PAYMENTS, keep=tmp_path / "kept"), view)


class Counting(Watching):
    """A view that remembers what each lane had charged twice whenever it was to be drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[Lane, list[tuple[int, bool]]] = {}

    def refresh(self, lanes: Sequence[LaneRun], now: float) -> None:
        super().refresh(lanes, now)
        for lane in lanes:
            self.seen.setdefault(lane.lane, []).append((lane.charged_twice, lane.is_over))


@pytest.mark.one_of("runs of the demo", of=3)
def test_charges_are_counted_twice_as_they_happen() -> None:
    view = Counting()
    findings = run(Options(4, PAYMENTS, form=Form.FUNCTIONS), view)
    for lane, seen in view.seen.items():
        counts = [count for count, _ in seen]
        assert counts == sorted(counts)
        assert counts[-1] == findings.counts[lane].charged_twice
    unsafe = view.seen[Lane.UNSAFE]
    assert any(count > 0 and not over for count, over in unsafe), "seen while the lane is at work"
    assert view.seen[Lane.RETRYSAFE][-1][0] == 0


@pytest.mark.one_of("slow tests")
def test_every_fault_strikes_every_lane_of_functions() -> None:
    view = Watching()
    findings = run(Options(4, PAYMENTS, form=Form.FUNCTIONS), view)
    for lane in view.lanes:
        assert lane.counts["kills"] == lane.counts["broken"] == 3
        assert lane.counts["pauses"] == 2
        assert lane.counts["duplicates"] >= 1
        assert lane.counts["retry"] == 2
    guarded = view.lanes[-1].counts
    assert guarded["takeovers"] >= 4
    assert guarded["fenced"] >= 2
    assert guarded["recognised"] >= 4
    assert findings.complaints == []


@pytest.mark.one_of("slow tests")
def test_every_fault_strikes_every_api() -> None:
    """A kill befalls all requests of a worker, so one that was to kill or stop it may be gone before it does.

    On a busy machine more of them are: there it takes a second or third run.
    """
    struck, guarded = Counter[str](), Counter[str]()
    for seed in range(4, 8):
        view = Watching()
        findings = run(Options(seed, PAYMENTS), view)
        assert findings.complaints == []
        assert findings.counts[Lane.RETRYSAFE].charged_once == len(PAYMENTS)
        struck = sum((lane.counts for lane in view.lanes), struck)
        guarded += view.lanes[-1].counts
        missing = {"kills", "pauses", "broken", "duplicates", "retry"} - {*+struck}
        missing |= {"conflict", "takeovers", "recognised", "replays"} - {*+guarded}
        if not missing:
            return
    pytest.fail(f"no run met {missing}: {struck}, {guarded}")


@pytest.mark.parametrize("form", Form)
def test_an_interrupted_demo_leaves_no_process_behind_not_even_a_stopped_one(form: Form) -> None:
    view = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        run(Options(3, PAYMENTS, form=form), view)
    assert view.all_gone()


@pytest.fixture
def heard() -> Iterator[None]:
    """Ctrl-C is heard although the tests may run as a command in the background, which does not hear it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
def test_an_interrupt_that_a_finalizer_drops_ends_the_demo_nevertheless() -> None:
    view = Overhearing()
    with pytest.raises(KeyboardInterrupt):
        run(Options(3, PAYMENTS, form=Form.FUNCTIONS), view)
    assert view.all_gone()


@pytest.mark.usefixtures("heard")
def test_an_interrupt_while_a_process_is_asked_for_leaves_no_lock_taken() -> None:
    view = Polled()
    with pytest.raises(KeyboardInterrupt):
        run(Options(3, PAYMENTS, form=Form.FUNCTIONS), view)
    assert view.all_gone()


def test_a_demo_that_fails_says_why_and_leaves_no_process_behind() -> None:
    view = Robbing()
    with pytest.raises(DemoError, match="the bank of lane unsafe has died"):
        run(Options(3, PAYMENTS, form=Form.FUNCTIONS), view)
    assert view.all_gone()
