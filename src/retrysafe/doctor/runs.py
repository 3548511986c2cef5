"""Checks of the work in steps in a store: whether it is asked for again, and whether a step is in doubt."""

from __future__ import annotations

from typing import Any

from retrysafe.admin.runs import MOST_PAGES, FoundRuns, Run, doubt, find, find_stranded, of_stranded, show
from retrysafe.backends.backend import Backend
from retrysafe.protocol.checks import Check, Facts, Severity
from retrysafe.protocol.procedures import read
from retrysafe.protocol.records import EffectiveState, Filter
from retrysafe.protocol.requests import Program

_MOST_NAMED = 5
_UNKNOWN = Filter(states=frozenset({EffectiveState.UNKNOWN}))


def gather(backend: Backend) -> Program[dict[str, Any]]:
    """The facts of a store whose schema is up to date."""
    unknown, doubts = (yield from find(backend, _UNKNOWN, _MOST_NAMED, MOST_PAGES)), list[Run]()
    for entry in unknown.runs:
        if (record := (yield from read(backend.store, entry.record.key))) is not None:
            doubts.append((yield from show(backend, record, None)))
    return {"stranded": (yield from find_stranded(backend)), "doubts": doubts}


def _tell_stranded(facts: Facts) -> str | None:
    found: FoundRuns | None = facts.get("stranded")
    return of_stranded(found) if found is not None and found.runs else None


def _in_doubt(facts: Facts) -> str | None:
    runs: list[Run] = facts.get("doubts", [])
    told = [f"Key {run.record.key.hex()[:8]} of {run.record.boundary}: {text}" for run in runs if (text := doubt(run))]
    return " ".join(told) or None


CHECKS = (
    Check(
        "runs-stranded",
        "Is work in steps asked for again until it ends?",
        Severity.WARNING,
        "{program} runs list --stranded --store {store}; have its caller, broker or scheduler ask again with its key, "
        "which no command does; to let that attempt undo it, give it up before:  "
        "{program} runs cancel --hash … --store {store}",
        "how-to/operate-runs.md",
        _tell_stranded,
    ),
    Check(
        "runs-in-doubt",
        "Is it known of every step, and every compensation, whether it happened?",
        Severity.WARNING,
        "{program} runs show --hash … --store {store}  names the commands that settle the step",
        "how-to/operate-runs.md",
        _in_doubt,
    ),
)
