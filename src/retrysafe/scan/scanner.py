"""Scans files with all rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from retrysafe.scan.allowances import allowances, judge
from retrysafe.scan.effects import Effects
from retrysafe.scan.entrypoints import EntryPoints
from retrysafe.scan.facts import gather
from retrysafe.scan.findings import Finding, with_fingerprints
from retrysafe.scan.project import Project
from retrysafe.scan.rules.catalogue import CHECKS, UNREADABLE
from retrysafe.scan.rules.view import View
from retrysafe.scan.source import SourceFile, find, read


class ScanResult(NamedTuple):
    """The findings of a scan, in the order of files and lines."""

    findings: list[Finding]
    files: int


def scan(paths: Sequence[str], *, exclude: Sequence[str] = (), tests: bool = False) -> ScanResult:
    """Scan the Python files at and below these paths. Nothing of them is imported or run.

    Raises `ConfigurationError` for a path that does not exist.
    """
    files = list(find(paths, exclude, tests=tests))
    project = Project(files)
    entry_points = EntryPoints(project, gather(project, files))
    effects = Effects(project)
    found = (one for file in files for one in _scan(project, effects, entry_points, file))
    return ScanResult(list(with_fingerprints(found)), len(files))


def _scan(project: Project, effects: Effects, entry_points: EntryPoints, file: SourceFile) -> Iterator[Finding]:
    try:
        allowed = allowances(read(file.path))
        view = View(project, project.open(file), effects, entry_points)
        found = [one for check in CHECKS for one in check(view)]
    except (ValueError, OSError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        yield Finding(UNREADABLE, f"The file was not scanned: {reason}.", file.shown, 1)
        return
    yield from judge(file.shown, sorted(found, key=lambda one: (one.line, one.column, one.rule.id)), allowed)
