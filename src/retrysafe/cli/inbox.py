"""`retrysafe inbox`: what consumers have given up; dead letters seen, and handled again.

Exit code: 0 if it was done, and for `status` if there are no dead letters; 1 if there are, or nothing was changed; 2 if
the command could not be carried out as asked.
"""

from __future__ import annotations

import argparse
from itertools import islice
from typing import Any

from retrysafe.cli.dead_letters import (
    add_redriving,
    add_selection,
    chosen_by,
    confirmed,
    show_groups,
    show_list,
    show_one,
)
from retrysafe.cli.opening import add_store, store_of
from retrysafe.cli.rendering import as_json, duration, say, table
from retrysafe.errors import ConfigurationError
from retrysafe.messaging.inbox_operating import InboxOperator
from retrysafe.types import Chosen


def add_to(verbs: Any) -> None:
    """Add the verb and the verbs below it to the command line."""
    parser = verbs.add_parser(
        "inbox",
        help="messages that consumers have given up",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    below = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    _add(below, "status", "which consumers have dead letters", run_status)
    forget = _add(
        below, "forget", "remove notes of attempts, and sequences, that nobody has touched for long", run_forget
    )
    forget.add_argument("--older-than", metavar="TIME", required=True, help="never less than the longest window")
    dead = below.add_parser("dead", help="messages that were given up", description="Messages that were given up.")
    _add_dead(dead.add_subparsers(title="verbs", metavar="VERB", required=True))


def _add(verbs: Any, name: str, text: str, run: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    add_store(parser)
    parser.set_defaults(run=run)
    return parser


def _add_dead(verbs: Any) -> None:
    listing = _add(verbs, "list", "list dead letters", run_list)
    _select(listing)
    listing.add_argument("--groups", action="store_true", help="how many, by topic, type and error")
    listing.add_argument("--limit", metavar="N", type=int, default=100, help="at most so many (default: 100; 0: all)")
    showing = _add(verbs, "show", "show one dead letter", run_show)
    showing.add_argument("id", metavar="ID", help="the message's id")
    showing.add_argument("--consumer", metavar="NAME", help="only of this consumer")
    showing.add_argument("--payload", action="store_true", help="show its payload, which may be confidential")
    redriving = _add(verbs, "redrive", "let their consumers handle dead letters again, once each", run_redrive)
    _select(redriving)
    add_redriving(redriving)


def _select(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument("--consumer", metavar="NAME", help="only of this consumer")


def _chosen(options: argparse.Namespace) -> Chosen:
    return chosen_by(options)._replace(consumer=options.consumer)


def run_status(options: argparse.Namespace) -> int:
    """Look at the inboxes."""
    with InboxOperator(store_of(options), observers=()) as operator:
        found = operator.standing()
    if options.json:
        say(as_json(one._asdict()) for one in found)
    elif found:
        rows = [[one.boundary, one.consumer, str(one.dead), str(one.marked), duration(one.oldest)] for one in found]
        say(table(rows, ("boundary", "consumer", "dead", "marked", "oldest")))
    else:
        print("no dead letters")
    return 1 if found else 0


def run_forget(options: argparse.Namespace) -> int:
    """Remove what nobody needs."""
    with InboxOperator(store_of(options), observers=()) as operator:
        removed = operator.forget(options.older_than)
    print(as_json({"removed": removed}) if options.json else f"removed: {removed}")
    return 0


def run_list(options: argparse.Namespace) -> int:
    """List dead letters."""
    with InboxOperator(store_of(options), observers=()) as operator:
        if options.groups:
            show_groups(operator.count(_chosen(options)), json=options.json)
        else:
            found = islice(operator.dead(_chosen(options)), options.limit or None)
            show_list((one.letter for one in found), json=options.json)
    return 0


def run_show(options: argparse.Namespace) -> int:
    """Show a dead letter."""
    with InboxOperator(store_of(options), observers=()) as operator:
        letters = (one.letter for one in operator.dead(Chosen(ids=(options.id,), consumer=options.consumer)))
        return show_one(letters, options.id, payload=options.payload, json=options.json)


def run_redrive(options: argparse.Namespace) -> int:
    """Mark dead letters."""
    chosen = _chosen(options)
    if chosen == Chosen() and not options.all:
        raise ConfigurationError("Choose by --id, --topic, --key, --type, --error or --consumer, or say --all.")
    with InboxOperator(store_of(options), actor=options.actor) as operator:
        groups = operator.count(chosen)
        if not confirmed(groups, options):
            return 0 if options.dry_run else 1
        done = operator.redrive(chosen, limit=options.limit, reason=options.reason)
    print(as_json({"chosen": sum(groups.values()), "redriven": done}) if options.json else f"marked: {done}")
    return 0 if done else 1
