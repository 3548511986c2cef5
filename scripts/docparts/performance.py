"""The recorded run of `make bench`: every aim, every row, and the lesser work of rivals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks import results
from benchmarks.aims import Judged, Verdict, judge
from benchmarks.figures import Result, Spread, spread, typical
from benchmarks.limits import Limit, limit_of
from benchmarks.report import amount, counted
from benchmarks.rivals.differences import LESS
from benchmarks.rows import FLOOR, OURS
from docparts.markdown import table

_CHARTED = ("memory", "sqlite NORMAL", "sqlite FULL", "redis", "postgresql asyncpg")
_NOT_MEASURED: Verdict = "not measured"


def _run() -> dict[str, Any]:
    return results.read(results.RECORDED)


def _judged() -> list[Judged]:
    return judge(results.rows_of(_run()))


def run() -> str:
    """Describe the time and the machine of the recording."""
    run = _run()
    machine, versions = run["machine"], run["versions"]
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    failed = "".join(f"\n- {name}: `{error.replace('`', chr(39))}`" for name, error in run["failed"].items())
    return (
        f"Recorded {run['started'].partition('T')[0]} in {run['seconds'] / 60:.0f} minutes, with {run['effort']} "
        f"effort, on {machine['cores']} cores of {machine['processor']}, at a load of {machine['load before']} before. "
        f"{listed}.\n\n"
        f"**{counted(_judged())}.**" + (f"\n\nWhat could not be measured:\n{failed}" if failed else "")
    )


def aims() -> str:
    """Every aim, and what came of it."""
    return table(
        ("row", "aim", "found: median (min – max)", "verdict", "smaller aim", "where the aim comes from"),
        (
            (f"`{one.aim.row}`", one.aim.text, _found(one), _verdict(one), one.fallback, one.aim.source)
            for one in sorted(_judged(), key=lambda one: one.verdict == _NOT_MEASURED)
        ),
    )


def _verdict(one: Judged) -> str:
    return "**missed**" if one.verdict == "missed" else one.verdict


def _found(one: Judged) -> str:
    if one.found is None:
        return one.text
    digits = 0 if one.found.high >= 1000 else 2 if one.found.high < 10 else 1
    return f"{one.text} ({one.found.low:,.{digits}f} – {one.found.high:,.{digits}f})"


def limits() -> str:
    """A paragraph for each aim that was not met: what was found instead, the smaller aim, and the profile behind it."""
    paragraphs: dict[Limit, list[str]] = {}
    for one in _judged():
        if one.verdict != "met":
            paragraphs.setdefault(limit_of(one.aim.row), []).append(_short(one))
    return "\n\n".join("\n".join((*rows, "", limit.text)) for limit, rows in paragraphs.items())


def _short(one: Judged) -> str:
    found = "not measured" if one.found is None else f"**{one.found.median:,.2f}**"
    smaller = f"; smaller aim {one.fallback}" if one.fallback else ""
    return f"- `{one.aim.row}`: {found}, aim {one.aim.text}{smaller}"


def chart() -> str:
    """The middleware beside the bare application, as bars; the line is the aim."""
    measured = [
        (one.aim, one.found)
        for one in _judged()
        if one.found is not None
        and one.aim.row.startswith("http ")
        and one.aim.row.removeprefix("http ").startswith(_CHARTED)
    ]
    labels = [aim.row.removeprefix("http ").replace(" ×16/", ", ") for aim, _ in measured]
    return "\n".join(
        (
            "```mermaid",
            "xychart-beta horizontal",
            '    title "Requests beside the bare application (bar), and the aim (line)"',
            f"    x-axis [{', '.join(f'{chr(34)}{label}{chr(34)}' for label in labels)}]",
            '    y-axis "of the bare application" 0 --> 1.6',
            f"    bar [{', '.join(f'{found.median:.2f}' for _, found in measured)}]",
            f"    line [{', '.join(f'{aim.value:.2f}' for aim, _ in measured)}]",
            "```",
        )
    )


def rows() -> str:
    """Every row with what it was measured beside."""
    lines = [line for result in _run()["rows"] for line in _lines(result)]
    head = ("row", "wall", "CPU", "of the floor: median (min – max)", "of its CPU", "round trips")
    return table(head, lines)


def _lines(result: Result) -> Iterator[tuple[str, ...]]:
    contenders = result["contenders"]
    for name in sorted(contenders, key=lambda name: (name != OURS, name != FLOOR, name)):
        trips = contenders[name]["round_trips"]
        yield (
            f"`{result['name']}`" if name == OURS else f"– {result['beside'] if name == FLOOR else name}",
            amount(typical(result, name, "spent"), result["unit"]),
            amount(typical(result, name, "cpu"), "s"),
            "" if name == FLOOR else _ratio(spread(result, "ratio", name)),
            "" if name == FLOOR else _median(spread(result, "CPU ratio", name)),
            "" if trips is None else f"{trips:.2g}",
        )


def _ratio(found: Spread | None) -> str:
    return "" if found is None else f"{found.median:.2f} ({found.low:.2f} – {found.high:.2f})"


def _median(found: Spread | None) -> str:
    return "" if found is None else f"{found.median:.2f}"


def rivals() -> str:
    """Show the cost of each rival in a row of ours, and its lesser work."""
    measured: dict[str, list[str]] = {name: [] for name in LESS}
    for result in _run()["rows"]:
        for name in measured:
            if name in result["contenders"]:
                measured[name].append(_beside(result, name))
    return table(
        ("rival", "what it does less than ours in the same row", "row: its throughput, and ours, of the floor's"),
        ((name, LESS[name], "; ".join(found) or _NOT_MEASURED) for name, found in measured.items()),
    )


def _beside(result: Result, name: str) -> str:
    theirs, ours = (_median(spread(result, "ratio", one)) for one in (name, OURS))
    return f"`{result['name']}`: {theirs}, {ours}"
