"""The verbs for dead letters, of the outbox and of inboxes: which ones are meant, how they are shown, and redriven."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from retrysafe.cli.opening import add_store_verb, store_of
from retrysafe.cli.rendering import as_json, duration, instant, lines, say, table
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.messages import DeadLetter, DeadLetterFilter

HEAD = ("id", "topic", "key", "type", "attempts", "age", "error")
LONGEST = 60
"""Characters of an error that a list shows."""
MOST_SHOWN = 2000
"""Bytes of a payload that are shown."""


class Side(NamedTuple):
    """Whose dead letters the verbs are about: the outbox's, or the inboxes'.

    operator: makes the operator of a store.
    letters: what an operator finds, as dead letters.
    listing, redriving: what these verbs do, for their help.
    redriven: the word for messages that are tried again.
    has_consumers: the letters are of consumers, of which one can be chosen.
    """

    operator: Callable[..., AbstractContextManager[Any]]
    letters: Callable[[Any, DeadLetterFilter], Iterable[DeadLetter]]
    listing: str
    redriving: str
    redriven: str
    has_consumers: bool = False


# ---------------------------------------------------------------- the verbs


def add_to(below: Any, side: Side) -> None:
    """Add the verb ``dead`` and the verbs below it."""
    dead = below.add_parser("dead", help="messages that were given up", description="Messages that were given up.")
    verbs = dead.add_subparsers(title="verbs", metavar="VERB", required=True)
    listing = add_store_verb(verbs, "list", side.listing, partial(run_list, side))
    _add_selection(listing, side)
    listing.add_argument("--groups", action="store_true", help="how many, by topic, type and kind of error")
    listing.add_argument("--limit", metavar="N", type=int, default=100, help="at most so many (default: 100; 0: all)")
    showing = add_store_verb(verbs, "show", "show one dead letter", partial(run_show, side))
    _add_consumer(showing, side)
    showing.add_argument("id", metavar="ID", help="the message's id")
    showing.add_argument("--payload", action="store_true", help="show its payload, which may be confidential")
    redriving = add_store_verb(verbs, "redrive", side.redriving, partial(run_redrive, side))
    _add_selection(redriving, side)
    redriving.add_argument("--all", action="store_true", help="all of them")
    redriving.add_argument("--limit", metavar="N", type=int, help="at most so many")
    redriving.add_argument("--dry-run", action="store_true", help="only say how many, of which kinds")
    redriving.add_argument("--yes", action="store_true", help="do not ask (needed where there is no terminal)")
    redriving.add_argument("--reason", metavar="TEXT", default="", help="why, for the log")
    redriving.add_argument("--actor", metavar="NAME", help="who, for the log (default: user@host)")


def _add_selection(parser: argparse.ArgumentParser, side: Side) -> None:
    """Add the options that choose dead letters."""
    parser.add_argument("--id", metavar="ID", action="append", default=[], help="the message's id; may be repeated")
    parser.add_argument("--topic", metavar="NAME", help="only of this topic")
    parser.add_argument("--key", metavar="TEXT", help="only of this key")
    parser.add_argument("--type", metavar="NAME", help="only of this type")
    parser.add_argument("--error", metavar="TEXT", help="only those whose last error has this in it")
    _add_consumer(parser, side)


def _add_consumer(parser: argparse.ArgumentParser, side: Side) -> None:
    if side.has_consumers:
        parser.add_argument("--consumer", metavar="NAME", help="only of this consumer")


def _chosen(options: argparse.Namespace, side: Side) -> DeadLetterFilter:
    """What the options choose."""
    consumer = options.consumer if side.has_consumers else None
    return DeadLetterFilter(tuple(options.id), options.topic, options.key, options.type, options.error, consumer)


def run_list(side: Side, options: argparse.Namespace) -> int:
    """List dead letters, as their kinds or one by one."""
    chosen = _chosen(options, side)
    with side.operator(store_of(options), observers=()) as operator:
        if options.groups:
            show_groups(operator.count(chosen), json=options.json)
        else:
            show_list(islice(side.letters(operator, chosen), options.limit or None), json=options.json)
    return 0


def run_show(side: Side, options: argparse.Namespace) -> int:
    """Show a dead letter."""
    chosen = DeadLetterFilter(ids=(options.id,), consumer=options.consumer if side.has_consumers else None)
    with side.operator(store_of(options), observers=()) as operator:
        for letter in side.letters(operator, chosen):
            shown = details(letter, payload=options.payload)
            say([as_json(shown)] if options.json else lines(shown))
            return 0
    print(f"retrysafe: no dead letter has the id {options.id}", file=sys.stderr)
    return 1


def run_redrive(side: Side, options: argparse.Namespace) -> int:
    """Let dead letters be tried again, once that is confirmed."""
    chosen = _chosen(options, side)
    if chosen == DeadLetterFilter() and not options.all:
        ways = ["--id", "--topic", "--key", "--type", "--error", *["--consumer"] * side.has_consumers]
        raise ConfigurationError(f"Choose by {', '.join(ways[:-1])} or {ways[-1]}, or say --all.")
    with side.operator(store_of(options), actor=options.actor) as operator:
        groups = operator.count(chosen)
        if not confirmed(groups, options):
            return 0 if options.dry_run else 1
        done = operator.redrive(chosen, limit=options.limit, reason=options.reason)
    told = as_json({"chosen": sum(groups.values()), "redriven": done})
    print(told if options.json else f"{side.redriven}: {done}")
    return 0 if done else 1


# ---------------------------------------------------------------- how they are shown


def summary(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter in a list."""
    return {
        "id": letter.envelope.id,
        **({"consumer": letter.consumer} if letter.consumer else {}),
        "topic": letter.envelope.topic,
        "key": letter.envelope.key,
        "type": letter.envelope.type,
        "attempts": max(letter.started, letter.finished),
        "crashes": max(0, letter.started - letter.finished),
        "parked": letter.parked,
        "age": (letter.now - letter.dead_at) / 1e6,
        "error": letter.error,
    }


def details(letter: DeadLetter, *, payload: bool) -> dict[str, Any]:
    """A dead letter in full; its payload may be confidential, and is shown only where that was asked for."""
    envelope = letter.envelope
    shown: dict[str, Any] = {
        **summary(letter),
        "source": envelope.source,
        "sequence": envelope.sequence,
        "created": instant(letter.created),
        "dead_at": instant(letter.dead_at),
        "headers": [f"{name}: {value}" for name, value in envelope.headers.items()] or None,
        "media_type": envelope.media_type,
        "bytes": len(envelope.payload),
    }
    if payload:
        shown["payload"] = envelope.payload[:MOST_SHOWN].decode(errors="backslashreplace")
    return shown


def show_list(letters: Iterable[DeadLetter], *, json: bool) -> None:
    """Print a list."""
    found = [summary(letter) for letter in letters]
    if json:
        say(map(as_json, found))
    elif found:
        say(table([_row(one) for one in found], HEAD))
    else:
        print("no dead letters")


def _row(one: Mapping[str, Any]) -> list[str]:
    error = " ".join(one["error"].split())
    standing = f"{one['attempts']}{' parked' if one['parked'] else ''}"
    short = error if len(error) <= LONGEST else f"{error[: LONGEST - 1]}…"
    return [one["id"], one["topic"], one["key"] or "-", one["type"], standing, duration(one["age"]), short]


def show_groups(groups: Mapping[tuple[str, str, str], int], *, json: bool) -> None:
    """Print how many there are of each kind."""
    names = ("topic", "type", "error")
    if json:
        say(as_json({**dict(zip(names, group, strict=True)), "messages": count}) for group, count in groups.items())
    else:
        say(table([[str(count), *group] for group, count in groups.items()], ("messages", *names)))


def confirmed(groups: Mapping[tuple[str, str, str], int], options: argparse.Namespace) -> bool:
    """Say how many are meant, of which kinds, and ask; the answer is no where only that was asked for."""
    total = sum(groups.values())
    if not options.json and total:
        show_groups(groups, json=False)
    if options.dry_run or not total:
        print(as_json({"chosen": total, "redriven": 0}) if options.json else f"{total} chosen, nothing changed")
        return False
    if options.yes:
        return True
    if not sys.stdin.isatty():
        raise ConfigurationError(f"{total} messages would leave again. Nothing was changed. Confirm it with --yes.")
    print(f"Let {total} messages leave again? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
