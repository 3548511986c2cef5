"""The table for people, the summary at the end, and two runs side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.aims import Judged, judge
from benchmarks.figures import Result, spread, typical
from benchmarks.results import rows_of
from benchmarks.rows import FLOOR, OURS

_WIDTHS = (60, 11, 11, 9, 9, 18, 7)


def header() -> str:
    """The first line of the table."""
    return _line("", "wall", "CPU", "of floor", "of CPU", "min – max", "trips")


def lines(result: Result) -> Iterator[str]:
    """One line for each contender, ours first; then what could not take part."""
    contenders = result["contenders"]
    for name in sorted(contenders, key=lambda name: (name != OURS, name != FLOOR, name)):
        yield _contender(result, name)
    for name, error in result["errors"].items():
        yield f"  {name} could not take part: {error}"


def _contender(result: Result, name: str) -> str:
    unit = result["unit"]
    first = result["name"] if name == OURS else f"  {result['beside'] if name == FLOOR else name}"
    ratio, of_cpu = spread(result, "ratio", name), spread(result, "CPU ratio", name)
    trips = result["contenders"][name]["round_trips"]
    return _line(
        first,
        amount(typical(result, name, "spent"), unit),
        amount(typical(result, name, "cpu"), "s"),
        "" if ratio is None or name == FLOOR else f"{ratio.median:.2f}",
        "" if of_cpu is None or name == FLOOR else f"{of_cpu.median:.2f}",
        "" if ratio is None or name == FLOOR else f"{ratio.low:.2f} – {ratio.high:.2f}",
        "" if trips is None else f"{trips:.2g}",
    )


def amount(value: float | None, unit: str) -> str:
    """Format the cost of one operation, in a unit that reads well."""
    if value is None:
        return ""
    if unit == "bytes":
        return f"{value:,.0f} B"
    return f"{value * 1e3:.2f} ms" if value >= 0.001 else f"{value * 1e6:.1f} µs"


def summary(judged: Sequence[Judged], failed: Mapping[str, str]) -> Iterator[str]:
    """Every aim met or missed, and what could not be measured."""
    yield ""
    for one in judged:
        if one.verdict != "not measured":
            smaller = f"; smaller aim {one.fallback}" if one.fallback else ""
            yield f"{one.verdict:>7}: {one.aim.row}: {one.text}, aim {one.aim.text}{smaller}"
    yield counted(judged)
    for name, error in failed.items():
        yield f"failed: {name}: {error}"


def counted(judged: Sequence[Judged]) -> str:
    """Count the aims that were met."""
    counts = Counter(one.verdict for one in judged)
    held = sum(one.verdict == "missed" and one.meets_smaller for one in judged)
    return (
        f"{counts['met']} aims are met, {counts['missed']} are missed ({held} of them meet a smaller aim), "
        f"{counts['not measured']} were not measured"
    )


def compared(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Two runs, row by row, by the ratio to the floor that each measured itself; then the aims that changed."""
    old, new = rows_of(before), rows_of(after)
    if before["machine"]["processor"] != after["machine"]["processor"]:
        yield "These are two kinds of machine: compare ratios only."
    yield _compared("", "before", "after", "change", "CPU before", "CPU after", "change")
    for name in (name for name in new if name in old):
        cells: list[str] = []
        for figure in ("ratio", "CPU ratio"):
            one, other = spread(old[name], figure), spread(new[name], figure)
            if one is None or other is None:
                cells += ["", "", ""]
            else:
                apart = one.high < other.low or other.high < one.low
                change = f"{other.median / one.median - 1:+.0%}{' !' if apart else ''}"
                cells += [f"{one.median:.2f}", f"{other.median:.2f}", change]
        yield _compared(name, *cells)
    yield "! the two spreads don't overlap"
    for missing, word in ((old.keys() - new.keys(), "only before"), (new.keys() - old.keys(), "only after")):
        yield from (f"{word}: {name}" for name in sorted(missing))
    for was, now in zip(judge(old), judge(new), strict=True):
        if was.verdict != now.verdict:
            yield f"{was.verdict} before, {now.verdict} now: {now.aim.row}, aim {now.aim.text}"


def _compared(first: str, *rest: str) -> str:
    return f"{first:<60}{''.join(f'{text:>11}' for text in rest)}".rstrip()


def _line(first: str, *rest: str) -> str:
    width, *widths = _WIDTHS
    aligned = (f"{text:>{width}}" for text, width in zip(rest, widths, strict=True))
    return f"{first:<{width}}{''.join(aligned)}".rstrip()
