"""The display while the lanes run: plain lines, or live panels in a terminal with rich."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from retrysafe_demo.lane_run import LaneRun
from retrysafe_demo.lanes import Lane
from retrysafe_demo.pipeline.audit import PipelineCount
from retrysafe_demo.pipeline.running import Pipeline
from retrysafe_demo.report import COLUMNS, Findings, pipeline_table, pipeline_verdict, table, verdict

EVERY = 3.0
"""Seconds between two plain progress lines of a lane."""
SHOWN_EVENTS = 8
SHOWN = ("attempts", "kills", "pauses", "duplicates", "takeovers", "fenced", "recognised", "replays")
"""attempts: came as far as the charge; duplicates: given out twice at once; takeovers: from an attempt
whose lease had lapsed; fenced: came back too late; recognised: the bank answered with its first charge."""
COLOURS = {Lane.UNSAFE: "red", Lane.NAIVE: "yellow", Lane.RETRYSAFE: "green"}


class View(Protocol):
    """Shows the lanes while they run, and what the audit found."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def refresh(self, lanes: Sequence[LaneRun], now: float) -> None:
        """Show how far the lanes are."""
        ...

    def conclude(self, findings: Findings) -> None:
        """Show what the audit found."""
        ...

    def follow(self, pipeline: Pipeline) -> None:
        """Show how far the pipeline is."""
        ...

    def conclude_pipeline(self, count: PipelineCount) -> None:
        """Show what the audit of the pipeline found."""
        ...


def choose(*, plain: bool = False) -> View:
    """The live view where standard output is a terminal and rich is installed, else plain lines."""
    if not plain and sys.stdout.isatty():
        try:
            return RichView()
        except ImportError:
            pass
    return PlainView()


class Following:
    """Follows the pipeline in plain lines: it is over in seconds."""

    def __init__(self) -> None:
        self._due = 0.0

    def follow(self, pipeline: Pipeline) -> None:
        """Print a line, if it is time."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + EVERY
        taken, applied, mailed = pipeline.progress()
        counted = f"{pipeline.kills} kills, {pipeline.duplicates} duplicates"
        print(f"pipeline   {taken} orders, {applied} applied, {mailed} mailed  ({counted})", flush=True)

    def conclude_pipeline(self, count: PipelineCount) -> None:
        """Print the audit."""
        print("\nAudit of the pipeline's tables and of the mailbox:")
        print("\n".join(pipeline_table(count)))
        print(f"\n{pipeline_verdict(count)}", flush=True)


class PlainView(Following):
    """A progress line per lane every few seconds, and the audit as text."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 0.0
        self._last: dict[Lane, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def refresh(self, lanes: Sequence[LaneRun], now: float) -> None:
        """Print a line per lane, if something has changed and it is time."""
        if now < self._next:
            return
        self._next = now + EVERY
        for run in lanes:
            counted = ", ".join(f"{run.counts[name]} {name}" for name in SHOWN if run.counts[name])
            so_far = f"{run.broker.settled}/{run.intents} settled, {run.charged_twice} charged twice"
            line = f"{run.lane:<9}  {so_far}" + (f"  ({counted})" if counted else "")
            if run.counts["attempts"] and self._last.get(run.lane) != line:
                self._last[run.lane] = line
                print(line, flush=True)

    def conclude(self, findings: Findings) -> None:
        """Print the audit."""
        print(f"\nAudit of the bank's ledger, seed {findings.seed}, {findings.seconds:.1f} s:")
        print("\n".join(table(findings)))
        print(f"\n{verdict(findings)}", flush=True)


class RichView(Following):
    """Three lanes side by side, redrawn several times a second."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__()
        self._console = Console()
        self._live = Live(console=self._console, refresh_per_second=8, transient=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def refresh(self, lanes: Sequence[LaneRun], now: float) -> None:
        """Redraw."""
        from rich.columns import Columns
        from rich.console import Group

        width = max(30, self._console.width // 3)
        panels = Columns([self._panel(run, width) for run in lanes], padding=(0, 0))
        self._live.update(Group(panels, self._events(lanes)))

    def _panel(self, run: LaneRun, width: int) -> Any:
        from rich.console import Group
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        twice = run.charged_twice
        numbers = Table.grid(padding=(0, 1))
        numbers.add_row(
            Text("charged twice", style="bold"), Text(str(twice), style="bold red" if twice else "bold green")
        )
        for name in SHOWN:
            numbers.add_row(Text(name, style="dim"), Text(str(run.counts[name])))
        done, colour = run.broker.settled, COLOURS[run.lane]
        bar = ProgressBar(run.intents, done, complete_style=colour, finished_style=colour)
        progress = Table.grid(expand=True)
        progress.add_row(Text(f"{done}/{run.intents} settled"))
        progress.add_row(bar)
        return Panel(Group(progress, numbers), title=run.lane.value, border_style=colour, width=width)

    def _events(self, lanes: Sequence[LaneRun]) -> Any:
        from rich.table import Table
        from rich.text import Text

        last = sorted(event for run in lanes for event in run.events)[-SHOWN_EVENTS:]
        rows = Table.grid(padding=(0, 2))
        for event in last:
            lane, who = Text(event.lane.value, style=COLOURS[event.lane]), Text(event.who, style="dim")
            rows.add_row(lane, event.payment, who, Text(event.what, no_wrap=True, overflow="ellipsis"))
        for _ in range(SHOWN_EVENTS - len(last)):
            rows.add_row("")
        return rows

    def conclude(self, findings: Findings) -> None:
        """Draw the audit below the lanes."""
        from rich.table import Table

        self._live.stop()
        audit = Table(title=f"Audit of the bank's ledger, seed {findings.seed}, {findings.seconds:.1f} s")
        audit.add_column("lane")
        for name in COLUMNS:
            audit.add_column(name, justify="right")
        for lane, count in findings.counts.items():
            style = "green" if count.kept else "red"
            audit.add_row(lane.value, *map(str, count), style=style)
        self._console.print(audit)
        self._console.print(verdict(findings), style="bold", highlight=False)
