"""The mishaps of the pipeline's processes, and their times: a pure function of the seed; and their execution."""

from __future__ import annotations

import os
import random
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from retrysafe.messaging import Envelope, PublishResult
from retrysafe.messaging.brokers.base import Consumer, Publisher
from retrysafe.protocol.messages import Delivery
from retrysafe_demo.scheduled import say
from retrysafe_demo.talk import Say

COPIES = 0.15
"""The share of messages that come twice: of those that are published, and again of those that are handed out."""


class Point(StrEnum):
    """A place at which a process is killed."""

    ORDER_WRITTEN = "order and event are written, and not committed"
    ORDER_TAKEN = "order and event are committed, and nobody was told"
    TO_PUBLISH = "a relay is about to publish"
    PUBLISHED = "a relay has published, and not noted it"
    RECEIVED = "a consumer has got messages, and handled none"
    HANDLING = "a consumer has done its work, and not committed it"
    HANDLED = "a consumer has committed its work, and not told the broker"


class Role(StrEnum):
    """A kind of process."""

    ORDERS = "orders"
    RELAY = "relay"
    INVENTORY = "inventory"
    MAIL = "mail"


POINTS: Mapping[Role, Sequence[Point]] = {
    Role.ORDERS: (Point.ORDER_WRITTEN, Point.ORDER_TAKEN),
    Role.RELAY: (Point.TO_PUBLISH, Point.PUBLISHED),
    Role.INVENTORY: (Point.RECEIVED, Point.HANDLING, Point.HANDLED),
    Role.MAIL: (Point.RECEIVED, Point.HANDLING, Point.HANDLED),
}
SIZES = {Role.ORDERS: 1, Role.RELAY: 2, Role.INVENTORY: 2, Role.MAIL: 2}
"""The number of processes of each kind."""


class Death(NamedTuple):
    """A process dies the ``after``-th time that it comes to a point."""

    point: Point
    after: int


Schedule = Mapping[tuple[Role, int], Sequence[Death]]
"""Kind and number of a process → the deaths of its first, second … life; further lives go well."""


def schedule(seed: int) -> Schedule:
    """Every process dies at each of its points once, in an order and at times of the seed."""
    chance = random.Random(f"retrysafe pipeline {seed}")
    return {
        (role, number): [Death(point, chance.randint(2, 4)) for point in chance.sample(POINTS[role], len(POINTS[role]))]
        for role, size in SIZES.items()
        for number in range(1, size + 1)
    }


class Mishaps:
    """The mishaps of one life of a process."""

    def __init__(self, death: Death | None, seed: str) -> None:
        self.chance = random.Random(seed)
        self._death, self._passed = death, 0

    def at(self, point: Point) -> None:
        """The process has come to a point: it may be its last."""
        if self._death is None or self._death.point is not point:
            return
        self._passed += 1
        if self._passed == self._death.after:
            say(Say.DYING, why=point)
            os.kill(os.getpid(), signal.SIGKILL)

    def copies(self) -> bool:
        """Tell whether this message comes twice."""
        return self.chance.random() < COPIES


class UnreliablePublisher:
    """Publishes some messages twice, and is killed at its points."""

    def __init__(self, inner: Publisher, mishaps: Mishaps) -> None:
        self._inner, self._mishaps = inner, mishaps

    def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        """Publish them, one or the other twice."""
        self._mishaps.at(Point.TO_PUBLISH)
        published = self._inner.publish(envelopes)
        copied = [envelope for envelope in envelopes if self._mishaps.copies()]
        if copied:
            self._inner.publish(copied)
            say(Say.COPIED, number=len(copied))
        self._mishaps.at(Point.PUBLISHED)
        return published

    def close(self) -> None:
        """Hang up."""
        self._inner.close()


class _Copy(NamedTuple):
    """The tag of a delivery that the broker knows nothing of."""

    tag: Any


class UnreliableConsumer:
    """Hands some deliveries out twice, at once or much later, and is killed at its points."""

    LATE = 3
    """After how many batches a late copy comes."""

    def __init__(self, inner: Consumer, mishaps: Mishaps) -> None:
        self._inner, self._mishaps = inner, mishaps
        self._late: deque[list[Delivery]] = deque([[] for _ in range(self.LATE)])

    @property
    def redelivery_window(self) -> float | None:
        """As long as the broker does."""
        return self._inner.redelivery_window

    async def receive(self, limit: int, wait: float, /) -> Sequence[Delivery]:
        """Receive from the broker, with copies."""
        received = [*await self._inner.receive(limit, wait)]
        if not received:
            return received
        self._mishaps.at(Point.RECEIVED)
        copies = [
            delivery._replace(tag=_Copy(delivery.tag), redelivered=True)
            for delivery in received
            if self._mishaps.copies()
        ]
        if copies:
            say(Say.COPIED, number=len(copies))
        late = self._late.popleft()
        self._late.append(copies[1::2])
        return [*late, *received, *copies[::2]]

    async def ack(self, deliveries: Sequence[Delivery], /) -> None:
        """Tell the broker, of what is its own."""
        self._mishaps.at(Point.HANDLED)
        own = [delivery for delivery in deliveries if not isinstance(delivery.tag, _Copy)]
        if own:
            await self._inner.ack(own)

    async def give_back(self, delivery: Delivery, delay: float, /) -> None:
        """The same."""
        if not isinstance(delivery.tag, _Copy):
            await self._inner.give_back(delivery, delay)

    async def aclose(self) -> None:
        """Hang up."""
        await self._inner.aclose()
