"""The table by type, whose types may be imported after it is made."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from retrysafe.protocol.type_table import TypeTable


@pytest.fixture
def table() -> TypeTable[str]:
    return TypeTable({int: "int"}, late={"newcomer.Kind": "late"}, other="other")


@pytest.fixture
def newcomer(monkeypatch: pytest.MonkeyPatch) -> type:
    """A type of a module that is imported later than the table is made."""
    module, kind = ModuleType("newcomer"), type("Kind", (), {"__module__": "newcomer"})
    module.__dict__["Kind"] = kind
    monkeypatch.setitem(sys.modules, "newcomer", module)
    return kind


def test_knows_exact_types(table: TypeTable[str]) -> None:
    assert (table[int], table[bool], table[str]) == ("int", "other", "other")


def test_knows_a_late_type_once_it_exists(table: TypeTable[str], newcomer: type) -> None:
    assert table[newcomer] == "late"
    assert table[type("Kind", (newcomer,), {})] == "other"


def test_takes_no_class_for_a_late_type_that_only_says_so(table: TypeTable[str], newcomer: type) -> None:
    impostor = type("Kind", (), {"__module__": "newcomer"})
    assert table[impostor] == "other"
    del sys.modules["newcomer"]
    assert table[newcomer] == "other"
