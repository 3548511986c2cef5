"""The coordinator: runs the three lanes side by side under one schedule, and audits them."""

from __future__ import annotations

import secrets
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple, Self

from retrysafe.backends.registry import connect
from retrysafe_demo.audit import audit, charged_in_doubt, read_ledger
from retrysafe_demo.lane_run import LaneRun
from retrysafe_demo.lanes import Lane, Setting
from retrysafe_demo.payments import Payment
from retrysafe_demo.pipeline.running import Pipeline
from retrysafe_demo.pipeline.running import run as run_pipeline
from retrysafe_demo.posts import Form
from retrysafe_demo.processes import DemoError
from retrysafe_demo.report import Findings
from retrysafe_demo.schedule import schedule
from retrysafe_demo.view import View

TICK = 0.1
"""The longest time between two looks at what is due, in seconds."""


class Interruption:
    """Lets SIGINT and SIGTERM end the demo through every ``finally``.

    What a handler raises comes anywhere: Python drops it inside a finalizer, and inside `subprocess.Popen.poll` it
    leaves a lock taken for which the end would wait for ever. So, once there are processes to end, the first signal
    is only noted, and `check`, which is called often, raises `KeyboardInterrupt`; a second one is raised at once.
    In a thread other than the main one, which alone can set handlers, it does nothing.
    """

    def __init__(self) -> None:
        self._came = False
        self._raises = True
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # a command in the background
        numbers = [signal.SIGTERM] if ignored else [signal.SIGTERM, signal.SIGINT]
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._interrupt) for number in numbers}
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if kind is None:
            self.check()

    def note(self) -> None:
        """From now on `check` raises, and not the signal."""
        self._raises = False

    def check(self) -> None:
        """End the demo, if it was told to."""
        if self._came:
            raise KeyboardInterrupt

    def _interrupt(self, number: int, frame: object) -> None:
        first, self._came = not self._came, True
        if self._raises or not first:
            raise KeyboardInterrupt


class Options(NamedTuple):
    """The options of the demo."""

    seed: int
    payments: Sequence[Payment]
    bank_has_keys: bool = True
    store: str | None = None
    keep: Path | None = None
    form: Form = Form.HTTP
    orders: int = 0
    """The number of orders that go through the pipeline; 0: there is none."""

    @property
    def deadline(self) -> float:
        """Seconds after which the demo is given up; it needs far fewer."""
        return 90.0 + 0.5 * len(self.payments)


def run(options: Options, view: View) -> Findings:
    """Run all lanes to their end and audit them. Whatever happens, no process is left behind."""
    if not hasattr(signal, "SIGSTOP"):
        raise DemoError("the demo stops and kills processes by POSIX signals, which this system does not have")
    began = time.monotonic()
    with Interruption() as interruption, ExitStack() as stack:
        folder = _folder(options, stack)
        store = _prepared(options.store or f"sqlite:///{folder / 'retrysafe.db'}")
        interruption.note()
        lanes = _lanes(options, folder, store, stack)
        for lane in lanes:
            interruption.check()
            lane.open()
        with view:
            _work(lanes, view, began + options.deadline, interruption)
            for lane in lanes:
                interruption.check()
                lane.close()
            view.refresh(lanes, float("inf"))
            findings = _audited(options, lanes, began)
            view.conclude(findings)
        if not options.orders:
            return findings
        return _with_pipeline(options, folder / "pipeline", view, findings, interruption)


def _with_pipeline(
    options: Options, folder: Path, view: View, findings: Findings, interruption: Interruption
) -> Findings:
    """The fourth lane, when the others are over: it needs neither their bank nor their processors."""

    def follow(pipeline: Pipeline) -> None:
        interruption.check()
        view.follow(pipeline)

    pipeline = Pipeline(options.seed, options.orders, folder)
    count = run_pipeline(pipeline, follow)
    view.conclude_pipeline(count)
    complaints = [*findings.complaints, *pipeline.complaints]
    return findings._replace(pipeline=count, complaints=complaints)


def _folder(options: Options, stack: ExitStack) -> Path:
    """Open the folder of ledgers, records and logs: a new one that is kept, or one that is removed in the end."""
    if options.keep is None:
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="retrysafe-demo-")))
    try:
        options.keep.mkdir(parents=True)
    except OSError as error:
        raise DemoError(f"{options.keep}: {error.strerror or error}; give a folder that is not there yet") from error
    return options.keep.absolute()


def _lanes(options: Options, folder: Path, store: str, stack: ExitStack) -> list[LaneRun]:
    faults = schedule(options.seed, [payment.id for payment in options.payments])
    setting = Setting("", 0, "", store, f"demo {secrets.token_hex(8)}", options.bank_has_keys)
    lanes = []
    for lane in Lane:
        lanes.append(LaneRun(lane, options.payments, faults, folder / lane, setting, options.form))
        stack.callback(lanes[-1].remove)
    return lanes


def _prepared(store: str) -> str:
    """Bring the store's schema up to date, and find out before anything starts whether it can be reached."""
    if store.startswith("memory:"):
        raise DemoError("memory:// is private to each process; the demo has many")
    backend = connect(store)
    if backend.store.capabilities.transactions:
        backend.migrate()
    backend.close()
    return store


def _work(lanes: Sequence[LaneRun], view: View, deadline: float, interruption: Interruption) -> None:
    while not all(lane.is_over for lane in lanes):
        interruption.check()
        now = time.monotonic()
        if now > deadline:
            unsettled = ", ".join(f"{lane.lane} {lane.broker.settled}/{lane.intents}" for lane in lanes)
            last = [complaint for lane in lanes for complaint in lane.complaints][-1:]
            raise DemoError("; ".join([f"the demo did not end in time; settled: {unsettled}", *last]))
        for lane in lanes:
            lane.turn(now)
        view.refresh(lanes, now)
        _listen(lanes, _pause(lanes, now))
    view.refresh(lanes, float("inf"))


def _pause(lanes: Sequence[LaneRun], now: float) -> float:
    due = [when for lane in lanes if (when := lane.broker.next_due()) is not None]
    return min(TICK, max(0.0, min(due, default=now + TICK) - now))


def _listen(lanes: Sequence[LaneRun], seconds: float) -> None:
    sources = {pipe: hear for lane in lanes for pipe, hear in lane.sources().items()}
    ready = wait(list(sources), seconds)
    for pipe, hear in sources.items():  # in the order in which they were named
        if pipe in ready:
            hear(time.monotonic())


def _audited(options: Options, lanes: Sequence[LaneRun], began: float) -> Findings:
    counts = {}
    in_doubt = 0
    for lane in lanes:
        ledger, uncertain = read_ledger(lane.ledger), lane.broker.uncertain
        counts[lane.lane] = audit(options.payments, ledger, uncertain, lane.counts["replays"])
        in_doubt += charged_in_doubt(ledger, uncertain)
    complaints = [complaint for lane in lanes for complaint in lane.complaints]
    return Findings(options.seed, counts, in_doubt, time.monotonic() - began, complaints, options.form)
