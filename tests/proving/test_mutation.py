"""The figures of the mutation tool: what counts as killed, and what is left out of the score."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.proving.mutation import HERE, KILLED, ROOT, SURVIVED, TIMEOUT, Mutant, changed, counted, document, ending


def test_mutants_that_no_test_reaches_have_survived_and_unjudged_ones_are_an_error() -> None:
    assert [ending(code) for code in (1, 0, 33, -24)] == [KILLED, SURVIVED, SURVIVED, TIMEOUT]
    with pytest.raises(ValueError, match="not judged"):
        ending(None)


def test_equivalent_mutants_are_left_out_of_the_score_and_timeouts_are_not() -> None:
    found = counted([KILLED] * 8 + [SURVIVED] * 3 + [TIMEOUT], equivalent=2)
    assert found == {"mutants": 12, "killed": 8, "survived": 1, "timeouts": 1, "equivalent": 2, "score": 0.8}


def test_files_are_summed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.proving.mutation.version", lambda name: "1")
    found = document({"core/b.py": [KILLED], "core/a.py": [SURVIVED, KILLED], "core/__init__.py": []}, Counter())
    assert (found["mutants"], found["killed"], list(found["per_file"])) == (3, 2, ["core/a.py", "core/b.py"])


def test_a_mutant_is_what_it_changes() -> None:
    diff = "--- a\n+++ b\n@@ -1 +1 @@\n def f():\n-    return 1\n+    return 2\n"
    assert changed(diff, "core/a.py") == Mutant("core/a.py", "return 1", "return 2")


def test_every_equivalent_has_a_reason_and_stands_once() -> None:
    reasons = json.loads((HERE / "equivalents.json").read_text(encoding="utf-8"))
    assert [one for one in reasons if set(one) != {"file", "before", "after", "why"} or not one["why"]] == []
    assert len({(one["file"], one["before"], one["after"]) for one in reasons}) == len(reasons)


def test_every_equivalent_is_of_text_that_is_in_the_source() -> None:
    reasons = json.loads((HERE / "equivalents.json").read_text(encoding="utf-8"))
    core = ROOT / "src" / "retrysafe"
    sources = {
        file: " ".join((core / file).read_text(encoding="utf-8").split()) for file in {one["file"] for one in reasons}
    }
    assert [one["before"] for one in reasons if " ".join(one["before"].split()) not in sources[one["file"]]] == []
    assert [one["before"] for one in reasons if one["before"] == one["after"]] == []
