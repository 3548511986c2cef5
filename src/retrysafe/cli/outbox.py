"""`retrysafe outbox`: its backlog and relays; pause topics, redrive dead letters, sweep kept messages.

Exit code: 0 if the command was carried out; 1 if nothing was changed, or for `status` if a message is due for longer
than --stalled-after or a lane is parked; 2 if the command could not be carried out.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from retrysafe.admin.archive import JsonLines
from retrysafe.admin.rendering import duration
from retrysafe.cli import dead_letters, sweep
from retrysafe.cli.opening import add_store_verb, store_of
from retrysafe.cli.options import add_option, add_verbs
from retrysafe.cli.rendering import as_json, lines, say, table
from retrysafe.messaging.needs import describe_parked
from retrysafe.messaging.relay.operator import OutboxOperator, OutboxSweeper, line
from retrysafe.messaging.relay.procedures import GONE, OutboxStatus
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.messages import RelaySeen

DEAD_LETTERS = dead_letters.Side(
    OutboxOperator,
    lambda operator, chosen: operator.dead(chosen),
    listing="list dead letters, and the first message of each parked lane",
    redriving="publish dead letters again, at the end of their lanes",
    discarding="delete dead letters that are not to be sent, for good; the first of a parked lane stays",
    redriven="redriven",
)


def add_to(verbs: Any) -> None:
    below = add_verbs(verbs, "outbox", "backlog, paused topics and dead letters of the outbox", __doc__)
    status = add_store_verb(below, "status", "count waiting messages by topic, and list the relays", run_status)
    add_option(status, "--stalled-after TIME", "exit with 1 if a message is due for longer", "1m")
    for name, text, run in (
        ("pause", "stop publishing the messages of a topic", run_pause),
        ("resume", "publish the messages of a topic again", run_resume),
    ):
        one = add_store_verb(below, name, text, run)
        add_option(one, "topic TOPIC", "the topic")
        add_option(one, "--actor NAME", "the name of the operator in the log (default: user@host)")
    _add_sweep(below)
    dead_letters.add_to(below, DEAD_LETTERS)


def _add_sweep(verbs: Any) -> None:
    parser = add_store_verb(
        verbs, "sweep", "remove published messages that were kept (retrysafe relay --keep-published)", run_sweep
    )
    add_option(parser, "--older-than TIME", "only messages published at least this long ago, as in 7d", required=True)
    add_option(parser, "--archive FILE", "first append the messages to FILE as JSON lines", type=Path)
    sweep.add_pace(parser)


def run_status(options: argparse.Namespace) -> int:
    stalled_after = seconds_of(options.stalled_after, "--stalled-after")
    with OutboxOperator(store_of(options), observers=()) as operator:
        found = operator.status()
    stalled = found.oldest_due > stalled_after
    if options.json:
        print(as_json(_as_json(found, stalled=stalled)))
    else:
        _say_status(found, stalled=stalled)
    return 1 if stalled or found.parked else 0


def _as_json(found: OutboxStatus, *, stalled: bool) -> dict[str, Any]:
    return {
        "messages": found.messages,
        "capped": found.capped,
        "oldest": found.oldest,
        "due": found.due,
        "oldest_due": found.oldest_due,
        "stalled": stalled,
        "dead": found.dead,
        "parked": found.parked,
        "kept": found.kept,
        "paused": found.paused,
        "topics": [one._asdict() for one in found.backlog],
        "held": [one._asdict() for one in found.holders],
        "relays": [{**relay._asdict(), "gone": relay.silent >= GONE} for relay in found.relays],
    }


def _say_status(found: OutboxStatus, *, stalled: bool) -> None:
    say(
        lines(
            {
                "waiting": f"{'at least ' * found.capped}{found.messages}, {found.due} of them due",
                "oldest": duration(found.oldest) if found.messages else None,
                "oldest due": duration(found.oldest_due) if found.due else None,
                "dead letters": str(found.dead),
                "kept": f"{found.kept} published" if found.kept else None,
                "paused": ", ".join(found.paused),
                "relays": str(found.alive),
            }
        )
    )
    if found.backlog:
        rows = [
            [one.topic, str(one.messages), str(one.due), duration(one.oldest), "paused" if one.paused else ""]
            for one in found.backlog
        ]
        say(["", *table(rows, ("topic", "waiting", "due", "oldest", ""))])
    for topic, error in ((one.topic, one.error) for one in found.backlog if one.error):
        print(f"!! {topic} waits: {error}")
    for relay in found.relays:
        print(f"relay {relay.name}  hold={relay.hold}  {_sign(relay)}")
    for one in found.holders:
        since = "" if one.seconds is None else f", for {duration(one.seconds)}"
        print(f"!! {one.name} keeps the database from cleaning up what has left{since}: end it")
    if found.parked:
        print(f"!! {describe_parked(found.parked)}: retrysafe outbox dead list")
    if stalled:
        cause = "the relays are too slow, or the broker refuses" if found.alive else "no relay is running"
        print(f"!! messages are due for {duration(found.oldest_due)}: {cause}")


def _sign(relay: RelaySeen) -> str:
    """Say how a relay is; it gives a sign of life every ten seconds, so that some seconds without one are normal."""
    if relay.silent >= GONE:
        return f"no sign of life for {duration(relay.silent)}: considered dead"
    return f"running, last sign of life {duration(relay.silent)} ago"


def run_pause(options: argparse.Namespace) -> int:
    with OutboxOperator(store_of(options), actor=options.actor) as operator:
        operator.pause(options.topic)
    print(as_json({"paused": options.topic}) if options.json else f"paused {options.topic}")
    return 0


def run_resume(options: argparse.Namespace) -> int:
    with OutboxOperator(store_of(options), actor=options.actor) as operator:
        done = operator.resume(options.topic)
    said = "resumed" if done else "was not paused:"
    print(as_json({"resumed": options.topic, "done": done}) if options.json else f"{said} {options.topic}")
    return 0 if done else 1


def run_sweep(options: argparse.Namespace) -> int:
    archive = None if options.archive is None else JsonLines(options.archive, line=line)
    return sweep.carry_out(
        options,
        lambda total: OutboxSweeper(
            store_of(options),
            older_than=options.older_than,
            every=options.every or "1h",
            batch=options.batch,
            pause=options.pause,
            archive=archive,
            observers=[total],
        ),
        what="messages",
    )
