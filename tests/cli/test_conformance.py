"""The suite of stores as a command."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrysafe.cli import main
from retrysafe.testing import conformance
from retrysafe.testing.bench import Bench


def _fails(bench: Bench) -> None:
    assert bench.read() is not None


def test_a_store_is_put_to_the_suite_by_both_of_its_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    assert main(["conformance", "store", url]) == 0
    told = capsys.readouterr().out
    assert [line.split(", ", 1)[1].split(":")[0] for line in told.splitlines()] == ["sync", "async"]
    assert "0 failed" in told
    monkeypatch.setitem(conformance.CASES, "nothing_is_there", _fails)
    assert main(["conformance", "store", url]) == 1
    assert "sync: nothing_is_there: assert bench.read() is not None" in capsys.readouterr().out
    assert main(["conformance", "store", "nonsense://x"]) == 2
