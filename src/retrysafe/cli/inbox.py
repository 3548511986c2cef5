"""`retrysafe inbox`: what consumers have given up; dead letters seen, and handled again.

Exit code: 0 if it was done, and for `status` if there are no dead letters; 1 if there are, or nothing was changed; 2 if
the command could not be carried out as asked.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
from typing import Any

from retrysafe.admin.operator import user
from retrysafe.cli.dead_letters import (
    add_dead,
    add_listing,
    add_redriving,
    add_selection,
    add_showing,
    chosen_by,
    list_chosen,
    redrive,
    refuse_all,
    show_one,
)
from retrysafe.cli.opening import add_store_verb, add_verb, add_verbs, loaded, store_of
from retrysafe.cli.rendering import as_json, duration, say, table
from retrysafe.errors import ConfigurationError
from retrysafe.messaging.inbox.inbox import Inbox
from retrysafe.messaging.inbox.operator import InboxOperator
from retrysafe.protocol.messages import DeadLetterFilter


def add_to(verbs: Any) -> None:
    """Add the verb and the verbs below it to the command line."""
    below = add_verbs(verbs, "inbox", "messages that consumers have given up", __doc__)
    add_store_verb(below, "status", "which consumers have dead letters", run_status)
    forget = add_store_verb(
        below, "forget", "remove notes of attempts, and sequences, that nobody has touched for long", run_forget
    )
    forget.add_argument("--older-than", metavar="TIME", required=True, help="never less than the longest window")
    skip = add_verb(below, "skip", "let a strict consumer go on after a sequence that it cannot apply", run_skip)
    skip.add_argument("inbox", metavar="MODULE:NAME", help="your Inbox")
    skip.add_argument("--consumer", metavar="NAME", required=True, help="whose sequence it is")
    skip.add_argument("--entity", metavar="TEXT", required=True, help="of which it is the sequence: usually the key")
    skip.add_argument("--to", metavar="N", type=int, required=True, help="the last sequence that is skipped")
    skip.add_argument("--reason", metavar="TEXT", default="", help="why, for the log")
    skip.add_argument("--actor", metavar="NAME", help="who, for the log (default: user@host)")
    skip.add_argument("--json", action="store_true", help="print JSON, one object per line")
    _add_dead(add_dead(below))


def _add_dead(verbs: Any) -> None:
    listing = add_store_verb(verbs, "list", "list dead letters", run_list)
    _select(listing)
    add_listing(listing)
    showing = add_store_verb(verbs, "show", "show one dead letter", run_show)
    _of_consumer(showing)
    add_showing(showing)
    redriving = add_store_verb(
        verbs, "redrive", "let their consumers handle dead letters again, once each", run_redrive
    )
    _select(redriving)
    add_redriving(redriving)


def _select(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    _of_consumer(parser)


def _of_consumer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--consumer", metavar="NAME", help="only of this consumer")


def _chosen(options: argparse.Namespace) -> DeadLetterFilter:
    return chosen_by(options)._replace(consumer=options.consumer)


def run_status(options: argparse.Namespace) -> int:
    """Look at the inboxes."""
    with InboxOperator(store_of(options), observers=()) as operator:
        found = operator.status()
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


def run_skip(options: argparse.Namespace) -> int:
    """Skip a sequence."""
    inbox = loaded("MODULE:NAME", options.inbox)
    if not isinstance(inbox, Inbox):
        raise ConfigurationError(f"{options.inbox} is a {type(inbox).__qualname__}, and should be your Inbox.")
    actor = options.actor or f"{user()}@{socket.gethostname()}"
    told = {"actor": actor, "reason": options.reason}
    if inbox.boundary.entrypoint.backend.serves_sync:
        moved = inbox.skip(options.consumer, options.entity, options.to, **told)
    else:
        moved = asyncio.run(inbox.askip(options.consumer, options.entity, options.to, **told))
    if options.json:
        print(as_json({"skipped": moved}))
    else:
        print(f"skipped: {options.to}" if moved else f"nothing changed: {options.to} or a newer one was applied before")
    return 0 if moved else 1


def run_list(options: argparse.Namespace) -> int:
    """List dead letters."""
    chosen = _chosen(options)
    with InboxOperator(store_of(options), observers=()) as operator:
        list_chosen(operator, chosen, (one.letter for one in operator.dead(chosen)), options)
    return 0


def run_show(options: argparse.Namespace) -> int:
    """Show a dead letter."""
    with InboxOperator(store_of(options), observers=()) as operator:
        letters = (one.letter for one in operator.dead(DeadLetterFilter(ids=(options.id,), consumer=options.consumer)))
        return show_one(letters, options.id, payload=options.payload, json=options.json)


def run_redrive(options: argparse.Namespace) -> int:
    """Mark dead letters."""
    chosen = _chosen(options)
    refuse_all(chosen, options, "--id, --topic, --key, --type, --error or --consumer")
    with InboxOperator(store_of(options), actor=options.actor) as operator:
        return redrive(operator, chosen, options, "marked")
