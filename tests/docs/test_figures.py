"""The guarantees page says what a run found: nothing more, and nothing less."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from retrysafe.backends.registry import stores
from tests.docs.pages import ROOT
from tests.proving import proofs
from tests.proving.breaks import Break
from tests.proving.breaks.mutations import never
from tests.proving.injected import all_tests
from tests.proving.proofs import Proof

FOUND = (
    Proof("lost messages", "postgresql+asyncpg", "keyed", "reply lost", 1200, rows=(14, 2)),
    Proof("lost messages", "postgresql", "keyed", "reply lost", 34, rows=(14,)),
    Proof("lost messages", "postgresql", "transactional, tx=", "request lost", 5),
    Proof("kills", "redis", "external", "server killed", 6, broken=2, rows=(3,)),
    Proof("simulation", "", "", "duplicate", 7),
)


@pytest.fixture(scope="module", autouse=True)
def generators() -> Iterator[None]:
    """Make the generators importable."""
    sys.path.insert(0, str(ROOT / "scripts"))
    yield
    sys.path.remove(str(ROOT / "scripts"))


@pytest.fixture
def guarantees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The generator of the page, with nothing recorded."""
    module = import_module("docparts.guarantees")
    monkeypatch.setattr(module, "PROOFS", tmp_path / "proofs.json")
    monkeypatch.setattr(module, "MUTATION", tmp_path / "mutation.json")
    monkeypatch.setattr(module, "PARTS", tmp_path / "parts")
    return module


@pytest.fixture
def recorded(guarantees: ModuleType) -> ModuleType:
    """The same, after a run."""
    found = [one._asdict() for one in FOUND]
    proofs.write(guarantees.PROOFS, found, {"Redis": "8.0"}, {"passed": 3, "failed": 1}, "-m prove -k lost")
    return guarantees


def test_without_a_run_the_page_says_so(guarantees: ModuleType) -> None:
    assert "No run of `make prove` has been recorded" in guarantees.run()
    assert "No run of `make prove` has been recorded" in guarantees.injected()
    assert "no run recorded" in guarantees.promises()
    assert "recorded yet" in guarantees.mutation()


def test_the_run_is_told_with_what_repeats_it(recorded: ModuleType) -> None:
    run = proofs.read(recorded.PROOFS)
    assert run is not None
    told = dict(line.strip("| ").split(" | ") for line in recorded.run().splitlines()[2:])
    assert told["faults injected"] == "1,252"
    assert told["promises broken"] == "2"
    assert told["tests"] == "1 failed, 3 passed"
    assert told["effort"] == "short"
    assert told["again"] == f"`RETRYSAFE_SEED={run.seed} make prove`"
    assert told["pytest was given"] == "`-m prove -k lost`"
    assert "Redis 8.0" in told["versions"]


def test_each_fault_is_counted_where_it_was_injected(recorded: ModuleType) -> None:
    tables = recorded.injected().split("### ")
    (lost,) = [one for one in tables if one.startswith("Lost messages\n\n1,239 faults injected, no promise broken.")]
    assert "| fault | mode | postgresql | postgresql+asyncpg | broken |" in lost
    assert "| reply lost | keyed | 34 | 1,200 | 0 | 2, 14 |" in lost
    assert "| request lost | transactional, tx= | 5 | – | 0 | – |" in lost
    (kills,) = [one for one in tables if one.startswith("Kills\n\n6 faults injected, **2 promises broken**.")]
    assert "| server killed | external | 6 | 2 | 3 |" in kills
    assert any("| duplicate | – | 7 | 0 | – |" in one for one in tables)


def test_a_part_of_its_own_run_names_that_run_and_counts_for_its_store(recorded: ModuleType) -> None:
    found = [Proof("failing statements", "sqlite", "transactional, tx=", "disk full", 9, rows=(84,))]
    file = recorded.PARTS / "sqlite.json"
    versions = {"MySQL 9": "9.1", "Redis": "7.0", "valkey-9": "9.0"}
    proofs.write(file, [one._asdict() for one in found], versions, {"passed": 6}, "tests/faults")
    run = proofs.read(file)
    assert run is not None
    _, part = recorded.injected().split("### Failing statements\n\n9 faults injected, no promise broken.")
    assert "| disk full | transactional, tx= | 9 | 0 | 84 |" in part
    assert f"seed {run.seed}, effort short, 6 passed; pytest was given `tests/faults`. Versions: MySQL 9 9.1," in part
    assert "Redis" not in part, "no proof of the part has met it"
    assert "valkey" not in part
    assert "| 9 faults injected, no promise broken |" in recorded.promises().split("### sqlite")[1]


def test_each_mode_of_each_store_shows_its_own(recorded: ModuleType) -> None:
    sections = dict(section.split("\n", 1) for section in recorded.promises().split("### ")[1:])
    assert list(sections) == [store.capabilities.name for store in stores()]
    rows = {
        name: [line.split(" | ")[-1].strip(" |") for line in text.splitlines() if line.startswith("| ")]
        for name, text in sections.items()
    }
    none = "no fault injected"
    assert rows["postgresql"][2:6] == [
        none,
        "5 faults injected, no promise broken",
        "1,234 faults injected, no promise broken",
        none,
    ]
    assert rows["redis"][2:4] == [none, "6 faults injected, **2 promises broken**"]
    assert rows["sqlite"][2:6] == [none] * 4


def test_proofs_of_the_tests_are_no_faults(guarantees: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    killers = ("tests/x.py::test_y[1]",)
    caught, other = (Break(name, "protocol.keys:parse", never("isinstance"), killers, (3,)) for name in ("a", "b"))
    monkeypatch.setattr(guarantees, "all_breaks", lambda: {"a": caught, "b": other})
    assert "without 0 of them" in guarantees.breaks()
    found = [Proof("mutants", "", "", "a", 1), Proof("histories: the checker", "", "", "a stale read", 40)]
    proofs.write(guarantees.PROOFS, [one._asdict() for one in found], {}, {})
    assert "| faults injected | 0 |" in guarantees.run()
    assert guarantees.injected() == ""
    assert "2 defences; in the recorded run the tests failed without 1 of them." in guarantees.breaks()
    assert "| a | `protocol.keys:parse` | `tests/x.py`: `test_y` | 3 | yes |" in guarantees.breaks()
    assert "| b | `protocol.keys:parse` | `tests/x.py`: `test_y` | 3 | not run |" in guarantees.breaks()
    assert "| a stale read | 40 |" in guarantees.checker()


def test_mutants_are_told_file_by_file(guarantees: ModuleType) -> None:
    counts = {"mutants": 1211, "killed": 1100, "survived": 90, "timeouts": 10, "equivalent": 11, "score": 0.9167}
    document = {"tool": "a tool", "version": "1", **counts, "per_file": {"protocol/keys.py": counts | {"score": 91.67}}}
    guarantees.MUTATION.write_text(json.dumps(document), encoding="utf-8")
    told = guarantees.mutation()
    assert told.startswith("a tool 1:\n")
    assert "| all | 1,211 | 1,100 | 90 | 10 | 11 | 91.7% |" in told
    assert "| `protocol/keys.py` | 1,211 | 1,100 | 90 | 10 | 11 | 91.7% |" in told


def test_the_checklist_has_its_hundred_lines_and_no_blank() -> None:
    lines = import_module("docparts.checklist_lines")
    found = [line for part in lines.CHECKLIST.values() for line in part]
    names = [f"{letter}{number}" for letter in "DCHNBMPSEO" for number in range(1, 11)]
    assert [line.name for line in found] == names
    assert [line.name for line in found if not line.by] == []


def test_covers_of_the_checklist_are_there() -> None:
    lines = import_module("docparts.checklist_lines")
    covers = {cover for part in lines.CHECKLIST.values() for line in part for cover in line.by}
    assert {cover.kind for cover in covers} == {"feature", "check", "page", "test"}
    there = all_tests()
    assert [cover.text for cover in covers if cover.kind == "test" and cover.text not in there] == []
    assert [cover for cover in covers if bool(cover.link) == (cover.kind == "test")] == []
