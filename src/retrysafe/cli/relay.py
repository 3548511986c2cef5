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
from operator import attrgetter
from typing import Any

from retrysafe.admin.operator import connect
from retrysafe.backends.backend import Backend
from retrysafe.claims.observers import LoggingObserver
from retrysafe.cli.brokers import add_broker, choose, log_to_stderr, make_for
from retrysafe.cli.opening import add_store, load_object, store_of
from retrysafe.cli.stopping import add_stop_within, end_by_signals, stop_within
from retrysafe.cli.worker import add_metrics, serve_health
from retrysafe.messaging.brokers.sync_publisher import SyncPublisher
from retrysafe.messaging.cdc.slot import SLOT, Slot
from retrysafe.messaging.relay.relay import Relay, Relayed
from retrysafe.protocol.events import Observer

_SIDE = attrgetter("publisher_options")
_WAITS = "the relay ends when its current batch is published. What it cannot mark as published is published again."


def add_to(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "relay",
        help="publish the messages in the outbox",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_store(parser)
    add_broker(parser, _SIDE)
    parser.add_argument(
        "--publisher", metavar="MODULE:NAME", help="instead of --broker: your publisher, or a function that makes it"
    )
    parser.add_argument(
        "--hold", choices=["transaction", "lease"], help="how a bucket is held while its messages are published"
    )
    parser.add_argument(
        "--lease",
        metavar="TIME",
        default="30s",
        help="how long a dead relay keeps its buckets, with --hold lease (default: 30s)",
    )
    parser.add_argument("--batch", metavar="N", type=int, default=200, help="messages at a time (default: 200)")
    parser.add_argument(
        "--batch-bytes", metavar="N", type=int, default=4 << 20, help="bytes of them at a time (default: 4 MiB)"
    )
    parser.add_argument(
        "--concurrency",
        metavar="N",
        type=int,
        default=4,
        help="buckets that are published at the same time (default: 4)",
    )
    parser.add_argument(
        "--keep-published", action="store_true", help="keep published messages: see retrysafe outbox sweep"
    )
    parser.add_argument(
        "--max-attempts",
        metavar="N",
        type=int,
        default=10,
        help="failed attempts before a message is a dead letter (default: 10)",
    )
    parser.add_argument(
        "--max-crashes",
        metavar="N",
        type=int,
        default=3,
        help="crashes of relays before a message is a dead letter (default: 3)",
    )
    parser.add_argument(
        "--backoff-base", metavar="TIME", default="500ms", help="upper limit of the first backoff (default: 500ms)"
    )
    parser.add_argument(
        "--backoff-max", metavar="TIME", default="5m", help="upper limit of every backoff (default: 5m)"
    )
    parser.add_argument(
        "--on-dead",
        choices=["skip", "park"],
        default="skip",
        help="the lane of a dead letter: skip continues, park waits for an operator (default: skip)",
    )
    parser.add_argument(
        "--publish-timeout",
        metavar="TIME",
        default="1m",
        help="how long one call of the publisher may take (default: 1m)",
    )
    parser.add_argument(
        "--stalled-after", metavar="TIME", default="1m", help="warn if a message is due for longer (default: 1m)"
    )
    parser.add_argument(
        "--listen",
        metavar="URL",
        nargs="?",
        const="",
        help="publish what Outbox(notify=True) writes elsewhere without polling delay: a PostgreSQL URL, "
        "by default that of --store",
    )
    parser.add_argument(
        "--cdc",
        metavar="URL",
        nargs="?",
        const="",
        help="read what is new from PostgreSQL's log: the URL of the server, by default that of --store "
        "(see retrysafe cdc)",
    )
    parser.add_argument("--slot", metavar="NAME", default=SLOT, help=f"with --cdc: the replication slot ({SLOT})")
    for name in ("source", "topic"):
        parser.add_argument(
            f"--{name}",
            metavar=name.upper(),
            action="append",
            help=f"publish messages of this {name} alone; may be repeated (default: all)",
        )
    add_stop_within(parser)
    add_metrics(parser)
    parser.add_argument("--once", action="store_true", help="exit when no message is due")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Relay, and with --once print what was published."""
    log_to_stderr(options)
    store = store_of(options)
    backend = connect(store)
    publisher = _publisher(options, backend)
    with serve_health(options, store) as observers:
        return _run(options, store, publisher, observers)


def _run(options: argparse.Namespace, store: str, publisher: Any, observers: tuple[Observer, ...]) -> int:
    relay = Relay(
        store,
        publisher,
        hold=options.hold,
        lease=options.lease,
        batch=options.batch,
        batch_bytes=options.batch_bytes,
        concurrency=options.concurrency,
        keep_published=options.keep_published,
        max_attempts=options.max_attempts,
        max_crashes=options.max_crashes,
        backoff_base=options.backoff_base,
        backoff_max=options.backoff_max,
        on_dead=options.on_dead,
        publish_timeout=options.publish_timeout,
        stalled_after=options.stalled_after,
        listen=store if options.listen == "" else options.listen,
        sources=options.source,
        topics=options.topic,
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
    try:
        if once:
            return relay.run_once()
        relay.run_forever()
        return None
    finally:
        close = getattr(publisher, "close", None)
        if close is not None:
            close()


async def _arelay(relay: Relay, publisher: Any, *, once: bool) -> Relayed | None:
    try:
        if once:
            return await relay.arun_once()
        await relay.arun_forever()
        return None
    finally:
        aclose = getattr(publisher, "aclose", None)
        if aclose is not None:
            await aclose()


def _publisher(options: argparse.Namespace, backend: Backend) -> Any:
    if options.publisher:
        return _load_publisher(options.publisher)
    url, spec, given = choose(options, _SIDE, ", or give --publisher")
    load = spec.load((backend.serves_async and spec.async_publisher) or spec.publisher)
    publisher = make_for(_SIDE, lambda: load(url, **given))
    if backend.serves_async or not inspect.iscoroutinefunction(publisher.publish):
        return publisher
    return SyncPublisher(lambda: publisher)


def _load_publisher(target: str) -> Any:
    found = load_object("--publisher", target)
    return found if hasattr(found, "publish") and not isinstance(found, type) else found()
