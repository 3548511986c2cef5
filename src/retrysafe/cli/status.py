"""`retrysafe status`: a store's guarantees, server settings, schema, and counts of its records.

Exit code: 0 if boundaries accept the store; 1 if they would refuse it, or if a message is due for longer than a minute
or a lane is parked, as with `retrysafe outbox status`; 2 if the store could not be read.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from retrysafe.admin.operator import Status
from retrysafe.admin.rendering import duration
from retrysafe.admin.runs import of_stranded
from retrysafe.backends.commands import Commands
from retrysafe.cli.opening import add_store, commands_of, open_operator, store_of
from retrysafe.cli.options import add_verb
from retrysafe.cli.rendering import as_json, lines, say, table
from retrysafe.messaging.needs import Messages, Need, is_stalled, messages_of, of_inboxes, of_outbox
from retrysafe.messaging.operators import Operating
from retrysafe.protocol.records import EffectiveState, Tally

MOST_SKEW = 1.0
"""Seconds between the store's clock and this machine's above which a warning is printed."""


def add_to(verbs: Any) -> None:
    parser = add_verb(verbs, "status", "check a store, and count its records", run, __doc__)
    add_store(parser)


def run(options: argparse.Namespace) -> int:
    with open_operator(options) as operator:
        status = operator.status()
    commands = commands_of(options)
    refused = _refusals(status, commands)
    found = _NONE
    if not refused and status.schema is not None:
        with Operating(store_of(options), observers=()) as operating:
            found = operating.look(messages_of)
    needs = list(_needs(found, commands))
    stalled = found.outbox is not None and is_stalled(found.outbox)
    if options.json:
        print(as_json(_as_json(status, refused) | {"stalled": stalled, "needs": [need.text for need in needs]}))
    else:
        say(_as_text(status, refused, commands))
        say(f"!! {need.text} {need.command}" for need in needs)
    parked = found.outbox is not None and found.outbox.parked
    return 1 if refused or stalled or parked else 0


_NONE = Messages(None, [])


def _needs(found: Messages, commands: Commands) -> Iterator[Need]:
    if found.outbox is not None:
        yield from of_outbox(found.outbox, commands)
    yield from of_inboxes(found.inboxes, commands)


def _refusals(status: Status, commands: Commands) -> list[str]:
    refused = [finding.text for finding in status.findings if finding.level == "refuse"]
    schema = status.schema
    if schema is not None and schema.version < schema.needed:
        refused.append(f"The schema is missing or old: run  {commands.line('migrate')}")
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
        "stranded": len(status.stranded.runs),
        "clock": None if status.clock is None else status.clock._asdict(),
    }


def _tally(tally: Tally) -> dict[str, Any]:
    age = (tally.now - tally.oldest) / 1e6
    return {"boundary": tally.boundary, "state": tally.state.value, "records": tally.records, "oldest": age}


def _count(status: Status, state: EffectiveState) -> int:
    return sum(tally.records for tally in status.tallies if tally.state is state)


def _as_text(status: Status, refused: list[str], commands: Commands) -> Iterator[str]:
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
            (tally.boundary, tally.state.value, str(tally.records), duration((tally.now - tally.oldest) / 1e6))
            for tally in status.tallies
        ]
        yield from table(rows, ("boundary", "state", "records", "oldest"))
    else:
        yield "no records"
    if unknown := _count(status, EffectiveState.UNKNOWN):
        listed = commands.line("keys list", [("state", "unknown")])
        yield f"!! {unknown} unknown, to be settled by a person: {listed}"
    if status.stranded.runs:
        yield f"!! {of_stranded(status.stranded)} {commands.line('runs list', [('stranded', '')])}"
    if forgotten := _count(status, EffectiveState.FORGOTTEN):
        yield f"{forgotten} forgotten, to be removed by: {commands.line('sweep')}"
    for text in refused:
        yield f"!! refused: {text}"


def _difference(status: Status) -> str:
    if status.clock is None:
        return "not known: the store has no record to read its clock from"
    ahead, within = status.clock
    way = "ahead of" if ahead >= 0 else "behind"
    warning = " !! times in your logs and in the store cannot be compared" if abs(ahead) - within > MOST_SKEW else ""
    return f"the store is {abs(ahead):.3f} s (± {within:.3f}) {way} this machine{warning}"
