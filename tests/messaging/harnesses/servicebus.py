"""Azure Service Bus under the suites, on a stand-in of ours: no test runs on the service itself."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from retrysafe.messaging.brokers.base import Consumer
from retrysafe.protocol.messages import Envelope
from retrysafe.testing.consumers import ConsumerFeatures
from retrysafe.testing.publishers import PublisherFeatures
from tests.faults.proxies.framing_amqp1 import Amqp1Framing
from tests.messaging.harnesses.base import Bench, Harness, Killed, OnARoad, Page, Place, by_road, road_to
from tests.messaging.own_brokers import OwnBroker
from tests.proving.effort import effort

PREFIX, GROUP = "tests-", "inventory"


@asynccontextmanager
async def administration(url: str) -> AsyncIterator[Any]:
    """A client of the entities."""
    from retrysafe.messaging.brokers.servicebus.client import namespace_of

    async with namespace_of(url).administration(10.0) as client:
        yield client


@asynccontextmanager
async def messages(url: str) -> AsyncIterator[Any]:
    """A client of messages."""
    from retrysafe.messaging.brokers.servicebus.client import namespace_of

    made = namespace_of(url).client(10.0)
    yield made.messages
    await made.aclose()


async def without(url: str, topic: str, *, prefix: str = PREFIX) -> None:
    """The topic is not there, nor are subscriptions to it; nor is a queue of that name."""
    from azure.core.exceptions import ResourceNotFoundError

    async with administration(url) as client:
        with suppress(ResourceNotFoundError):
            await client.delete_topic(f"{prefix}{topic}")  # or queue: it is known by its name alone


class ServiceBusBench(Bench):
    features = ConsumerFeatures()
    framing = Amqp1Framing

    async def open(self) -> ServiceBusBench:
        from retrysafe.messaging.brokers.servicebus import ServiceBusPublisher, declare

        lease = self.options.pop("lease", "5s")
        self.ordered = self.options.get("ordered", True)
        how = {"prefix": PREFIX, "ordered": self.ordered}
        await declare(self.url, self.topic, group=GROUP, lease=lease, **how)
        partitions = self.options.pop("partitions", None)
        self.publisher = ServiceBusPublisher(self.url, partitions=partitions, **how)
        return self

    def make(self, url: str) -> Consumer:
        from retrysafe.messaging.brokers.servicebus import ServiceBusConsumer

        options = {"poll": "1s", "idle": "300ms", "timeout": "20s", **self.options}
        return ServiceBusConsumer(url, self.topic, group=GROUP, prefix=PREFIX, **options)

    async def clean(self) -> None:
        await without(self.url, self.topic)


class Topic(OnARoad):
    """A topic with a subscription, and another one beside it."""

    features = PublisherFeatures(duplicates=True, tells_duplicates=False, reports_missing=True)
    elsewhere = "nowhere"
    largest = 256 << 10
    url: str

    def __init__(self) -> None:
        self._seen: list[tuple[int, Envelope]] = []

    async def declare(self) -> None:
        from retrysafe.messaging.brokers.servicebus import declare

        await declare(self.url, [self.topic, self.beside], group=GROUP, prefix=PREFIX, ordered=False)

    async def stall(self) -> bool:
        """It is disabled for sending."""
        await self._status("SendDisabled")
        return True

    async def unstall(self) -> None:
        await self._status("Active")

    async def _status(self, status: str) -> None:
        async with administration(self.url) as client:
            topic = await client.get_topic(f"{PREFIX}{self.topic}")
            topic.status = status
            await client.update_topic(topic)

    async def arrived(self) -> Sequence[Envelope]:
        """In the order in which the service took them; what is read is settled."""
        from retrysafe.messaging.brokers.servicebus.messages import envelope_from

        async with messages(self.url) as client:
            receiver = client.get_subscription_receiver(f"{PREFIX}{self.topic}", GROUP)
            await receiver.__aenter__()
            while found := await receiver.receive_messages(max_message_count=100, max_wait_time=0.3):
                for one in found:
                    self._seen.append((one.sequence_number, envelope_from(one, self.topic)))
                    await receiver.complete_message(one)
        return [envelope for _, envelope in sorted(self._seen, key=lambda one: one[0])]


@asynccontextmanager
async def topics(**options: Any) -> AsyncIterator[Topic]:
    from retrysafe.messaging.brokers.servicebus import ServiceBusPublisher

    made = Topic()
    made.url = os.environ["RETRYSAFE_TEST_SERVICEBUS"]
    made.topic = f"suite-{secrets.token_hex(6)}"
    made.beside = f"{made.topic}-beside"
    await made.declare()
    made.road = road_to(made.url)
    made.publisher = ServiceBusPublisher(by_road(made.road, made.url), prefix=PREFIX, timeout="10s", **options)
    yield made
    await made.publisher.aclose()
    await asyncio.to_thread(made.road.close)
    for topic in (made.topic, made.beside):
        await without(made.url, topic)


async def left(at: Place) -> int:
    """Count the messages of the subscription, held by a consumer or not."""
    async with administration(at.url) as client:
        told = await client.get_subscription_runtime_properties(f"{at.name}-{at.topic}", at.group)
    return int(told.active_message_count)


async def remove(at: Place) -> None:
    await without(at.url, at.topic, prefix=f"{at.name}-")


_IN_FULL = {"servicebus-structured": lambda folder: topics(mode="structured")}


class ServiceBusServer(OwnBroker):
    """The stand-in for Azure Service Bus. It has written down what it has acknowledged."""

    service = "servicebus"

    @property
    def url(self) -> str:
        return f"servicebus://RootManageSharedAccessKey:tests@127.0.0.1:{self.port}?emulator=true"


HARNESS = Harness(
    "servicebus",
    service="servicebus",
    bench=ServiceBusBench,
    publishings={"servicebus": lambda folder: topics(), **effort({}, _IN_FULL)},
    library="azure.servicebus.aio",
    group=("--topic", "{topic}", "--prefix", "{name}-", "--group", "{group}", "--redelivery-window", "7d"),
    killed={"servicebus": Killed("servicebus", "servicebus", ServiceBusServer)},
    page=Page("SERVICEBUS_URL", partial(without, topic="docs-orders", prefix="")),
    left=left,
    remove=remove,
)
