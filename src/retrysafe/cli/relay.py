"""`retrysafe relay`: publish the messages in the outboxes of a database.

Any number of relays may run, on any number of machines. SIGTERM and SIGINT stop a relay after its current batch; a
second one ends it at once, and so does the time of --stop-within. If it is killed or ended so, the messages it was
publishing are published again, with the same ids. Exit code: 0 if it was stopped, 128 + its number after a second
signal, 143 after --stop-within; with --once 1 if a message was delayed
or became a dead letter.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
from contextlib import aclosing, closing, nullcontext
from operator import attrgetter
from typing import Any

from retrysafe.admin.operator import connect
from retrysafe.backends.backend import Backend
from retrysafe.claims.observers import LoggingObserver
from retrysafe.cli.brokers import add_broker, choose, log_to_stderr, make_for
from retrysafe.cli.opening import add_store, load_object, store_of
from retrysafe.cli.options import add_option, add_verb
from retrysafe.cli.stopping import add_stop_within, end_by_signals, stop_within
from retrysafe.cli.topics import add_declare, declare_for_worker
from retrysafe.cli.worker import add_metrics, serve_health
from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.sync_publisher import SyncPublisher
from retrysafe.messaging.cdc.slot import SLOT, Slot
from retrysafe.messaging.relay.relay import Relay, Relayed
from retrysafe.protocol.events import Observer

_SIDE = attrgetter("publisher_options")
_ALIKE = (
    *("hold", "lease", "batch", "batch_bytes", "concurrency", "keep_published", "max_attempts", "max_crashes"),
    *("backoff_base", "backoff_max", "on_dead", "publish_timeout", "stalled_after"),
)
"""The options that are called as the arguments of `Relay`."""
_WAITS = "the relay ends when its current batch is published. What it cannot mark as published is published again."


def add_to(verbs: Any) -> None:
    parser = add_verb(verbs, "relay", "publish the messages in the outbox", run, __doc__)
    add_store(parser)
    add_broker(parser, _SIDE)
    add_option(parser, "--publisher MODULE:NAME", "instead of --broker: your publisher, or a function that makes it")
    add_option(
        parser, "--hold", "how a bucket is held while its messages are published", choices=["transaction", "lease"]
    )
    add_option(parser, "--lease TIME", "how long a dead relay keeps its buckets, with --hold lease", "30s")
    add_option(parser, "--batch N", "messages at a time", 200)
    add_option(parser, "--batch-bytes N", "bytes of them at a time (default: 4 MiB)", 4 << 20)
    add_option(parser, "--concurrency N", "buckets that are published at the same time", 4)
    keeps = "keep published messages for this time, then remove them (without TIME: 7d; by default none is kept)"
    add_option(parser, "--keep-published TIME", keeps, False, nargs="?", const=True, type=str)
    add_option(parser, "--max-attempts N", "failed attempts before a message is a dead letter", 10)
    add_option(parser, "--max-crashes N", "crashes of relays before a message is a dead letter", 3)
    add_option(parser, "--backoff-base TIME", "upper limit of the first backoff", "500ms")
    add_option(parser, "--backoff-max TIME", "upper limit of every backoff", "5m")
    add_option(
        parser,
        "--on-dead",
        "the lane of a dead letter: skip continues, park waits for an operator",
        "skip",
        choices=["skip", "park"],
    )
    add_option(parser, "--publish-timeout TIME", "how long one call of the publisher may take", "1m")
    add_option(parser, "--stalled-after TIME", "warn if a message is due for longer", "1m")
    add_option(
        parser,
        "--listen URL",
        "publish what Outbox(notify=True) writes elsewhere without polling delay: a PostgreSQL URL, "
        "by default that of --store",
        nargs="?",
        const="",
    )
    add_option(
        parser,
        "--cdc URL",
        "read what is new from PostgreSQL's log: the URL of the server, by default that of --store (see retrysafe cdc)",
        nargs="?",
        const="",
    )
    add_option(parser, "--slot NAME", "with --cdc: the replication slot", SLOT)
    for name in ("source", "topic"):
        text = f"publish messages of this {name} alone; may be repeated (default: all)"
        add_option(parser, f"--{name} {name.upper()}...", text)
    add_declare(parser)
    add_stop_within(parser)
    add_metrics(parser)
    add_option(parser, "--once", "exit when no message is due")


def run(options: argparse.Namespace) -> int:
    log_to_stderr(options)
    store = store_of(options)
    backend = connect(store)
    publisher = _publisher(options, backend)
    with serve_health(options, "relay", store) as observers:
        return _run(options, store, publisher, observers)


def _run(options: argparse.Namespace, store: str, publisher: Any, observers: tuple[Observer, ...]) -> int:
    relay = Relay(
        store,
        publisher,
        **{name: getattr(options, name) for name in _ALIKE},
        listen=store if options.listen == "" else options.listen,
        sources=options.source or None,
        topics=options.topic or None,
        observers=(LoggingObserver(), *observers),
        cdc=None if options.cdc is None else Slot(options.cdc or store, name=options.slot),
    )
    with end_by_signals(relay.stop, lambda: _WAITS, within=stop_within(options)):
        if inspect.iscoroutinefunction(publisher.publish):
            done = asyncio.run(_arelay(relay, publisher, once=options.once))
        else:
            done = _relay(relay, publisher, once=options.once)
    if done is not None:
        said = f"published {done.published}, delayed {done.delayed}, dead letters {done.dead}"
        print(json.dumps(done._asdict()) if options.json else said, flush=True)
        return 1 if done.delayed or done.dead else 0
    return 0


def _relay(relay: Relay, publisher: Any, *, once: bool) -> Relayed | None:
    with closing(publisher) if hasattr(publisher, "close") else nullcontext():
        if once:
            return relay.run_once()
        relay.run_forever()
        return None


async def _arelay(relay: Relay, publisher: Any, *, once: bool) -> Relayed | None:
    async with aclosing(publisher) if hasattr(publisher, "aclose") else nullcontext():
        if once:
            return await relay.arun_once()
        await relay.arun_forever()
        return None


def _publisher(options: argparse.Namespace, backend: Backend) -> Any:
    if options.publisher:
        if options.declare:
            raise ConfigurationError("--declare is for a broker that --broker names, and not for --publisher.")
        return _load_publisher(options.publisher)
    url, spec, given = choose(options, _SIDE, ", or give --publisher")
    declare_for_worker(options, url, spec, given)
    load = spec.load((backend.serves_async and spec.async_publisher) or spec.publisher)
    publisher = make_for(_SIDE, lambda: load(url, **given))
    if backend.serves_async or not inspect.iscoroutinefunction(publisher.publish):
        return publisher
    return SyncPublisher(lambda: publisher)


def _load_publisher(target: str) -> Any:
    found = load_object("--publisher", target)
    return found if hasattr(found, "publish") and not isinstance(found, type) else found()
