"""NATS JetStream under the suites."""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

from retrysafe.messaging.brokers.base import Consumer
from retrysafe.protocol.messages import Envelope
from retrysafe.testing.publishers import PublisherFeatures
from tests.faults.proxies.framing_nats import NatsFraming
from tests.messaging.harnesses.base import (
    PARTITIONS,
    Bench,
    Harness,
    Killed,
    OnARoad,
    Page,
    Place,
    by_road,
    road_to,
)
from tests.messaging.own_brokers import OwnBroker

LARGEST = 1 << 20
"""The server's default limit in bytes, with the headers."""


class NatsBench(Bench):
    framing = NatsFraming

    async def open(self) -> NatsBench:
        from retrysafe.messaging.brokers.nats.publisher import NatsPublisher
        from retrysafe.messaging.brokers.nats.topology import declare

        await declare(self.url, self.topic, stream=self.topic, partitions=PARTITIONS, remember="100ms")
        self.publisher = NatsPublisher(self.url, partitions=PARTITIONS)
        return self

    def make(self, url: str) -> Consumer:
        from retrysafe.messaging.brokers.nats.consumer import NatsConsumer

        options = {"group": "inventory", "lease": "1s", "timeout": "5s", **self.options}
        return NatsConsumer(url, self.topic, partitions=PARTITIONS, **options)

    async def clean(self) -> None:
        await without_stream(self.url, self.topic)


async def without_stream(url: str, stream: str) -> None:
    import nats
    from nats.js.errors import NotFoundError

    async with await nats.connect(url) as client:
        with suppress(NotFoundError):
            await client.jetstream().delete_stream(stream)


class Subject(OnARoad):
    features = PublisherFeatures(duplicates=True, reports_missing=True)
    elsewhere = "nowhere"
    largest = LARGEST
    url: str

    async def stall(self) -> bool:
        """A stream that is full refuses what is new."""
        await self._bound(1)
        return True

    async def unstall(self) -> None:
        await self._bound(-1)

    async def _bound(self, size: int) -> None:
        import nats

        async with await nats.connect(self.url) as client:
            stream = client.jetstream()
            config = (await stream.stream_info(self.topic)).config
            await stream.update_stream(config, max_bytes=size)

    async def arrived(self) -> Sequence[Envelope]:
        import nats

        from retrysafe.messaging.brokers.nats.messages import envelope_from

        async with await nats.connect(self.url) as client:
            stream = client.jetstream()
            last = (await stream.stream_info(self.topic)).state.last_seq
            found = []
            for number in range(1, last + 1):
                message = await stream.get_msg(self.topic, number)
                found.append(envelope_from(message.headers, message.data or b"", self.topic))
            return found


@asynccontextmanager
async def subjects(url: str = "") -> AsyncIterator[Subject]:
    from retrysafe.messaging.brokers.nats.publisher import NatsPublisher
    from retrysafe.messaging.brokers.nats.topology import declare

    made = Subject()
    made.url = url or os.environ["RETRYSAFE_TEST_NATS"]
    made.topic = f"suite-{secrets.token_hex(6)}"
    made.beside = f"{made.topic}-beside"
    for topic in (made.topic, made.beside):
        await declare(made.url, topic, stream=topic)
    made.road = road_to(made.url)
    made.publisher = NatsPublisher(by_road(made.road, made.url), timeout="10s")
    yield made
    await made.publisher.aclose()
    for topic in (made.topic, made.beside):
        await without_stream(made.url, topic)
    await asyncio.to_thread(made.road.close)


async def left(at: Place) -> int:
    import nats

    async with await nats.connect(at.url) as client:
        consumers = await client.jetstream().consumers_info(at.name)
    ours = [one for one in consumers if one.name.startswith(f"{at.group}-")]
    return sum((one.num_pending or 0) + (one.num_ack_pending or 0) for one in ours)


async def remove(at: Place) -> None:
    await without_stream(at.url, at.name)


class NatsServer(OwnBroker):
    """A NATS."""

    service = "nats"

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"


class GuardedNats(NatsServer):
    """A NATS where users log in, each with the name as the password; who does not log in may do all."""

    def __init__(self, **permissions: str) -> None:
        users = [f"{{user: {user}, password: {user}, permissions: {may}}}" for user, may in permissions.items()]
        known = "\n".join(["{user: operator, password: operator}", *users])
        with tempfile.NamedTemporaryFile("w", suffix=".conf", encoding="utf-8") as settings:
            settings.write(f"no_auth_user: operator\nauthorization {{ users = [\n{known}\n] }}\n")
            settings.flush()
            super().__init__(RETRYSAFE_NATS_CONFIG=settings.name)

    def url_of(self, user: str) -> str:
        """The URL for a user."""
        return f"nats://{user}:{user}@127.0.0.1:{self.port}"


HARNESS = Harness(
    "nats",
    service="nats",
    bench=NatsBench,
    publishings={"nats": lambda folder: subjects()},
    library="nats",
    group=("--topic", "{topic}", "--prefix", "{name}.", "--partitions", "2", "--group", "{group}"),
    killed={"nats": Killed("nats", "nats", NatsServer)},
    page=Page("NATS_URL", partial(without_stream, stream="docs")),
    left=left,
    remove=remove,
)
