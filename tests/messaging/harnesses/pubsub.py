"""Google Pub/Sub under the suites, on the fake of Google's client for Go: no test runs on the service itself."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from retrysafe.messaging.brokers.base import Consumer
from retrysafe.protocol.messages import Envelope
from retrysafe.testing.consumers import ConsumerFeatures
from retrysafe.testing.publishers import PublisherFeatures
from tests.faults.proxies.framing_http2 import Http2Framing
from tests.messaging.harnesses.base import BehindARoad, Bench, Harness, Killed, OnARoad, Page, Place, road_to
from tests.messaging.own_brokers import OwnBroker
from tests.proving.effort import effort

PREFIX, GROUP = "tests-", "inventory"


def options_of(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {"project": parts.netloc, **dict(parse_qsl(parts.query))}


def led_by(url: str, port: int) -> str:
    """The URL that leads there by a port of ours."""
    return f"pubsub://{options_of(url)['project']}?endpoint=http://127.0.0.1:{port}"


@asynccontextmanager
async def service(url: str) -> AsyncIterator[Any]:
    """The clients of a server."""
    from retrysafe.messaging.brokers.pubsub.client import PubSubService

    made = PubSubService(options_of(url)["endpoint"], 10.0)
    yield await made.open()
    await made.aclose()


async def pulled(clients: Any, path: str) -> Sequence[Any]:
    """Pull the messages that a subscription hands out now."""
    from google.api_core.exceptions import DeadlineExceeded
    from google.pubsub_v1 import types

    asked = types.PullRequest(subscription=path, max_messages=1000)
    while True:
        with suppress(DeadlineExceeded):  # a busy machine told us too late that there is nothing
            told = await clients.subscriber.pull(asked, retry=None, timeout=0.2)
            return types.PullResponse.pb(told).received_messages


async def without(url: str, topic: str, *groups: str, prefix: str = PREFIX) -> None:
    """The topic is not there, nor are the subscriptions of groups to it."""
    from google.api_core.exceptions import NotFound

    from retrysafe.messaging.brokers.pubsub.messages import subscription_path, topic_path

    project = options_of(url)["project"]
    async with service(url) as clients:
        for group in groups:
            with suppress(NotFound):
                path = subscription_path(project, prefix, topic, group)
                await clients.subscriber.delete_subscription(subscription=path, retry=None)
        with suppress(NotFound):
            await clients.publisher.delete_topic(topic=topic_path(project, prefix, topic), retry=None)


class PubSubBench(Bench):
    features = ConsumerFeatures(ahead=False, several=False)
    framing = Http2Framing

    async def open(self) -> PubSubBench:
        from retrysafe.messaging.brokers.pubsub import PubSubPublisher, declare

        lease = self.options.pop("lease", "3s")
        await declare(topics=self.topic, group=GROUP, prefix=PREFIX, lease=lease, **options_of(self.url))
        self.publisher = PubSubPublisher(prefix=PREFIX, **options_of(self.url))
        return self

    async def consumer(self) -> Consumer:
        endpoint = urlsplit(options_of(self.url)["endpoint"])
        proxy = self.proxy((endpoint.hostname or "127.0.0.1", endpoint.port or 0), self.framing)
        made = self.make(led_by(self.url, proxy.port))
        self.proxies[made] = proxy
        return made

    def make(self, url: str) -> Consumer:
        from retrysafe.messaging.brokers.pubsub import PubSubConsumer

        options = {"poll": "500ms", "timeout": "5s", **self.options}
        return PubSubConsumer(topics=self.topic, group=GROUP, prefix=PREFIX, **options_of(url), **options)

    async def clean(self) -> None:
        await without(self.url, self.topic, GROUP)


class Topic(OnARoad):
    """A topic with a subscription, and another one beside it."""

    features = PublisherFeatures(ordered=False, reports_missing=True)
    elsewhere = "nowhere"
    largest = 10_000_000
    url: str

    async def declare(self) -> None:
        from retrysafe.messaging.brokers.pubsub import declare

        await declare(topics=[self.topic, self.beside], group=GROUP, prefix=PREFIX, **options_of(self.url))

    async def stall(self) -> bool:
        """It is missing; its subscription keeps what it has."""
        await without(self.url, self.topic)
        return True

    async def unstall(self) -> None:
        """The topic that is made anew has a subscription of its own."""
        from retrysafe.messaging.brokers.pubsub import declare

        await self._read()
        await without(self.url, self.topic, GROUP)
        await declare(topics=self.topic, group=GROUP, prefix=PREFIX, **options_of(self.url))

    def __init__(self) -> None:
        self._seen: list[tuple[float, Envelope]] = []

    async def arrived(self) -> Sequence[Envelope]:
        """In the order in which they were published; what is read is settled."""
        await self._read()
        return [envelope for _, envelope in sorted(self._seen, key=lambda one: one[0])]

    async def _read(self) -> None:
        from retrysafe.messaging.brokers.pubsub.messages import envelope_from, subscription_path

        path = subscription_path(options_of(self.url)["project"], PREFIX, self.topic, GROUP)
        async with service(self.url) as clients:
            while found := await pulled(clients, path):
                for one in found:
                    message = one.message
                    envelope = envelope_from(message.data, message.attributes, message.ordering_key, self.topic)
                    self._seen.append((message.publish_time.ToNanoseconds(), envelope))
                ids = [one.ack_id for one in found]
                await clients.subscriber.acknowledge(subscription=path, ack_ids=ids, retry=None)


@asynccontextmanager
async def topics(**options: Any) -> AsyncIterator[Topic]:
    from retrysafe.messaging.brokers.pubsub import PubSubPublisher

    made = Topic()
    made.url = os.environ["RETRYSAFE_TEST_PUBSUB"]
    made.topic = f"suite-{secrets.token_hex(6)}"
    made.beside = f"{made.topic}-beside"
    await made.declare()
    made.road = road_to(options_of(made.url)["endpoint"])
    by = options_of(led_by(made.url, made.road.port))
    made.publisher = PubSubPublisher(prefix=PREFIX, timeout="20s", **by, **options)
    yield made
    await made.publisher.aclose()
    await asyncio.to_thread(made.road.close)
    for topic in (made.topic, made.beside):
        await without(made.url, topic, GROUP)


async def left(at: Place) -> int:
    """Count the messages that can be received, of each key one; those that a consumer holds are hidden."""
    from retrysafe.messaging.brokers.pubsub.messages import subscription_path

    path = subscription_path(options_of(at.url)["project"], f"{at.name}-", at.topic, at.group)
    async with service(at.url) as clients:
        ids = [one.ack_id for one in await pulled(clients, path)]
        if ids:
            await clients.subscriber.modify_ack_deadline(
                subscription=path, ack_ids=ids, ack_deadline_seconds=0, retry=None
            )
    return len(ids)


async def remove(at: Place) -> None:
    await without(at.url, at.topic, at.group, prefix=f"{at.name}-")


_IN_FULL = {"pubsub-structured": lambda folder: topics(mode="structured")}


class PubSubServer(OwnBroker):
    """The stand-in for Google Pub/Sub. It forgets everything when it is killed."""

    service = "pubsub"

    @property
    def url(self) -> str:
        return f"pubsub://tests?endpoint=http://127.0.0.1:{self.port}"


HARNESS = Harness(
    "pubsub",
    service="pubsub",
    bench=PubSubBench,
    publishings={"pubsub": lambda folder: topics(), **effort({}, _IN_FULL)},
    library="google.pubsub_v1",
    group=("--topic", "{topic}", "--prefix", "{name}-", "--group", "{group}"),
    killed={"pubsub": Killed("pubsub", "pubsub", lambda: BehindARoad("pubsub"))},
    page=Page(
        "PUBSUB_ENDPOINT",
        lambda url: without(url, "docs-orders", "parcels", prefix=""),
        lambda url: str(options_of(url)["endpoint"]),
    ),
    left=left,
    remove=remove,
)
