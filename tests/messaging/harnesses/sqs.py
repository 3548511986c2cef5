"""SQS and SNS under the suites, on ElasticMQ and ministack: no test runs on the services themselves."""

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
from retrysafe.testing.publishers import PublisherFeatures
from tests.faults.proxies.framing_http import HttpFraming
from tests.faults.proxies.proxy import Proxy
from tests.messaging.harnesses.base import PARTITIONS, Bench, Harness, OnARoad, Place, road_to

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
    framing = HttpFraming

    async def open(self) -> SqsBench:
        from retrysafe.messaging.brokers.sqs import SqsPublisher, declare

        self.prefix = f"tests-{PARTITIONS}-"
        await declare(self.topic, prefix=self.prefix, keep="1d", **options_of(self.url))
        self.publisher = SqsPublisher(prefix=self.prefix, **options_of(self.url))
        return self

    async def consumer(self) -> Consumer:
        endpoint = urlsplit(options_of(self.url)["endpoint"])
        proxy = Proxy((endpoint.hostname or "127.0.0.1", endpoint.port or 0), self.framing)
        made = self.make(f"sqs://?region=us-east-1&endpoint=http://127.0.0.1:{proxy.port}")
        self.proxies[made] = proxy
        return made

    def make(self, url: str) -> Consumer:
        from retrysafe.messaging.brokers.sqs import SqsConsumer

        options = {"lease": "2s", "poll": "1s", "timeout": "5s", **self.options}
        return SqsConsumer(self.topic, prefix=f"tests-{PARTITIONS}-", **options_of(url), **options)

    async def clean(self) -> None:
        await without_queue(self.url, self.prefix, self.topic)


async def without_queue(url: str, prefix: str, topic: str) -> None:
    from botocore.exceptions import ClientError

    from retrysafe.messaging.brokers.sqs.messages import name_of

    async with service("sqs", url) as queues:
        with suppress(ClientError):
            found = await queues.call("get_queue_url", QueueName=name_of(prefix, topic, ordered=True))
            await queues.call("delete_queue", QueueUrl=found["QueueUrl"])


class Queue(OnARoad):
    features = PublisherFeatures(duplicates=True, tells_duplicates=False, reports_missing=True)
    elsewhere = "nowhere"
    largest = 1 << 20
    url: str
    seen: list[Envelope]
    group: str | None = None

    async def arrived(self) -> Sequence[Envelope]:
        """What was there before is deleted when it is read, so that its group is not blocked."""
        from retrysafe.messaging.brokers.sqs import SqsConsumer

        consumer = SqsConsumer(self.topic, group=self.group, prefix="tests-", poll="1s", prefetch=1000, **options_of(self.url))
        while found := await consumer.receive(1000, 1.2):
            self.seen += [one.envelope for one in found]
            await consumer.ack(found)
        await consumer.aclose()
        return self.seen


@asynccontextmanager
async def queues(kind: str) -> AsyncIterator[Queue]:
    from retrysafe.messaging.brokers.sqs import SnsPublisher, SqsPublisher, declare

    made = Queue()
    made.url, made.seen = os.environ[f"RETRYSAFE_TEST_{kind.upper()}"], []
    made.topic = f"suite-{secrets.token_hex(6)}"
    made.group = "inventory" if kind == "sns" else None
    made.largest = (256 << 10) if kind == "sns" else 1 << 20
    options = options_of(made.url)
    made.road = road_to(options["endpoint"])
    by = {**options, "endpoint": f"http://127.0.0.1:{made.road.port}"}
    await declare(made.topic, group=made.group, prefix="tests-", **options)
    publisher = SnsPublisher if kind == "sns" else SqsPublisher
    made.publisher = publisher(prefix="tests-", timeout="5s", **by)
    yield made
    await made.publisher.aclose()
    await asyncio.to_thread(made.road.close)
    await without_queue(made.url, "tests-", made.topic if made.group is None else f"{made.group}.{made.topic}")


async def left(at: Place) -> int:
    from retrysafe.messaging.brokers.sqs.messages import name_of

    asked = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    async with service("sqs", at.url) as client:
        name = name_of(f"{at.name}-", f"{at.group}.{at.topic}", ordered=True)
        url = (await client.call("get_queue_url", QueueName=name))["QueueUrl"]
        told = await client.call("get_queue_attributes", QueueUrl=url, AttributeNames=asked)
    return sum(int(told["Attributes"][name]) for name in asked)


async def remove(at: Place) -> None:
    await without_queue(at.url, f"{at.name}-", f"{at.group}.{at.topic}")


HARNESS = Harness(
    "sqs",
    service="sqs",
    bench=SqsBench,
    publishings={"sqs": lambda folder: queues("sqs")},
)
"""On ElasticMQ, which has queues only."""
FANOUT = Harness(
    "sns",
    service="sns",
    bench=SqsBench,
    publishings={"sns": lambda folder: queues("sns")},
    left=left,
    remove=remove,
)
"""On ministack, which has topics too."""
