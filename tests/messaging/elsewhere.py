"""A consumer and a publisher that are used elsewhere, too: `python -m tests.messaging.elsewhere MODE URL NAME`.

MODE "loops": on one event loop after the other; "fork": in a child as well; "again": after it was closed, on the same
event loop and the next one; "before": what it received before it was closed is settled afterwards. Each step says
in a line what came of it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeAlias

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.base import AsyncPublisher, Broker, Consumer
from retrysafe.messaging.brokers.registry import broker_at
from retrysafe.protocol.messages import Delivery, Envelope, PublishResult

TOPIC, GROUP = "orders", "stock"
SOON = 20.0
"""Seconds within which every step ends; what is refused ends at once."""

_Run: TypeAlias = "Callable[[Coroutine[Any, Any, Any]], Any]"
_Step: TypeAlias = "Callable[[], Awaitable[Any]]"


def envelope(name: str) -> Envelope:
    return Envelope(name, TOPIC, "one key", "placed", "/shop", None, {}, b"", "text/plain")


def published(publisher: AsyncPublisher, *names: str) -> _Step:
    return lambda: publisher.publish([envelope(name) for name in names])


async def taken_and_acked(consumer: Consumer) -> Sequence[Delivery]:
    found = await consumer.receive(1, SOON)
    await consumer.ack(found)
    return found


async def taken_and_closed(consumer: Consumer) -> Sequence[Delivery]:
    found = await consumer.receive(1, SOON)
    await consumer.aclose()
    return found


async def taken_acked_and_closed(consumer: Consumer) -> Sequence[Delivery]:
    found = await taken_and_acked(consumer)
    await consumer.aclose()
    return found


async def closed_while_receiving(consumer: Consumer) -> Sequence[Delivery]:
    receiving = asyncio.create_task(consumer.receive(1, 10 * SOON))
    await asyncio.sleep(0)
    await consumer.aclose()
    return await receiving


async def lag_of(consumer: Any) -> Sequence[Delivery]:
    assert not hasattr(consumer, "lag") or await consumer.lag() == {}
    return ()


def say(what: str, run: _Run, step: _Step) -> Any:
    async def within() -> Any:
        async with asyncio.timeout(SOON + 5):
            return await step()

    try:
        found = run(within())
    except ConfigurationError as error:
        print(json.dumps([what, error.detail]), flush=True)
        return []
    named = [one.status.value if isinstance(one, PublishResult) else one.envelope.id for one in found or ()]
    print(json.dumps([what, named]), flush=True)
    return found


def say_threads() -> None:
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("retrysafe")]
    for thread in threads:
        thread.join(SOON)
    print(json.dumps(["threads", [thread.name for thread in threads if thread.is_alive()]]), flush=True)


def loops(broker: Broker) -> None:
    publisher, consumer = broker.publisher(), broker.consumer(TOPIC, GROUP)
    asyncio.run(broker.declare([TOPIC], [GROUP]))
    for number in range(3):
        say("published", asyncio.run, published(publisher, f"m{number}"))
    say("closed", asyncio.run, partial(taken_acked_and_closed, consumer))
    say("left open", asyncio.run, partial(taken_and_acked, consumer))
    say("elsewhere", asyncio.run, partial(consumer.receive, 1, 5))
    for closing in (consumer, publisher):
        say("aclose", asyncio.run, closing.aclose)
    del closing, consumer, publisher
    gc.collect()
    say_threads()


def again(broker: Broker) -> None:
    publisher, consumer = broker.publisher(), broker.consumer(TOPIC, GROUP)
    with asyncio.Runner() as runner:
        runner.run(broker.declare([TOPIC], [GROUP]))
        say("closed before its first use", runner.run, consumer.aclose)
        say("published", runner.run, published(publisher, "m0"))
        before = say("received", runner.run, partial(taken_and_acked, consumer))
        say("closed while it receives", runner.run, partial(closed_while_receiving, consumer))
        say("aclose", runner.run, publisher.aclose)
        say("published again", runner.run, published(publisher, "m1", "m2"))
        say("received again", runner.run, partial(taken_acked_and_closed, consumer))
        say("settled when closed", runner.run, partial(consumer.ack, before))
        say("lag when closed", runner.run, partial(lag_of, consumer))
    say("received on the next", asyncio.run, partial(taken_acked_and_closed, consumer))
    say("aclose", asyncio.run, publisher.aclose)


def before(broker: Broker) -> None:
    publisher, consumer, other = broker.publisher(), broker.consumer(TOPIC, GROUP), broker.consumer(TOPIC, GROUP)
    with asyncio.Runner() as runner:
        runner.run(broker.declare([TOPIC], [GROUP]))
        say("published", runner.run, published(publisher, "m0", "m1"))
        old = say("received", runner.run, partial(taken_and_closed, consumer))
        say("received by another", runner.run, partial(taken_acked_and_closed, other))
        say("received", runner.run, partial(consumer.receive, 1, SOON))
        say("settled", runner.run, partial(consumer.ack, old))
        say("aclose", runner.run, consumer.aclose)
        say("received by another", runner.run, partial(taken_acked_and_closed, other))
        say("aclose", runner.run, publisher.aclose)


def fork(broker: Broker) -> None:
    publisher, consumer = broker.publisher(), broker.consumer(TOPIC, GROUP)
    with asyncio.Runner() as runner:
        runner.run(broker.declare([TOPIC], [GROUP]))
        say("published", runner.run, published(publisher, "m0", "m1"))
        held = say("received", runner.run, partial(consumer.receive, 1, SOON))
        if (child := os.fork()) == 0:
            try:
                signal.alarm(60)
                asyncio.set_event_loop(None)
                asyncio._set_running_loop(None)
                with asyncio.Runner() as own:
                    in_child(own.run, publisher, consumer, held)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        say("acked", runner.run, partial(consumer.ack, held))
        say("received", runner.run, partial(taken_and_acked, consumer))
        say("published", runner.run, published(publisher, "m2"))
        for closing in (consumer, publisher):
            say("aclose", runner.run, closing.aclose)


def in_child(run: _Run, publisher: AsyncPublisher, consumer: Consumer, held: Sequence[Delivery]) -> None:
    say("child receives", run, partial(consumer.receive, 10, 0.2))
    say("child acks", run, partial(consumer.ack, held))
    say("child publishes", run, published(publisher, "child"))
    for closing in (consumer, publisher):
        say("aclose", run, closing.aclose)


if __name__ == "__main__":
    mode, url, name = sys.argv[1:]
    {"loops": loops, "fork": fork, "again": again, "before": before}[mode](
        broker_at(url, name=name, partitions=None, lease="2s")
    )
    os._exit(0)  # without what libraries say of connections whose event loop is closed
