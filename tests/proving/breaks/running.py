"""Runs tests on a copy of the checkout in which one defence is taken out of the source."""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from inspect import CO_ASYNC_GENERATOR, CO_GENERATOR
from itertools import dropwhile
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType
from typing import NamedTuple

from tests.ports import stretch_within
from tests.proving import effort, plugin
from tests.proving.breaks import Break
from tests.proving.breaks.mutations import Misfit, names_in
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
    """The end of each named test: "failed" is the wanted one, anything else says what happened instead."""

    endings: dict[str, str]
    output: str
    """The output of pytest."""

    def all_were(self, ending: str) -> bool:
        """Tell whether every named test ended so."""
        return bool(self.endings) and set(self.endings.values()) == {ending}

    @property
    def verdict(self) -> str:
        """The result of a break; a skipped test, without its server for instance, says nothing."""
        if self.all_were("failed"):
            return "killed"
        return "not run" if set(self.endings.values()) <= {"failed", "skipped"} and self.endings else "survived"

    def explained(self) -> str:
        """Each test and its ending, then what pytest printed."""
        lines = [f"{ending}: {test}" for test, ending in self.endings.items()]
        return "\n".join([*lines, self.output])


def broken(text: str, one: Break) -> str:
    """The source file with the break applied; `ValueError` unless its symbol and its place are there, and it compiles.

    A generator must stay one: else tests may fail, or pass, by the TypeError that asking for its steps raises.
    """
    symbols = _symbols_in(text).get(one.symbol.partition(":")[2], [])
    if len(symbols) != 1:
        raise ValueError(f"{one.name!r}: {one.symbol} is {len(symbols)} times in {one.file}, not once.")
    try:
        changed = _replaced(text, deepcopy(symbols[0]), one)
    except Misfit as error:
        raise ValueError(f"{one.name!r}: in {one.symbol}, {error}") from None
    before, after = _generators(_compiled(text, one.file)), _generators(compile(changed, one.file, "exec"))
    for name in before.keys() & after.keys():
        if before[name] != after[name]:
            raise ValueError(f"{one.name!r}: {name} is a generator without the break or with it, not both.")
    return changed


def _replaced(text: str, symbol: ast.stmt, one: Break) -> str:
    """The text with other lines for the symbol, and all others where they were unless there are more of these."""
    before = ast.dump(symbol)
    one.change.apply(symbol)
    if ast.dump(symbol) == before:
        raise ValueError(f"{one.name!r}: {one.change.shown} changes nothing in {one.symbol}.")
    lines = text.splitlines(keepends=True)
    first = min([symbol.lineno, *(mark.lineno for mark in getattr(symbol, "decorator_list", []))]) - 1
    last = symbol.end_lineno or symbol.lineno
    nested: ast.stmt = symbol
    for _ in range(symbol.col_offset // 4):
        nested = ast.If(ast.Constant(True), [nested], [])
    unparsed = ast.unparse(ast.fix_missing_locations(nested)).splitlines(keepends=True)
    new = [*dropwhile(str.isspace, unparsed[symbol.col_offset // 4 :])]
    gap = ["\n"] * (last - first - len(new))
    return "".join([*lines[:first], *new, "\n", *gap, *lines[last:]])


def symbols_of(tree: ast.AST, prefix: str = "") -> dict[str, list[ast.stmt]]:
    """The statements that give names to functions, classes, their attributes and constants, by their qualified names.

    A function that is declared once more for its type (`overload`) counts once.
    """
    found: dict[str, list[ast.stmt]] = {}
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not any("overload" in names_in(mark) for mark in node.decorator_list):
                found.setdefault(prefix + node.name, []).append(node)
                inner = symbols_of(node, f"{prefix}{node.name}.")
                found |= {name: [*found.get(name, []), *known] for name, known in inner.items()}
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name):
                found.setdefault(prefix + target.id, []).append(node)
        if isinstance(node, ast.stmt | ast.ExceptHandler):
            inner = symbols_of(node, prefix)
            found |= {name: [*found.get(name, []), *known] for name, known in inner.items()}
    return found


@cache
def _symbols_in(text: str) -> dict[str, list[ast.stmt]]:
    return symbols_of(ast.parse(text))


@cache
def _compiled(text: str, file: str) -> CodeType:
    return compile(text, file, "exec")


def _generators(code: CodeType) -> dict[str, bool]:
    """The functions in compiled source, and which of them are generators."""
    found = {code.co_qualname: bool(code.co_flags & (CO_GENERATOR | CO_ASYNC_GENERATOR))}
    for part in code.co_consts:
        if isinstance(part, CodeType):
            found |= _generators(part)
    return found


def source_of(one: Break, root: Path = ROOT) -> Path:
    """The file that is broken, which a package has as its `__init__.py`."""
    file = root / one.file
    return file if file.exists() else file.with_suffix("") / "__init__.py"


def check(one: Break) -> None:
    """Raise `ValueError` or `SyntaxError` where the break no longer fits the source."""
    broken(source_of(one).read_text(encoding="utf-8"), one)
    if not one.killed_by:
        raise ValueError(f"{one.name!r}: no test is named that kills it.")


def misfits(breaks: Iterable[Break]) -> list[str]:
    """The reasons why breaks no longer fit the source, of each that does not."""
    found = []
    for one in breaks:
        try:
            check(one)
        except (ValueError, OSError) as error:
            found.append(str(error))
        except SyntaxError as error:
            found.append(f"{one.name!r}: {one.change.shown} makes no program of {one.symbol}: {error}")
    return found


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
    """Return pytest's complaint of tests that do not exist; empty if all do. Nothing is run."""
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
    """Return a command's output, and whether it ended in time; the processes that it has started end with it."""
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
