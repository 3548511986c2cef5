"""`retrysafe inbox`: run a consumer, and its dead letters: list, show, redrive and discard them.

Exit code: 0 if the command was carried out, and for `status` if there are no dead letters; 1 if there are, or nothing
was changed; 2 if the command could not be carried out. `run` ends with 0 when SIGTERM or SIGINT stopped it, and with
128 + its number when a second one ended it before the messages in progress were done; with --once with 1 if a message
became a dead letter or has to come again.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
from collections import Counter
from operator import attrgetter
from typing import Any

from retrysafe.admin.operator import user
from retrysafe.admin.rendering import duration
from retrysafe.cli import dead_letters
from retrysafe.cli.brokers import add_broker, choose, log_to_stderr, make_for
from retrysafe.cli.opening import add_reason, add_store_verb, load_object, store_of
from retrysafe.cli.options import add_option, add_verb, add_verbs
from retrysafe.cli.rendering import as_json, say, table
from retrysafe.cli.stopping import add_stop_within, end_by_signals, stop_within
from retrysafe.cli.topics import add_declare, declare_for_worker
from retrysafe.cli.worker import add_metrics, serve_health
from retrysafe.errors import ConfigurationError, RetrysafeError
from retrysafe.messaging.brokers.base import Consumer
from retrysafe.messaging.errors import BrokerUnavailable
from retrysafe.messaging.inbox.handler import Handler
from retrysafe.messaging.inbox.inbox import Inbox
from retrysafe.messaging.inbox.operator import InboxOperator
from retrysafe.messaging.subscription.subscription import Subscription
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.redelivery_policy import MessageOutcome

DEAD_LETTERS = dead_letters.Side(
    InboxOperator,
    lambda operator, chosen: (one.letter for one in operator.dead(chosen)),
    listing="list dead letters",
    redriving="mark dead letters, so that their consumers handle each once more",
    discarding="delete dead letters that are not to be handled, for good; their keys stay as they are",
    redriven="marked",
    has_consumers=True,
)
_SIDE = attrgetter("consumer_options")


def add_to(verbs: Any) -> None:
    below = add_verbs(verbs, "inbox", "run consumers, and see to their dead letters", __doc__)
    _add_run(below)
    add_store_verb(below, "status", "count dead letters by consumer", run_status)
    forget = add_store_verb(
        below, "forget", "remove attempt counts and sequences that were not updated for long", run_forget
    )
    add_option(
        forget, "--older-than TIME", "age of what is removed; at least the longest window of a boundary", required=True
    )
    skip = add_verb(below, "skip", "let a strict consumer continue after a sequence that it cannot apply", run_skip)
    add_option(skip, "inbox MODULE:NAME", "your Inbox")
    add_option(skip, "--consumer NAME", "the consumer", required=True)
    add_option(skip, "--entity TEXT", "the entity of the sequence: usually the key", required=True)
    add_option(skip, "--to N", "the last sequence to skip", required=True)
    add_reason(skip, "why, for the log")
    add_option(skip, "--actor NAME", "the name of the operator in the log (default: user@host)")
    add_option(skip, "--json", "print JSON, one object per line")
    dead_letters.add_to(below, DEAD_LETTERS)


def _add_run(below: Any) -> None:
    run = add_verb(below, "run", "handle the messages of a broker, until SIGTERM or SIGINT", run_consumer)
    add_option(run, "handler MODULE:NAME", "your handler, of Inbox.handler or its twins for batches")
    add_broker(run, _SIDE)
    add_option(run, "--topic NAME...", "a topic; may be repeated")
    add_option(run, "--group NAME", "the service whose consumers share its messages", "")
    add_option(run, "--lanes N", "messages, or batches, that are handled at the same time")
    add_option(run, "--in-flight N", "received messages in memory at most", 1000)
    add_option(run, "--redrive TIME", "how often marked dead letters are looked for", "5s")
    add_declare(run)
    add_stop_within(run)
    add_metrics(run)
    add_option(run, "--once TIME", "exit when no message has come for so long, and say what was done")
    add_option(run, "--json", "log and print JSON, one object per line")


def run_consumer(options: argparse.Namespace) -> int:
    log_to_stderr(options)
    handler = load_object("MODULE:NAME", options.handler)
    if not isinstance(handler, Handler):
        raise ConfigurationError(f"{options.handler} is a {type(handler).__qualname__}: name a handler of an Inbox.")
    entry = handler.setting.entry
    consumer = _consumer(options)
    with serve_health(options, f"inbox {handler.consumer}", entry.backend.address) as observers:
        entry.settings.observers.add(observers)
        return _run(options, handler, consumer)


def _run(options: argparse.Namespace, handler: Handler[Any, Any], consumer: Consumer) -> int:
    wait = None if options.once is None else seconds_of(options.once, "--once")
    subscription = Subscription(
        consumer, handler, lanes=options.lanes, in_flight=options.in_flight, redrive=options.redrive
    )
    try:
        waits_for = lambda: _in_progress(subscription.in_progress)  # noqa: E731
        with end_by_signals(subscription.stop, waits_for, within=stop_within(options)):
            if wait is None:
                subscription.run_forever()
                return 0
            done = _once(subscription, wait)
    except SystemExit as error:  # the signals of this process are ours
        raise ConfigurationError(f"A handler on the event loop has called sys.exit({error.code!r}).") from error
    found = {outcome.value: number for outcome, number in sorted(done.items())}
    said = ", ".join(f"{number} {name}" for name, number in found.items()) or "no message"
    if left := subscription.left_marked:
        found["marked"] = left
        said += f"; marked dead letters that another process is handling, unless it died less than 30 s ago: {left}"
    print(as_json(found) if options.json else said, flush=True)
    return 1 if subscription.unhandled else 0


def _in_progress(number: int) -> str:
    if not number:
        return "no message is being handled."
    what = "1 message is" if number == 1 else f"{number} messages are"
    return f"{what} still being handled; the process ends when that is done. What is not acknowledged comes again."


def _once(subscription: Subscription, wait: float) -> Counter[MessageOutcome]:
    try:
        return subscription.run_once(wait)
    except RetrysafeError:
        raise
    except Exception as error:  # the broker's client may raise anything
        raise BrokerUnavailable(f"{type(error).__name__}: {error}".partition("\n")[0]) from error


def _consumer(options: argparse.Namespace) -> Consumer:
    url, spec, given = choose(options, _SIDE)
    if not spec.consumer:
        raise ConfigurationError(f"--broker: retrysafe inbox run cannot consume from {spec.title}.")
    if not all(options.topic):
        raise ConfigurationError("--topic is empty: is a variable of the shell not set?")
    load = spec.load(spec.consumer)
    consumer: Consumer = make_for(_SIDE, lambda: load(url, options.topic, group=options.group, **given))
    declare_for_worker(options, url, spec, given)
    return consumer


def run_status(options: argparse.Namespace) -> int:
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
    with InboxOperator(store_of(options), observers=()) as operator:
        removed = operator.forget(options.older_than)
    print(as_json({"removed": removed}) if options.json else f"removed: {removed}")
    return 0


def run_skip(options: argparse.Namespace) -> int:
    inbox = load_object("MODULE:NAME", options.inbox)
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
