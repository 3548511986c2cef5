"""The recorded run in README and home page shows what the demo of today would draw: else run scripts/record-demo."""

from __future__ import annotations

import html
import re
from collections import defaultdict
from itertools import takewhile
from pathlib import Path

import pytest

import retrysafe_demo
from retrysafe_demo.audit import Count
from retrysafe_demo.lanes import Lane
from retrysafe_demo.report import COLUMNS, Findings, verdict
from retrysafe_demo.view import SHOWN
from tests.docs.pages import ROOT
from tests.tables import each_row

PAGES = ("README.md", "docs/index.md", "docs/how-to/run-the-demo.md")
_TEXT = re.compile(r'<text[^>]* x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>')


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """The lines of the terminal that was drawn, from top to bottom."""
    rows: dict[float, list[tuple[float, str]]] = defaultdict(list)
    for x, y, text in _TEXT.findall((ROOT / "docs/assets/demo.svg").read_text(encoding="utf-8")):
        rows[float(y)].append((float(x), html.unescape(text).replace("\xa0", " ")))
    return ["".join(text for _, text in sorted(rows[y])).strip() for y in sorted(rows)]


@pytest.fixture(scope="module")
def counts(lines: list[str]) -> dict[Lane, Count]:
    """Read the audit of each lane in the picture."""
    found = {}
    for line in lines:
        name, *numbers = (cell.strip() for cell in line.strip("│").split("│"))
        if len(numbers) == len(COLUMNS) and all(number.isdigit() for number in numbers):
            found[Lane(name)] = Count(*map(int, numbers))
    return found


def test_its_panels_have_the_rows_of_the_demo(lines: list[str]) -> None:
    rows = [re.fullmatch(r"│\s*(\w+)\s+\d+\s*││.*", line) for line in lines]
    assert tuple(row[1] for row in rows if row) == SHOWN


def test_its_audit_has_the_columns_of_the_demo(lines: list[str], counts: dict[Lane, Count]) -> None:
    (head,) = (line for line in lines if line.startswith("┃"))
    assert tuple(cell.strip() for cell in head.strip("┃").split("┃")) == ("lane", *COLUMNS)
    assert set(counts) == {Lane.UNSAFE, Lane.NAIVE, Lane.RETRYSAFE}


def test_its_verdict_is_what_the_demo_says_of_these_numbers(lines: list[str], counts: dict[Lane, Count]) -> None:
    last = [*takewhile(lambda line: not line.startswith("└"), reversed(lines))]
    shown = " ".join(" ".join(reversed(last)).split())
    assert shown == " ".join(verdict(Findings(7, counts, 0, 0.0)).split())


def test_its_events_are_told_by_the_demo(lines: list[str]) -> None:
    demo = Path(retrysafe_demo.__file__ or "").parent
    source = "".join(path.read_text(encoding="utf-8") for path in demo.rglob("*.py"))
    told = [re.fullmatch(r"(?:unsafe|naive|retrysafe)\s+INV-\S+\s+\w+ \d+\s+(.+)", line) for line in lines]
    events = [event[1] for event in told if event]
    assert events
    assert [event for event in events if f'"{event}"' not in source] == []


@each_row("page", PAGES)
def test_its_alternative_text_has_its_numbers(page: str, counts: dict[Lane, Count]) -> None:
    unsafe, naive = counts[Lane.UNSAFE], counts[Lane.NAIVE]
    assert not counts[Lane.RETRYSAFE].charged_twice
    expected = (
        f"without protection {unsafe.charged_twice} of {unsafe.intents} payments were charged twice, "
        f"with a check of the key {naive.charged_twice}, with retrysafe none]"
    )
    assert expected in (ROOT / page).read_text(encoding="utf-8")
