"""The interface of a broker to a row."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import Any, NamedTuple

from retrysafe.messaging.brokers.base import AsyncPublisher, Consumer
from retrysafe.protocol.messages import Envelope

WINDOW = 200
"""The number of messages that a raw client has under way, where it does not decide that itself."""
AT_ONCE = 500
"""The largest number of messages that are received before they are acknowledged."""
WAIT = 10.0
"""Seconds after which a message that does not come is missed."""
BRIEF = 0.02
"""Seconds for which a raw client that fills a batch waits for the rest of it."""

Receive = Callable[[], Awaitable[int]]
"""Receives and acknowledges what there is; how many messages that were."""


class Broker(NamedTuple):
    """A new topic of a broker."""

    topic: str
    publisher: AsyncPublisher
    """Ours."""
    raw: Callable[[Sequence[Envelope]], Awaitable[object]]
    """Publishes with the raw client, and waits for the same confirms."""
    clear: Callable[[], Awaitable[object]]
    """Takes away what was published."""
    receiving: Callable[[], AbstractAsyncContextManager[Receive]] | None = None
    """A consumer of ours that is connected anew."""
    raw_receiving: Callable[[], AbstractAsyncContextManager[Receive]] | None = None
    """The raw client's."""


async def entered(stack: AsyncExitStack, module: str) -> Broker:
    """A new topic of the broker whose module has this name."""
    broker: Broker = await stack.enter_async_context(import_module(f"benchmarks.brokers.{module}").opened())
    return broker


def new_topic() -> str:
    """A name that nobody has had."""
    return f"bench-{secrets.token_hex(6)}"


def portions(envelopes: Sequence[Envelope], most: int = WINDOW) -> Iterator[Sequence[Envelope]]:
    """As many as are under way at once."""
    return (envelopes[start : start + most] for start in range(0, len(envelopes), most))


async def windows(envelopes: Sequence[Envelope], publish: Callable[[Envelope], Coroutine[Any, Any, object]]) -> None:
    """Publish message by message, `WINDOW` of them at the same time."""
    for some in portions(envelopes):
        await asyncio.gather(*map(publish, some))


@asynccontextmanager
async def receiving(make: Callable[[], Consumer]) -> AsyncIterator[Receive]:
    """A consumer of ours."""
    consumer = make()

    async def receive() -> int:
        found = await consumer.receive(AT_ONCE, WAIT)
        await consumer.ack(found)
        return len(found)

    yield receive
    await consumer.aclose()


async def nothing() -> None:
    """For topics that need no clearing."""
