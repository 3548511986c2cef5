"""Runs tests on a copy of the checkout in which one defence is taken out of the source."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from inspect import CO_ASYNC_GENERATOR, CO_GENERATOR
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType
from typing import NamedTuple

from tests.ports import stretch_within
from tests.proving import effort, plugin
from tests.proving.breaks import Break
from tests.proving.breaks.watching import REPORT

ROOT = Path(__file__).resolve().parents[3]
COPIED = (
    *("src", "demo", "tests", "scripts", "docs", "benchmarks"),
    *("pyproject.toml", "README.md", "mkdocs.yml", ".gitignore"),
)
DEADLINE = 600
"""Seconds for all tests of a break; beyond them they are stopped, and the break counts as not killed."""
CHANCE = "1"
"""The seed of the tests that are run: a break is killed on every run, or on none."""


class Result(NamedTuple):
    """How each named test ended: "failed" is what is wanted, anything else says what happened instead."""

    endings: dict[str, str]
    output: str
    """What pytest printed."""

    def all_were(self, ending: str) -> bool:
        """Whether every named test ended so."""
        return bool(self.endings) and set(self.endings.values()) == {ending}

    @property
    def verdict(self) -> str:
        """What became of a break whose tests ended so: one that is skipped, without its server for instance, says
        nothing."""
        if self.all_were("failed"):
            return "killed"
        return "not run" if set(self.endings.values()) <= {"failed", "skipped"} and self.endings else "survived"

    def explained(self) -> str:
        """Each test and its ending, then what pytest printed."""
        lines = [f"{ending}: {test}" for test, ending in self.endings.items()]
        return "\n".join([*lines, self.output])


def broken(text: str, one: Break) -> str:
    """The source file with the break applied; `ValueError` unless its text occurs exactly once and it compiles.

    A generator must stay one: else tests may fail, or pass, by the TypeError of who asks it for its steps.
    """
    found = text.count(one.old)
    if found != 1:
        raise ValueError(f"{one.name!r}: its old text occurs {found} times in {one.file}, not once.")
    if one.old == one.new:
        raise ValueError(f"{one.name!r}: old and new are the same.")
    changed = text.replace(one.old, one.new)
    if one.file.endswith(".py"):
        before, after = (_generators(compile(each, one.file, "exec")) for each in (text, changed))
        for name in before.keys() & after.keys():
            if before[name] != after[name]:
                raise ValueError(f"{one.name!r}: {name} is a generator without the break or with it, not both.")
    return changed


def _generators(code: CodeType) -> dict[str, bool]:
    """The functions in compiled source, and which of them are generators."""
    found = {code.co_qualname: bool(code.co_flags & (CO_GENERATOR | CO_ASYNC_GENERATOR))}
    for part in code.co_consts:
        if isinstance(part, CodeType):
            found |= _generators(part)
    return found


def source_of(one: Break, root: Path = ROOT) -> Path:
    """The file that is broken."""
    return root / one.file if one.file.startswith("demo/") else root / "src" / "retrysafe" / one.file


def check(one: Break) -> None:
    """Raise `ValueError` where the break no longer fits the source."""
    broken(source_of(one).read_text(encoding="utf-8"), one)
    if not one.killed_by:
        raise ValueError(f"{one.name!r}: no test is named that kills it.")


def run_broken(one: Break) -> Result:
    """Run the tests that are named for the break on source that has it."""
    with _copy() as root:
        source = source_of(one, root)
        source.write_text(broken(source.read_text(encoding="utf-8"), one), encoding="utf-8")
        return _run(root, one.killed_by)


def run_unbroken(tests: Iterable[str]) -> Result:
    """Run tests on a copy in which nothing is broken: they must pass, or their failing says nothing."""
    with _copy() as root:
        return _run(root, tuple(dict.fromkeys(tests)))


def missing(tests: Iterable[str]) -> str:
    """What pytest says of tests that do not exist; empty if all do. Nothing is run."""
    done = subprocess.run(
        [*_pytest(), "--collect-only", "-qq", *dict.fromkeys(tests)],
        cwd=ROOT,
        env=_environment(ROOT),
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


@contextmanager
def _copy() -> Iterator[Path]:
    """A copy of the checkout, compiled files included: those of unchanged source stay valid."""
    with TemporaryDirectory(prefix="retrysafe-break-", ignore_cleanup_errors=True) as folder:
        root = Path(folder).resolve()
        for name in COPIED:
            known = ROOT / name
            if known.is_dir():
                shutil.copytree(known, root / name)
            else:
                shutil.copy2(known, root / name)
        yield root


def _pytest() -> list[str]:
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov"]


def _environment(root: Path) -> dict[str, str]:
    """This process's environment, without what belongs to its own test run."""
    own = ("COVERAGE_", "COV_CORE_", "PYTEST_", plugin.PROOFS, plugin.JOURNAL, plugin.DONE, effort.EFFORT)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root / "demo")]),
        "RETRYSAFE_SCRATCH": os.environ.get("RETRYSAFE_SCRATCH") or str(ROOT / ".services"),
        **stretch_within(),
        effort.SEED: CHANCE,
    }


def _run(root: Path, tests: tuple[str, ...]) -> Result:
    report = root / "endings.json"
    command = [*_pytest(), "-p", "tests.proving.breaks.watching", "--tb=short", *tests]
    output, in_time = _output(command, root, {**_environment(root), REPORT: str(report)})
    if not in_time:
        return Result(dict.fromkeys(tests, f"not ended after {DEADLINE} s"), output)
    if not report.exists():
        return Result(dict.fromkeys(tests, "pytest did not start, or died"), output)
    seen = json.loads(report.read_text(encoding="utf-8"))
    if seen["source"] != str(root / "src" / "retrysafe"):
        raise RuntimeError(f"The tests ran on {seen['source']}, not on the copy that is broken.")
    return Result(_of_each(tests, seen["endings"]), output)


def _of_each(tests: tuple[str, ...], endings: dict[str, str]) -> dict[str, str]:
    """The endings of the tests that were named; a name without its parameters stands for all of them."""
    found: dict[str, str] = {}
    for test in tests:
        cases = {
            case: ending
            for case, ending in endings.items()
            if case == test or case.startswith((f"{test}[", f"{test}::"))
        }
        found.update(cases or {test: "not collected"})
    return found


def _output(command: list[str], root: Path, environment: dict[str, str]) -> tuple[str, bool]:
    """What a command prints, and whether it ended in time; what it has started ends with it."""
    with subprocess.Popen(
        command,
        cwd=root,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            return process.communicate(timeout=DEADLINE)[0], True
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.communicate()[0], False
