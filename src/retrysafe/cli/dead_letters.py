"""The verbs for dead letters of the outbox and of inboxes: list, show, redrive and discard."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from retrysafe.admin.rendering import duration, instant
from retrysafe.cli.opening import add_reason, add_store_verb, ask, store_of
from retrysafe.cli.options import add_option, add_verbs
from retrysafe.cli.progress import show_progress
from retrysafe.cli.rendering import as_json, lines, say, table
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.messages import DeadLetter, DeadLetterFilter

HEAD = ("topic", "key", "type", "attempts", "age", "error")
OWNER = ("boundary", "consumer")
"""The fields that tell dead letters of one id apart, where consumers have them."""
Counted = Mapping[tuple[str, ...], int]
"""Dead letters by topic, type and error, with their boundary and consumer before these where they have them."""
STAYS = (
    "retrysafe: the first message of a parked lane is not discarded, because others wait for it: let it leave by "
    "retrysafe outbox dead redrive --id ID; a relay with --on-dead skip makes it a dead letter if it is refused again."
)
LONGEST = 60
"""Characters of an error in a list."""
MOST_SHOWN = 2000
"""Bytes of a payload that `show --payload` prints."""


class Side(NamedTuple):
    """The outbox or the inboxes: where the verbs find dead letters, and how their help and output word it.

    operator: makes the operator of a store.
    dead_letters: finds them through an operator.
    listing, redriving, discarding: the help of these verbs.
    redriven: the output's word for redriven messages.
    has_consumers: dead letters belong to consumers, and `--consumer` and `--boundary` select one.
    """

    operator: Callable[..., AbstractContextManager[Any]]
    dead_letters: Callable[[Any, DeadLetterFilter], Iterable[DeadLetter]]
    listing: str
    redriving: str
    discarding: str
    redriven: str
    has_consumers: bool = False


# ---------------------------------------------------------------- the verbs


def add_to(below: Any, side: Side) -> None:
    verbs = add_verbs(
        below, "dead", "list, show, redrive and discard dead letters", "List, show, redrive and discard dead letters."
    )
    listing = add_store_verb(verbs, "list", side.listing, partial(run_list, side))
    _add_selection(listing, side)
    add_option(listing, "--groups", "counts by topic, type and kind of error")
    add_option(listing, "--limit N", "how many at most (default: 100; 0: all)", 100)
    showing = add_store_verb(verbs, "show", "show one dead letter", partial(run_show, side))
    _add_consumer(showing, side)
    add_option(showing, "id ID", "the message's id")
    add_option(showing, "--payload", "show its payload, which may be confidential")
    for verb, text in (("redrive", side.redriving), ("discard", side.discarding)):
        one = add_store_verb(verbs, verb, text, partial(run_change, side, verb))
        _add_selection(one, side)
        add_option(one, "--all", "all of them")
        add_option(one, "--limit N", "how many at most")
        add_option(one, "--dry-run", "only print how many are chosen, by topic, type and error")
        add_option(one, "--yes", "do not ask (needed where there is no terminal)")
        add_reason(one, "why, for the log")
        add_option(one, "--actor NAME", "the name of the operator in the log (default: user@host)")


def _add_selection(parser: argparse.ArgumentParser, side: Side) -> None:
    add_option(parser, "--id ID...", "the message's id; may be repeated")
    add_option(parser, "--topic NAME", "only of this topic")
    add_option(parser, "--key TEXT", "only of this key")
    add_option(parser, "--type NAME", "only of this type")
    add_option(parser, "--except-type NAME", "only of other types than this one")
    add_option(parser, "--error TEXT", "only those whose last error contains this text")
    _add_consumer(parser, side)


def _add_consumer(parser: argparse.ArgumentParser, side: Side) -> None:
    if side.has_consumers:
        add_option(parser, "--consumer NAME", "only of this consumer")
        add_option(parser, "--boundary NAME", "only of consumers of this boundary")


def _filter(options: argparse.Namespace, side: Side) -> DeadLetterFilter:
    given = (options.topic, options.key, options.type, options.error, None, options.except_type)
    return DeadLetterFilter(tuple(options.id), *given)._replace(**_owner(options, side))


def _owner(options: argparse.Namespace, side: Side) -> dict[str, Any]:
    return {name: getattr(options, name) for name in OWNER if side.has_consumers}


def _count(side: Side, operator: Any, chosen: DeadLetterFilter) -> Counted:
    if not side.has_consumers:
        return dict(operator.count(chosen))
    found: dict[tuple[str, ...], int] = {}
    for one in operator.status():
        of = (one.boundary, one.consumer)
        if all(wanted in (None, name) for wanted, name in zip((chosen.boundary, chosen.consumer), of, strict=True)):
            groups = operator.count(chosen._replace(boundary=one.boundary, consumer=one.consumer))
            found |= {(*of, *group): number for group, number in groups.items()}
    return dict(sorted(found.items(), key=lambda group: -group[1]))


def run_list(side: Side, options: argparse.Namespace) -> int:
    chosen = _filter(options, side)
    with side.operator(store_of(options), observers=()) as operator:
        if options.groups:
            show_groups(_count(side, operator, chosen), json=options.json)
        else:
            show_list(islice(side.dead_letters(operator, chosen), options.limit or None), json=options.json)
    return 0


def run_show(side: Side, options: argparse.Namespace) -> int:
    chosen = DeadLetterFilter(ids=(options.id,), **_owner(options, side))
    number = 0
    with side.operator(store_of(options), observers=()) as operator:
        for number, letter in enumerate(side.dead_letters(operator, chosen), 1):
            shown = details(letter, payload=options.payload)
            say([as_json(shown)] if options.json else [*[""] * (number > 1), *lines(shown)])
    if not number:
        print(f"retrysafe: no dead letter has the id {options.id}", file=sys.stderr)
    return 0 if number else 1


_DONE = {"redrive": "redriven", "discard": "discarded"}
"""The past of each verb that changes dead letters."""


def run_change(side: Side, verb: str, options: argparse.Namespace) -> int:
    chosen = _filter(options, side)
    if chosen == DeadLetterFilter() and not options.all:
        ways = ["--id", "--topic", "--key", "--type", "--except-type", "--error"]
        ways += [f"--{name}" for name in OWNER if side.has_consumers]
        raise ConfigurationError(f"Choose by {', '.join(ways[:-1])} or {ways[-1]}, or give --all.")
    with side.operator(store_of(options), actor=options.actor) as operator:
        groups = _count(side, operator, chosen)
        owners = sorted({group[:-3] for group in groups})
        if chosen.ids and len(owners) > 1:
            meant = ", or ".join(f"--boundary {boundary} --consumer {consumer}" for boundary, consumer in owners)
            raise ConfigurationError(
                f"Several consumers have given up on this --id. Name the one that is meant: {meant}."
            )
        if not confirm(verb, groups, options):
            return 0 if options.dry_run else 1
        with show_progress(lambda: f"{verb} of {sum(groups.values()):,} messages"):
            done = getattr(operator, verb)(chosen, limit=options.limit, reason=options.reason)
        missed = done < min(sum(groups.values()), options.limit or sys.maxsize)
        if verb == "discard" and missed and any(letter.parked for letter in side.dead_letters(operator, chosen)):
            print(STAYS, file=sys.stderr)
    told = as_json({"chosen": sum(groups.values()), _DONE[verb]: done})
    print(told if options.json else f"{side.redriven if verb == 'redrive' else _DONE[verb]}: {done}")
    return 0 if done else 1


# ---------------------------------------------------------------- how they are shown


def summary(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter in a list."""
    return {
        "id": letter.envelope.id,
        **{name: value for name in OWNER if (value := getattr(letter, name))},
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
    """A dead letter in full; the payload may be confidential, and is included only if ``payload`` is true."""
    envelope = letter.envelope
    shown: dict[str, Any] = {
        **summary(letter),
        "key_hash": letter.record_key.hex() or None,
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
    found = [summary(letter) for letter in letters]
    if json:
        say(map(as_json, found))
    elif found:
        say(table([_row(one) for one in found], ("id", *(name for name in OWNER if name in found[0]), *HEAD)))
    else:
        print("no dead letters")


def _row(one: Mapping[str, Any]) -> list[str]:
    error = " ".join(one["error"].split())
    attempts = f"{one['attempts']}{' parked' if one['parked'] else ''}"
    short = error if len(error) <= LONGEST else f"{error[: LONGEST - 1]}…"
    owner = [one[name] for name in OWNER if name in one]
    return [one["id"], *owner, one["topic"], one["key"] or "-", one["type"], attempts, duration(one["age"]), short]


def show_groups(groups: Counted, *, json: bool) -> None:
    names = (*OWNER, "topic", "type", "error")[-max(map(len, groups), default=3) :]
    if json:
        say(as_json({**dict(zip(names, group, strict=True)), "messages": count}) for group, count in groups.items())
    else:
        say(table([[str(count), *group] for group, count in groups.items()], ("messages", *names)))


def confirm(verb: str, groups: Counted, options: argparse.Namespace) -> bool:
    """Print the counts and ask for confirmation; False for a dry run, or if nothing is chosen."""
    total = sum(groups.values())
    if not options.json and total:
        show_groups(groups, json=False)
    if options.dry_run or not total:
        print(as_json({"chosen": total, _DONE[verb]: 0}) if options.json else f"{total} chosen, nothing changed")
        return False
    return ask(f"{total} messages would be {_DONE[verb]}.", f"{verb.capitalize()} them?", options)
