"""SQS and SNS under the suites, on ElasticMQ and ministack: no test runs on the services themselves."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from retrysafe.messaging.brokers.base import Consumer
from retrysafe.protocol.messages import Envelope
from retrysafe.testing.consumers import ConsumerFeatures
from retrysafe.testing.publishers import PublisherFeatures
from tests.faults.proxies.framing_http import HttpFraming
from tests.messaging.harnesses.base import BehindARoad, Bench, Harness, Killed, OnARoad, Page, Place, road_to
from tests.proving.effort import effort

PREFIX = "tests-"
for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
    os.environ.setdefault(variable, "local")


def options_of(url: str) -> dict[str, Any]:
    return dict(parse_qsl(urlsplit(url).query))


@asynccontextmanager
async def service(name: str, url: str) -> AsyncIterator[Any]:
    from retrysafe.messaging.brokers.sqs.client import Service

    options = options_of(url)
    made = Service(name, options["region"], options["endpoint"], 10.0)
    yield made
    await made.aclose()


class SqsBench(Bench):
    features = ConsumerFeatures(ahead=False)
    framing = HttpFraming

    async def open(self) -> SqsBench:
        from retrysafe.messaging.brokers.sqs import SqsPublisher, declare

        await declare(self.topic, prefix=PREFIX, keep="1d", **options_of(self.url))
        self.publisher = SqsPublisher(prefix=PREFIX, **options_of(self.url))
        return self

    async def consumer(self) -> Consumer:
        endpoint = urlsplit(options_of(self.url)["endpoint"])
        proxy = self.proxy((endpoint.hostname or "127.0.0.1", endpoint.port or 0), self.framing)
        made = self.make(f"sqs://?region=us-east-1&endpoint=http://127.0.0.1:{proxy.port}")
        self.proxies[made] = proxy
        return made

    def make(self, url: str) -> Consumer:
        from retrysafe.messaging.brokers.sqs import SqsConsumer

        options = {"lease": "3s", "poll": "100ms", "timeout": "5s", **self.options}
        return SqsConsumer(self.topic, prefix=PREFIX, **options_of(url), **options)

    async def clean(self) -> None:
        await without_queue(self.url, name_in(self.topic))


def name_in(topic: str, *, prefix: str = PREFIX, ordered: bool = True) -> str:
    from retrysafe.messaging.brokers.sqs.messages import name_of

    return name_of(prefix, topic, ordered=ordered)


async def without_queue(url: str, name: str) -> None:
    from botocore.exceptions import ClientError

    async with service("sqs", url) as queues:
        with suppress(ClientError):
            found = await queues.call("get_queue_url", QueueName=name)
            await queues.call("delete_queue", QueueUrl=found["QueueUrl"])


async def without_topic(url: str, name: str) -> None:
    from retrysafe.messaging.brokers.sqs.client import TopicMissing, topic_named

    async with service("sns", url) as notifications:
        with suppress(TopicMissing):
            await notifications.call("delete_topic", TopicArn=await topic_named(notifications, name))


class Queue(OnARoad):
    """A queue, or a topic with a queue that subscribes to it; and another one beside it."""

    elsewhere = "nowhere"
    kind: str
    url: str
    ordered: bool

    async def declare(self) -> None:
        from retrysafe.messaging.brokers.sqs import declare

        topics = [self.topic, self.beside]
        await declare(topics, group=self.group, prefix=PREFIX, ordered=self.ordered, **options_of(self.url))

    async def stall(self) -> bool:
        """It is missing."""
        if self.kind == "sns":
            await without_topic(self.url, name_in(self.topic, ordered=self.ordered))
        else:
            await without_queue(self.url, name_in(self.topic, ordered=self.ordered))
        return True

    async def unstall(self) -> None:
        await self.declare()

    @property
    def group(self) -> str | None:
        return "inventory" if self.kind == "sns" else None

    async def arrived(self) -> Sequence[Envelope]:
        """In the order of the queue, which hands out groups in any order; what is read is deleted."""
        from retrysafe.messaging.brokers.sqs.messages import envelope_from

        asked: dict[str, Any] = {"MessageAttributeNames": ["All"], "MessageSystemAttributeNames": ["All"]}
        seen = []
        async with service("sqs", self.url) as client:
            name = name_in(self.queue_of(self.topic), ordered=self.ordered)
            url = (await client.call("get_queue_url", QueueName=name))["QueueUrl"]
            while found := (
                await client.call("receive_message", QueueUrl=url, MaxNumberOfMessages=10, **asked, WaitTimeSeconds=0)
            ).get("Messages"):
                seen += found
                entries = [{"Id": str(at), "ReceiptHandle": one["ReceiptHandle"]} for at, one in enumerate(found)]
                await client.call("delete_message_batch", QueueUrl=url, Entries=entries)
        seen.sort(key=lambda one: int(one["Attributes"].get("SequenceNumber", 0)))
        return [envelope_from(one, self.topic) for one in seen]

    def queue_of(self, topic: str) -> str:
        return topic if self.group is None else f"{self.group}.{topic}"

    async def remove(self) -> None:
        for topic in (self.topic, self.beside):
            await without_queue(self.url, name_in(self.queue_of(topic), ordered=self.ordered))
            if self.kind == "sns":
                await without_topic(self.url, name_in(topic, ordered=self.ordered))


@asynccontextmanager
async def queues(kind: str, *, ordered: bool = True, **options: Any) -> AsyncIterator[Queue]:
    from retrysafe.messaging.brokers.sqs import SnsPublisher, SqsPublisher

    made = Queue()
    made.features = PublisherFeatures(ordered=ordered, duplicates=ordered, tells_duplicates=False, reports_missing=True)
    made.kind, made.ordered, made.url = kind, ordered, os.environ[f"RETRYSAFE_TEST_{kind.upper()}"]
    made.topic = f"suite-{secrets.token_hex(6)}"
    made.beside = f"{made.topic}-beside"
    made.largest = (256 << 10) if kind == "sns" else 1 << 20
    await made.declare()
    made.road = road_to(options_of(made.url)["endpoint"])
    by = {**options_of(made.url), "endpoint": f"http://127.0.0.1:{made.road.port}"}
    publisher = SnsPublisher if kind == "sns" else SqsPublisher
    made.publisher = publisher(prefix=PREFIX, ordered=ordered, timeout="10s", **by, **options)
    yield made
    await made.publisher.aclose()
    await asyncio.to_thread(made.road.close)
    await made.remove()


async def left(at: Place) -> int:
    asked = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    async with service("sqs", at.url) as client:
        name = name_in(f"{at.group}.{at.topic}", prefix=f"{at.name}-")
        url = (await client.call("get_queue_url", QueueName=name))["QueueUrl"]
        told = await client.call("get_queue_attributes", QueueUrl=url, AttributeNames=asked)
    return sum(int(told["Attributes"][name]) for name in asked)


async def remove(at: Place) -> None:
    await without_queue(at.url, name_in(f"{at.group}.{at.topic}", prefix=f"{at.name}-"))
    await without_topic(at.url, name_in(at.topic, prefix=f"{at.name}-"))


_IN_FULL = {"sqs-standard": lambda folder: queues("sqs", ordered=False, mode="structured")}
HARNESS = Harness(
    "sqs",
    service="sqs",
    bench=SqsBench,
    publishings={"sqs": lambda folder: queues("sqs"), **effort({}, _IN_FULL)},
)
"""On ElasticMQ, which has queues only."""
FANOUT = Harness(
    "sns",
    service="sns",
    publishings={"sns": lambda folder: queues("sns")},
    library="aiobotocore",
    group=("--topic", "{topic}", "--prefix", "{name}-", "--group", "{group}"),
    killed={"sns": Killed("sns", "sns", lambda: BehindARoad("sns"))},
    page=Page(
        "SQS_ENDPOINT", partial(without_queue, name="docs-orders.fifo"), lambda url: str(options_of(url)["endpoint"])
    ),
    left=left,
    remove=remove,
)
"""On ministack, which has topics too."""
