"""`retrysafe status`: how a store stands: its promises, its server's settings, its schema, and what is in it.

Exit code: 0 if boundaries can work with the store; 1 if they would refuse it; 2 if it could not be looked at.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from retrysafe.admin.operator import Status
from retrysafe.cli.opening import add_store, open_operator
from retrysafe.cli.rendering import as_json, duration, lines, say, table
from retrysafe.protocol.records import EffectiveState, Tally

MOST_SKEW = 1.0
"""Seconds by which the store's clock may differ from this machine's before it is worth a word."""


def add_to(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "status",
        help="how a store stands, and what is in it",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_store(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Look at a store."""
    with open_operator(options) as operator:
        status = operator.status()
    refused = _refusals(status)
    if options.json:
        print(as_json(_as_json(status, refused)))
    else:
        say(_as_text(status, refused))
    return 1 if refused else 0


def _refusals(status: Status) -> list[str]:
    refused = [finding.text for finding in status.findings if finding.level == "refuse"]
    schema = status.schema
    if schema is not None and schema.version < schema.needed:
        refused.append(f"The schema is missing or old: run  retrysafe migrate --store {status.address}")
    return refused


def _as_json(status: Status, refused: list[str]) -> dict[str, Any]:
    return {
        "store": status.address,
        "usable": not refused,
        "refused": refused,
        "capabilities": status.capabilities._asdict(),
        "schema": None if status.schema is None else status.schema._asdict(),
        "findings": [finding._asdict() for finding in status.findings],
        "records": [_tally(tally) for tally in status.tallies],
        "unknown": _count(status, EffectiveState.UNKNOWN),
        "forgotten": _count(status, EffectiveState.FORGOTTEN),
        "clock": None if status.clock is None else status.clock._asdict(),
    }


def _tally(tally: Tally) -> dict[str, Any]:
    age = (tally.now - tally.oldest) / 1e6
    return {"boundary": tally.boundary, "standing": tally.standing.value, "records": tally.records, "oldest": age}


def _count(status: Status, standing: EffectiveState) -> int:
    return sum(tally.records for tally in status.tallies if tally.standing is standing)


def _as_text(status: Status, refused: list[str]) -> Iterator[str]:
    able = status.capabilities
    schema = status.schema
    yield from lines(
        {
            "store": status.address,
            "kind": able.name,
            "schema": None if schema is None else f"version {schema.version} (needed: {schema.needed})",
            "transactions": "yes" if able.transactions else "no",
            "clock": able.clock,
            "clock difference": _difference(status),
            "durability": able.durability,
            "failover loses": able.failover,
            "cannot survive": "; ".join(able.cannot_survive),
        }
    )
    for finding in status.findings:
        yield f"{finding.level:<6}  {finding.name}: {finding.text}"
    yield ""
    if status.tallies:
        rows = [
            (tally.boundary, tally.standing.value, str(tally.records), duration((tally.now - tally.oldest) / 1e6))
            for tally in status.tallies
        ]
        yield from table(rows, ("boundary", "standing", "records", "oldest"))
    else:
        yield "no records"
    if unknown := _count(status, EffectiveState.UNKNOWN):
        yield f"!! {unknown} unknown: somebody has to settle them: retrysafe keys list --standing unknown"
    if forgotten := _count(status, EffectiveState.FORGOTTEN):
        yield f"{forgotten} forgotten: they wait for the sweep"
    for text in refused:
        yield f"!! refused: {text}"


def _difference(status: Status) -> str:
    if status.clock is None:
        return "not known: there is no record to read the store's clock by"
    ahead, within = status.clock
    way = "ahead of" if ahead >= 0 else "behind"
    warning = " !! instants in your logs and in the store do not compare" if abs(ahead) - within > MOST_SKEW else ""
    return f"the store is {abs(ahead):.3f} s (± {within:.3f}) {way} this machine{warning}"
