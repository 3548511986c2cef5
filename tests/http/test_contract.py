"""Every rule of the HTTP contract, over real connections, on every integration, store and mode that can be had.

A rule's own subtest fails under its ID. What a cell can't have is what the committed results say, with the reason.
"""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from retrysafe.conformance import RULES, Verdict, check
from retrysafe.conformance.running import read
from retrysafe.conformance.wire import address as parsed
from tests.cells import choose, values_of
from tests.conftest import require
from tests.http.contract.cells import Cell, cells, checked
from tests.http.contract.elsewhere import FAMILIES, GRPC, UNSEEN, ByTests
from tests.http.contract.fixture import OPTIONS
from tests.http.contract.integrations import INTEGRATIONS
from tests.http.contract.results import PASSED, RESULTS, TESTED, WITHOUT, committed, document, entry, entry_of_grpc
from tests.http.contract.stores import opened
from tests.proving.effort import chance_of, effort

HERE = Path(__file__).parent
THERE = [cell for cell in cells() if cell.cannot_be is None]
LEASED = [cell for cell in THERE if cell.mode == "leased"]
PATIENT = {LEASED[number] for number in choose([values_of({"cell": cell}) for cell in LEASED], 1, chance_of("R19"))}
"""Cells of `make test` with waits for longer than a lease: every integration and store, not every pair."""


@pytest.fixture
def _told_errors_stay_silent() -> Iterator[None]:
    """Servers log what the fixture is told to raise."""
    loggers = [logging.getLogger(name) for name in ("aiohttp.server", "django.request")]
    for logger in loggers:
        logger.disabled = True
    yield
    for logger in loggers:
        logger.disabled = False


@pytest.mark.slow
@pytest.mark.every_value
@pytest.mark.usefixtures("_told_errors_stay_silent")
@pytest.mark.parametrize("cell", THERE, ids=lambda cell: cell.id)
def test_every_rule(cell: Cell, tmp_path: Path, subtests: pytest.Subtests) -> None:
    if cell.store in ("postgresql", "redis"):
        require(cell.store)
    known = committed()["cells"][cell.id]
    for result in checked(cell, tmp_path, patient=effort(cell in PATIENT, True)).results:
        with subtests.test(f"{cell.id}-{result.rule}"):
            assert result.verdict is not Verdict.FAILED, str(result)
            assert entry(cell, result) == known[result.rule], f"python -m tests.http.contract writes {RESULTS.name}"


@pytest.mark.slow
@pytest.mark.usefixtures("_told_errors_stay_silent")
def test_a_header_of_another_name_in_every_integration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.setitem(OPTIONS, "header", "PayPal-Request-Id")
    for integration in INTEGRATIONS:
        with opened("memory", False, tmp_path) as place, INTEGRATIONS[integration].serve(place) as address:
            able = read(parsed(address))
            assert able.choice("header") == "PayPal-Request-Id"
            for rule in ("K1", "K4", "K6", "R1", "R2", "R12", "R29"):
                with subtests.test(f"{integration}-{rule}"):
                    result = check(rule, address, able)
                    assert result.verdict is not Verdict.FAILED, str(result)


def test_the_committed_results_have_every_cell_and_every_rule() -> None:
    found = committed()
    everywhere = [*cells(), *cells(["grpc"])]
    assert [*found["integrations"]] == [*INTEGRATIONS, "grpc"]
    assert found["not there"] == {cell.id: cell.cannot_be for cell in everywhere if cell.cannot_be}
    assert [*found["cells"]] == [cell.id for cell in everywhere if not cell.cannot_be]
    for cell, entries in found["cells"].items():
        assert [*entries] == [*RULES], cell
        for rule, one in entries.items():
            kind, _, told = one.partition(": ")
            assert told or one == PASSED, (cell, rule)
            assert kind + ": " in (f"{PASSED}: ", TESTED, WITHOUT) or one == PASSED, (cell, rule)


def test_tests_named_elsewhere_are_committed() -> None:
    for cell in cells(["grpc"]):
        if cell.cannot_be is None:
            assert committed()["cells"][cell.id] == {rule: entry_of_grpc(cell, rule) for rule in RULES}


def test_a_rule_that_fails_is_never_written() -> None:
    from retrysafe.conformance import Result

    with pytest.raises(AssertionError, match="K1 failed"):
        entry(THERE[0], Result("K1", Verdict.FAILED))
    with pytest.raises(KeyError):
        document({})


def test_rules_that_cannot_be_seen_have_tests_that_are_there() -> None:
    unseen = {rule for rule, known in RULES.items() if not known.visible}
    assert UNSEEN.keys() == unseen
    assert all(families.keys() == {*FAMILIES.values()} for families in UNSEEN.values())
    assert FAMILIES.keys() == INTEGRATIONS.keys()
    assert GRPC.keys() == RULES.keys()
    for where in chain(GRPC.values(), *(families.values() for families in UNSEEN.values())):
        if isinstance(where, ByTests):
            for test in where.tests:
                file, _, name = test.partition("::")
                assert name in _functions(HERE / file), test


def _functions(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
