"""`retrysafe cdc`: the replication slot by which relays read the outbox from PostgreSQL's log.

Exit code: 0 if the command was carried out; 1 if nothing was changed, or for `status` if a person should look after the
slot; 2 if the command could not be carried out.
"""

from __future__ import annotations

import argparse

from retrysafe.cli.opening import add_store_verb, store_of
from retrysafe.cli.options import add_option, add_verbs
from retrysafe.cli.rendering import as_json
from retrysafe.messaging.cdc.slot import SLOT, Slot

MADE = {
    "missing": "the slot {} was made",
    "lost": "the slot {} was lost, and made anew: relays find in the table what its log had",
    "": "the slot {} is there",
}


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    below = add_verbs(verbs, "cdc", "the replication slot of relays that read PostgreSQL's log", __doc__)
    for name, text, run in (
        ("create", "make the publication and the slot, unless they are there", run_create),
        ("status", "say how far the slot is behind, and how much of the log is kept for it", run_status),
        ("drop", "remove the slot and the publication, after the last relay with --cdc", run_drop),
    ):
        one = add_store_verb(below, name, text, run)
        add_option(one, "--slot NAME", "the slot", SLOT)
        add_option(one, "--publication NAME", "the publication", SLOT)


def _slot(options: argparse.Namespace) -> Slot:
    return Slot(store_of(options), name=options.slot, publication=options.publication)


def run_create(options: argparse.Namespace) -> int:
    made = _slot(options).create()
    print(as_json({"slot": options.slot, "made": made}) if options.json else MADE[made].format(options.slot))
    return 0 if made else 1


def run_drop(options: argparse.Namespace) -> int:
    dropped = _slot(options).drop()
    said = "the slot {} was removed" if dropped else "there is no slot {}"
    print(as_json({"slot": options.slot, "dropped": dropped}) if options.json else said.format(options.slot))
    return 0 if dropped else 1


def run_status(options: argparse.Namespace) -> int:
    found = _slot(options).status()
    if options.json:
        print(as_json({**found._asdict(), "problems": found.problems}))
        return 1 if found.problems else 0
    if found.exists:
        limit = "no limit" if found.limit_bytes is None else f"at most {found.limit_bytes} bytes"
        print(f"{options.slot}: {found.state}, {'read by a relay' if found.active else 'read by no relay'}")
        behind = f"behind by {found.lag_bytes} bytes and {found.lag_seconds:.1f} s"
        print(f"{behind}; {found.kept_bytes} bytes kept, {limit}")
    for problem in found.problems:
        print(f"! {problem}")
    return 1 if found.problems else 0
