"""The findings of the audit, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from retrysafe_demo.audit import Count
from retrysafe_demo.lanes import Lane
from retrysafe_demo.pipeline.audit import PipelineCount
from retrysafe_demo.posts import Form
from retrysafe_demo.processes import DemoError

COLUMNS = ("intents", "charged once", "charged twice", "lost", "wrong amount", "uncertain", "replayed")


class Findings(NamedTuple):
    """The audit of all lanes."""

    seed: int
    counts: Mapping[Lane, Count]
    charged_in_doubt: int
    seconds: float
    complaints: Sequence[str] = ()
    form: Form = Form.HTTP
    pipeline: PipelineCount | None = None

    @property
    def exit_code(self) -> int:
        """0 when retrysafe has charged and applied nothing twice, lost nothing and altered nothing; else 1."""
        pipeline_kept = self.pipeline is None or self.pipeline.kept
        return 0 if self.counts[Lane.RETRYSAFE].kept and pipeline_kept else 1


def write_json(findings: Findings, path: Path) -> None:
    """Write the findings as JSON."""
    lanes = {lane.value: count._asdict() for lane, count in findings.counts.items()}
    if findings.pipeline is not None:
        lanes["pipeline"] = findings.pipeline._asdict()
    found = {"seed": findings.seed, "form": findings.form, "lanes": lanes}
    try:
        path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise DemoError(f"{path}: {error.strerror or error}") from error


def table(findings: Findings) -> list[str]:
    """The audit as lines of text."""
    return _aligned([("lane", *COLUMNS), *((lane.value, *map(str, count)) for lane, count in findings.counts.items())])


def pipeline_table(count: PipelineCount) -> list[str]:
    """The audit of the pipeline as lines of text."""
    names = [name.replace("_", " ") for name in count._fields]
    return _aligned([("lane", *names), ("pipeline", *map(str, count))])


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def verdict(findings: Findings) -> str:
    """The audit in plain sentences."""
    counts = findings.counts
    guarded = counts[Lane.RETRYSAFE]
    others = " and ".join(f"{counts[lane].charged_twice} ({lane})" for lane in (Lane.UNSAFE, Lane.NAIVE))
    text = (
        f"By the bank's ledger, {others} payments were charged twice or more; these lanes send the bank no key, "
        "as most code does."
    )
    if not guarded.kept:
        broken = f"charged {guarded.charged_twice} twice, lost {guarded.lost} and altered {guarded.wrong_amount}"
        return f"{text} retrysafe BROKE ITS PROMISE: it {broken}."
    if guarded.uncertain:
        doubt = f"{guarded.uncertain} as uncertain, of which the bank has charged {findings.charged_in_doubt}"
        why = "a bank without keys leaves that doubt to a look at its books"
        return f"{text} retrysafe charged none twice, and held back {doubt}: {why}."
    return f"{text} retrysafe charged every one of {guarded.intents} exactly once."


def pipeline_verdict(count: PipelineCount) -> str:
    """The audit of the pipeline in a sentence."""
    stood = f"with {count.kills} processes killed and {count.duplicates} messages doubled on their way"
    if count.kept:
        return f"The pipeline applied every one of {count.orders} orders once, in order, and mailed it once, {stood}."
    broken = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in count.breaches().items())
    return f"The pipeline BROKE ITS PROMISE: {broken}, {stood}."
