"""`retrysafe inbox`: dead letters of consumers: list, show and redrive them.

Exit code: 0 if the command was carried out, and for `status` if there are no dead letters; 1 if there are, or nothing
was changed; 2 if the command could not be carried out.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
from typing import Any

from retrysafe.admin.operator import user
from retrysafe.admin.rendering import duration
from retrysafe.cli import dead_letters
from retrysafe.cli.opening import add_store_verb, add_verb, add_verbs, loaded, store_of
from retrysafe.cli.rendering import as_json, say, table
from retrysafe.errors import ConfigurationError
from retrysafe.messaging.inbox.inbox import Inbox
from retrysafe.messaging.inbox.operator import InboxOperator

DEAD_LETTERS = dead_letters.Side(
    InboxOperator,
    lambda operator, chosen: (one.letter for one in operator.dead(chosen)),
    listing="list dead letters",
    redriving="mark dead letters, so that their consumers handle each once more",
    redriven="marked",
    has_consumers=True,
)


def add_to(verbs: Any) -> None:
    """Add the verb and the verbs below it to the command line."""
    below = add_verbs(verbs, "inbox", "dead letters of consumers", __doc__)
    add_store_verb(below, "status", "count dead letters by consumer", run_status)
    forget = add_store_verb(
        below, "forget", "remove attempt counts and sequences that were not updated for long", run_forget
    )
    forget.add_argument(
        "--older-than",
        metavar="TIME",
        required=True,
        help="age of what is removed; at least the longest window of a boundary",
    )
    skip = add_verb(below, "skip", "let a strict consumer continue after a sequence that it cannot apply", run_skip)
    skip.add_argument("inbox", metavar="MODULE:NAME", help="your Inbox")
    skip.add_argument("--consumer", metavar="NAME", required=True, help="the consumer")
    skip.add_argument("--entity", metavar="TEXT", required=True, help="the entity of the sequence: usually the key")
    skip.add_argument("--to", metavar="N", type=int, required=True, help="the last sequence to skip")
    skip.add_argument("--reason", metavar="TEXT", default="", help="why, for the log")
    skip.add_argument("--actor", metavar="NAME", help="the name of the operator in the log (default: user@host)")
    skip.add_argument("--json", action="store_true", help="print JSON, one object per line")
    dead_letters.add_to(below, DEAD_LETTERS)


def run_status(options: argparse.Namespace) -> int:
    """Print the dead letters of each consumer."""
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
    """Remove old attempt counts and sequences."""
    with InboxOperator(store_of(options), observers=()) as operator:
        removed = operator.forget(options.older_than)
    print(as_json({"removed": removed}) if options.json else f"removed: {removed}")
    return 0


def run_skip(options: argparse.Namespace) -> int:
    """Skip a sequence."""
    inbox = loaded("MODULE:NAME", options.inbox)
    if not isinstance(inbox, Inbox):
        raise ConfigurationError(f"{options.inbox} is a {type(inbox).__qualname__}: name an Inbox.")
    actor = options.actor or f"{user()}@{socket.gethostname()}"
    told = {"actor": actor, "reason": options.reason}
    if inbox.boundary.entrypoint.backend.serves_sync:
        moved = inbox.skip(options.consumer, options.entity, options.to, **told)
    else:
        moved = asyncio.run(inbox.askip(options.consumer, options.entity, options.to, **told))
    if options.json:
        print(as_json({"skipped": moved}))
    else:
        print(
            f"skipped: {options.to}"
            if moved
            else f"nothing changed: {options.to} or a later sequence is already applied"
        )
    return 0 if moved else 1
