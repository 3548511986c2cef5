"""Docstrings, comments, names of tests and commit subjects begin with a noun or a verb, and name their actors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from houseparts import ROOT, words

FOLDERS = ("src", "demo", "scripts", "tests", "examples", "benchmarks")


def _git(*arguments: str) -> list[str]:
    run = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return run.stdout.splitlines()


def test_words_of_the_source() -> None:
    files = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    assert len(files) > 1000
    assert [
        f"{path.relative_to(ROOT)}:{line}: {text.strip()[:60]}"
        for path in files
        for line, text in words.faults(path.read_text(encoding="utf-8"))
    ] == []


def test_actors_of_the_library_have_a_name() -> None:
    assert [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for line, text in words.vague_actors(path.read_text(encoding="utf-8"))
    ] == []


@pytest.mark.slow
def test_subjects_of_commits_since_this_rule() -> None:
    if not (first := _git("log", "--diff-filter=A", "--format=%H", "--", "tests/test_words.py")):
        pytest.skip("no history of this file")
    assert [
        subject for subject in _git("log", "--format=%s", f"{first[-1]}..HEAD") if not words.is_subject(subject)
    ] == []


def test_each_kind_of_fault_is_found() -> None:
    lines = (
        '"""Whose"""',
        "x = 1  % where",
        "",
        "def test_r5_what_is() -> None:",
        "    % how it",
        "    % where",
        "    pass",
    )
    source = "\n".join(lines).replace("%", "#")
    assert [line for line, _ in words.faults(source)] == [1, 2, 4, 5]
    vague = '"""A text.\n\nOf nobody."""\nx = "nobody"  # by somebody\n'
    assert [line for line, _ in words.vague_actors(vague)] == [3, 4]
    assert not words.is_subject("What is new")
    assert not words.is_subject("x" * 73)
    assert words.is_subject("Whatsoever")
