"""Findings, and the fingerprints by which they are recognised when lines have moved."""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from retrysafe.scan.module import Function, Module


class Severity(Enum):
    """The severity, in the words of SARIF."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return list(Severity).index(self)


class Rule(NamedTuple):
    """One rule. ``wrong`` is code that it reports, ``right`` code that does the same safely and is not reported."""

    id: str
    title: str
    severity: Severity
    why: str
    fix: str
    page: str
    """The page that helps, under docs/."""
    wrong: str
    right: str


class Finding(NamedTuple):
    """One place that a rule reports. Lines count from 1, columns from 1."""

    rule: Rule
    message: str
    shown: str
    line: int
    column: int = 1
    first_line: int = 0
    """The first line of the statement or of the decorators: where an allowance may stand."""
    last_line: int = 0
    context: str = ""
    """The qualified name of the function or class around it."""
    code: str = ""
    """The code itself, without its layout."""
    severity: Severity = Severity.WARNING
    fingerprint: str = ""


def finding(rule: Rule, module: Module, node: ast.AST, message: str, severity: Severity | None = None) -> Finding:
    if isinstance(node, Function | ast.ClassDef):
        start = min([node.lineno, *(one.lineno for one in node.decorator_list)])
        end = max(node.lineno, node.body[0].lineno - 1)
        code = f"{type(node).__name__} {node.name}"
    else:
        start, end = node.lineno, node.end_lineno or node.lineno  # type: ignore[attr-defined]
        code = ast.unparse(node)
    return Finding(
        rule,
        message,
        module.shown,
        node.lineno,  # type: ignore[attr-defined]
        node.col_offset + 1,  # type: ignore[attr-defined]
        start,
        end,
        module.qualname_at(node),
        code,
        severity or rule.severity,
    )


def with_fingerprints(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Add fingerprints: of rule, file, function and code, and of which one it is among those that are alike."""
    alike: Counter[str] = Counter()
    for one in findings:
        parts = "\0".join((one.rule.id, one.shown.removeprefix("./"), one.context, one.code))
        alike[parts] += 1
        digest = hashlib.sha256(f"{parts}\0{alike[parts]}".encode("utf-8", "surrogatepass")).hexdigest()
        yield one._replace(fingerprint=digest[:32])
