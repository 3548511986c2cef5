"""The tests that inject each fault: read from their markers, without running anything."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).parents[2]
Definition = ast.FunctionDef | ast.AsyncFunctionDef


def injected(root: Path = ROOT) -> dict[int, list[str]]:
    """The node ids of the tests that inject each row, as `tests/faults/test_clocks.py::test_name`."""
    found: dict[int, list[str]] = {}
    for path, rows in _files(root):
        for test, marked in rows.items():
            for row in marked:
                found.setdefault(row, []).append(f"{path}::{test}")
    return found


def all_tests(root: Path = ROOT) -> set[str]:
    """The node ids of all tests, without parameters."""
    return {f"{path}::{test}" for path, rows in _files(root) for test in rows}


@cache
def _files(root: Path) -> list[tuple[str, dict[str, list[int]]]]:
    paths = sorted((root / "tests").rglob("test_*.py"))
    names = ((path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")) for path in paths)
    return [(name, marked(text, name)) for name, text in names]


def marked(source: str, name: str) -> dict[str, list[int]]:
    """The tests of a module with the rows that their markers name: on the test, its class, a parameter, the module.

    A marker that is written elsewhere, or whose rows are not plain numbers, cannot be read here: ValueError.
    """
    module = ast.parse(source, name)
    if not re.search(r"\.\s*fault\b", source):
        return {test: [] for test, _ in _tests(module)}
    constants = {
        target.id: list(_markers(node.value))
        for node in module.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    numbers = {constant: value for constant, value in _values(module) if isinstance(value, tuple)}
    seen = {id(mark.func) for marks in constants.values() for mark in marks}
    found: dict[str, list[int]] = {}
    for test, decorators in _tests(module):
        marks = [mark for decorator in decorators for mark in _markers(decorator)]
        seen |= {id(mark.func) for mark in marks}
        named = [node.id for one in decorators for node in ast.walk(one) if isinstance(node, ast.Name)]
        marks += [mark for constant in [*named, "pytestmark"] for mark in constants.get(constant, [])]
        found[test] = sorted({row for mark in marks for row in _rows(mark, numbers, name)})
    for node in ast.walk(module):
        if _is_fault(node) and id(node) not in seen:
            raise ValueError(f"{name}:{node.lineno}: this marker of faults belongs to no test")
    return found


def _tests(module: ast.Module) -> Iterator[tuple[str, list[ast.expr]]]:
    for node in module.body:
        if isinstance(node, Definition) and node.name.startswith("test_"):
            yield node.name, node.decorator_list
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, Definition) and inner.name.startswith("test_"):
                    yield f"{node.name}::{inner.name}", [*node.decorator_list, *inner.decorator_list]


def _markers(tree: ast.AST) -> Iterator[ast.Call]:
    """Every `….mark.fault(…)` below a node."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_fault(node.func):
            yield node


def _is_fault(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and node.attr == "fault" and ast.unparse(node.value).endswith("mark")


def _values(module: ast.Module) -> Iterator[tuple[str, object]]:
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            with suppress(ValueError):
                yield node.targets[0].id, ast.literal_eval(node.value)


def _rows(mark: ast.Call, constants: dict[str, tuple[object, ...]], name: str) -> list[int]:
    """The numbers that a marker names, one by one or as `*ROWS`, a constant of the module."""
    rows: list[object] = []
    for argument in mark.args:
        if isinstance(argument, ast.Starred) and isinstance(argument.value, ast.Name):
            rows += constants.get(argument.value.id, (None,))
        else:
            rows.append(argument.value if isinstance(argument, ast.Constant) else None)
    numbers = [row for row in rows if isinstance(row, int)]
    if len(numbers) != len(rows) or not numbers:
        raise ValueError(f"{name}:{mark.lineno}: write the numbers of the rows")
    return numbers
