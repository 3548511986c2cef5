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
from tests.messaging.inboxes import envelope

MESSAGES = [f"m{n}" for n in range(4)]
POISON = "m2"


class Again(MemoryConsumer):
    """All that it hands out was handed out before, to a process that is dead."""

    async def receive(self, most: int, wait: float, /) -> Sequence[Delivery]:
        return [one._replace(redelivered=True) for one in await super().receive(most, wait)]


async def main(url: str, boundary: str, table: str, first: bool) -> None:
    active, all_begun = set[str](), asyncio.Event()
    inbox = Inbox(Boundary(boundary, store=url, effects="transactional", window="7d", observers=()))

    @inbox.handler("stock", max_crashes=3)
    async def handle(message: InboxMessage[Any]) -> None:
        name = message.envelope.id
        active.add(name)
        if len(active) == len(MESSAGES):
            all_begun.set()
        if name == POISON:
            if first:
                await all_begun.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        if first or len(active) > 1:
            await asyncio.Event().wait()
        await message.tx.execute(f"INSERT INTO {table} VALUES ('{name}')")
        active.remove(name)

    broker = MemoryBroker()
    consumer = Again(broker, ("orders",), None)
    broker.publisher().publish([envelope(name, key=name) for name in MESSAGES])
    await Subscription(consumer, handle).arun_once()
    await consumer.aclose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4], first=sys.argv[4] == "first"))
