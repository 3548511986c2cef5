"""A subscription in a process that one of its messages kills, while others are being handled beside it.

`python -m tests.messaging.suspects URL BOUNDARY TABLE FIRST`: in its first life the poison waits until all are begun.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from retrysafe import Boundary
from retrysafe.messaging import Inbox, InboxMessage, Subscription
from retrysafe.messaging.brokers.memory.broker import MemoryBroker, MemoryConsumer
from retrysafe.protocol.messages import Delivery
from retrysafe.protocol.redelivery_policy import HandleResult
from tests.messaging.inboxes import envelope

MESSAGES = [f"m{n}" for n in range(4)]
POISON = "m2"


class Again(MemoryConsumer):
    """All that it hands out was handed out before, to a process that is dead."""

    async def receive(self, most: int, wait: float, /) -> Sequence[Delivery]:
        return [one._replace(redelivered=True) for one in await super().receive(most, wait)]


async def main(url: str, boundary: str, table: str, first: bool) -> None:
    beside, begun, all_begun = 0, set[str](), asyncio.Event()
    inbox = Inbox(Boundary(boundary, store=url, effects="transactional", window="7d", observers=()))

    @inbox.handler("stock", max_crashes=3)
    async def handle(message: InboxMessage[Any]) -> None:
        name = message.envelope.id
        begun.add(name)
        if len(begun) == len(MESSAGES):
            all_begun.set()
        if name == POISON:
            if first:
                await all_begun.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        if first or beside > 1:
            await asyncio.Event().wait()
        await message.tx.execute(f"INSERT INTO {table} VALUES ('{name}')")

    ahandle = handle.ahandle

    async def counted(*given: Any, **options: Any) -> HandleResult:
        nonlocal beside
        beside += 1
        try:
            return await ahandle(*given, **options)
        finally:
            beside -= 1

    handle.ahandle = counted  # type: ignore[method-assign]
    broker = MemoryBroker()
    consumer = Again(broker, ("orders",), None)
    broker.publisher().publish([envelope(name, key=name) for name in MESSAGES])
    await Subscription(consumer, handle).arun_once()
    await consumer.aclose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4], first=sys.argv[4] == "first"))
