"""What the verbs share that deal with dead letters: which ones are meant, and how they are shown."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Protocol

from retrysafe.cli.rendering import as_json, duration, instant, lines, say, table
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.messages import DeadLetter, DeadLetterFilter

HEAD = ("id", "topic", "key", "type", "attempts", "age", "error")
LONGEST = 60
"""Characters of an error that a list shows."""
MOST_SHOWN = 2000
"""Bytes of a payload that are shown."""


class Redriving(Protocol):
    """An operator of either side, as far as dead letters are concerned."""

    def count(self, chosen: DeadLetterFilter) -> dict[tuple[str, str, str], int]:
        """How many are chosen, by topic, type and error."""
        ...

    def redrive(self, chosen: DeadLetterFilter, *, limit: int | None, reason: str) -> int:
        """Let them be tried again; how many those were."""
        ...


def add_dead(below: Any) -> Any:
    """Add the verb under which those for dead letters are, and return where they go."""
    dead = below.add_parser("dead", help="messages that were given up", description="Messages that were given up.")
    return dead.add_subparsers(title="verbs", metavar="VERB", required=True)


def add_listing(listing: argparse.ArgumentParser) -> None:
    """Add the options of a verb that lists what was selected."""
    listing.add_argument("--groups", action="store_true", help="how many, by topic, type and kind of error")
    listing.add_argument("--limit", metavar="N", type=int, default=100, help="at most so many (default: 100; 0: all)")


def add_showing(showing: argparse.ArgumentParser) -> None:
    """Add the options of a verb that shows one."""
    showing.add_argument("id", metavar="ID", help="the message's id")
    showing.add_argument("--payload", action="store_true", help="show its payload, which may be confidential")


def add_redriving(redriving: argparse.ArgumentParser) -> None:
    """Add the options of a verb that redrives what was selected."""
    redriving.add_argument("--all", action="store_true", help="all of them")
    redriving.add_argument("--limit", metavar="N", type=int, help="at most so many")
    redriving.add_argument("--dry-run", action="store_true", help="only say how many, of which kinds")
    redriving.add_argument("--yes", action="store_true", help="do not ask (needed where there is no terminal)")
    redriving.add_argument("--reason", metavar="TEXT", default="", help="why, for the log")
    redriving.add_argument("--actor", metavar="NAME", help="who, for the log (default: user@host)")


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose dead letters."""
    parser.add_argument("--id", metavar="ID", action="append", default=[], help="the message's id; may be repeated")
    parser.add_argument("--topic", metavar="NAME", help="only of this topic")
    parser.add_argument("--key", metavar="TEXT", help="only of this key")
    parser.add_argument("--type", metavar="NAME", help="only of this type")
    parser.add_argument("--error", metavar="TEXT", help="only those whose last error has this in it")


def chosen_by(options: argparse.Namespace) -> DeadLetterFilter:
    """What the options choose."""
    return DeadLetterFilter(tuple(options.id), options.topic, options.key, options.type, options.error)


def refuse_all(chosen: DeadLetterFilter, options: argparse.Namespace, ways: str) -> None:
    """Refuse to change everything unless that was asked for; ``ways``: the options that choose."""
    if chosen == DeadLetterFilter() and not options.all:
        raise ConfigurationError(f"Choose by {ways}, or say --all.")


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


def list_chosen(
    operator: Redriving, chosen: DeadLetterFilter, letters: Iterable[DeadLetter], options: argparse.Namespace
) -> None:
    """Print what is chosen, as its kinds or one by one."""
    if options.groups:
        show_groups(operator.count(chosen), json=options.json)
    else:
        show_list(islice(letters, options.limit or None), json=options.json)


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


def show_one(letters: Iterable[DeadLetter], name: str, *, payload: bool, json: bool) -> int:
    """Print one in full; 1 if there is none."""
    for letter in letters:
        shown = details(letter, payload=payload)
        say([as_json(shown)] if json else lines(shown))
        return 0
    print(f"retrysafe: no dead letter has the id {name}", file=sys.stderr)
    return 1


def redrive(operator: Redriving, chosen: DeadLetterFilter, options: argparse.Namespace, word: str) -> int:
    """Let what is chosen be tried again once that is confirmed, and say of how many: ``word`` is what they are then."""
    groups = operator.count(chosen)
    if not confirmed(groups, options):
        return 0 if options.dry_run else 1
    done = operator.redrive(chosen, limit=options.limit, reason=options.reason)
    print(as_json({"chosen": sum(groups.values()), "redriven": done}) if options.json else f"{word}: {done}")
    return 0 if done else 1


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
