"""The committed results of the matrix: what became of every rule in every cell."""

from __future__ import annotations

import json
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from retrysafe.conformance import RULES, Report, Result, Verdict
from tests.http.contract.cells import Cell, cells
from tests.http.contract.elsewhere import FAMILIES, GRPC, UNSEEN, ByTests, Where
from tests.http.contract.integrations import INTEGRATIONS

RESULTS = Path(__file__).with_name("results.json")
PASSED, TESTED, WITHOUT = "passed", "tested: ", "without: "
"""The beginnings of an entry: checked over a real connection (but for this); checked by these tests; not there, for
this reason.
"""


def entry(cell: Cell, result: Result) -> str:
    """A result as it is committed."""
    assert result.verdict is not Verdict.FAILED, str(result)
    if result.verdict is Verdict.PASSED:
        return f"{PASSED}: {result.reason}" if result.reason else PASSED
    if result.verdict is Verdict.NOT_VISIBLE and cell.mode in RULES[result.rule].modes:
        return _elsewhere(UNSEEN[result.rule][FAMILIES[cell.integration]])
    meaningless = "" if cell.mode in RULES[result.rule].modes else f"means nothing in {cell.mode} mode"
    return WITHOUT + (meaningless or result.reason.removeprefix("the server says: ").rstrip("."))


def entry_of_grpc(cell: Cell, rule: str) -> str:
    """The same for gRPC, whose cells are its own tests."""
    if cell.mode not in RULES[rule].modes:
        return f"{WITHOUT}means nothing in {cell.mode} mode"
    return _elsewhere(GRPC[rule])


def _elsewhere(where: Where) -> str:
    return TESTED + ", ".join(where.tests) if isinstance(where, ByTests) else WITHOUT + where.reason


def document(reports: dict[Cell, Report]) -> dict[str, Any]:
    """All that the page is made of, given what became of the cells."""
    there: dict[str, dict[str, str]] = {}
    not_there: dict[str, str] = {}
    for cell in [*cells(), *cells(["grpc"])]:
        if cell.cannot_be is not None:
            not_there[cell.id] = cell.cannot_be
        elif cell.integration == "grpc":
            there[cell.id] = {rule: entry_of_grpc(cell, rule) for rule in RULES}
        else:
            there[cell.id] = {result.rule: entry(cell, result) for result in reports[cell].results}
    libraries = sorted({library for one in INTEGRATIONS.values() for library in one.versions} | {"grpcio"})
    return {
        "integrations": {name: one.title for name, one in INTEGRATIONS.items()} | {"grpc": "gRPC"},
        "versions": {library: version(library) for library in libraries},
        "cells": there,
        "not there": not_there,
    }


@cache
def committed() -> dict[str, Any]:
    """The file."""
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found
