"""Every publisher of ours on its real broker, for the conformance suite; the way to it can be cut."""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from retrysafe.messaging.cloudevents import envelope_of
from retrysafe.protocol.messages import Envelope
from retrysafe.testing.publishers import PublisherFeatures, Publishing
from tests.messaging.roads import Road
from tests.versions import and_on_other_versions


class OnARoad(Publishing):
    """A publisher that reaches its broker by a road."""

    road: Road

    async def cut(self) -> bool:
        await asyncio.to_thread(self.road.close)
        return True

    async def mend(self) -> None:
        self.road.open()


def by_road(road: Road, url: str) -> str:
    parts = urlsplit(url)
    """The URL that leads there."""
    user = "" if parts.username is None else f"{parts.username}:{parts.password}@"
    return parts._replace(netloc=f"{user}127.0.0.1:{road.port}").geturl()


def road_to(url: str) -> Road:
    """A road to the broker of a URL."""
    parts = urlsplit(url)
    return Road(parts.hostname or "127.0.0.1", parts.port or 0, "amqp" if parts.scheme == "amqp" else None)


class Rabbit(OnARoad):
    features = PublisherFeatures(reports_missing=True)
    elsewhere = "nowhere"
    look: Callable[[], Any]
    channel: Any

    async def stall(self) -> bool:
        """A queue that is missing takes nothing, and nor does one that is full."""
        await self.channel.queue_delete(self.topic)
        return True

    async def unstall(self) -> None:
        queue = await self.channel.declare_queue(self.topic, durable=True, arguments={"x-queue-type": "quorum"})
        self.look = partial(queue.get, fail=False, no_ack=True)

    async def arrived(self) -> Sequence[Envelope]:
        from retrysafe.messaging.brokers.rabbitmq.envelope import envelope_from

        found = []
        while (message := await self.look()) is not None:
            kind = {"datacontenttype": message.content_type}
            found.append(envelope_from(message.headers, kind, message.body, self.topic))
        return found


@asynccontextmanager
async def rabbitmq(url: str = "") -> AsyncIterator[Rabbit]:
    import aio_pika

    from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher

    url = url or os.environ["RETRYSAFE_TEST_RABBITMQ"]
    made = Rabbit()
    made.topic = f"suite-{secrets.token_hex(6)}"
    made.road = road_to(url)
    made.publisher = RabbitMQPublisher(by_road(made.road, url), timeout="5s")
    async with await aio_pika.connect(url) as connection:
        made.channel = await connection.channel()
        made.beside = f"{made.topic}-beside"
        await made.channel.declare_queue(made.beside, durable=True)
        await made.unstall()
        yield made
        await made.publisher.aclose()
    async with await aio_pika.connect(url) as connection:  # the first one may have been cut
        channel = await connection.channel()
        for queue in (made.topic, made.beside):
            await channel.queue_delete(queue)
    await asyncio.to_thread(made.road.close)


class Streams(OnARoad):
    features = PublisherFeatures(duplicates=True)
    url: str

    async def stall(self) -> bool:
        """Something else has the name of its stream."""
        import redis.asyncio

        async with redis.asyncio.Redis.from_url(self.url) as client:
            with suppress(redis.ResponseError):  # there is none yet
                await client.rename(f"tests:{{{self.topic}}}", f"tests:{{{self.topic}}}:kept")
            await client.set(f"tests:{{{self.topic}}}", "in the way")
        return True

    async def unstall(self) -> None:
        import redis.asyncio

        async with redis.asyncio.Redis.from_url(self.url) as client:
            await client.delete(f"tests:{{{self.topic}}}")
            with suppress(redis.ResponseError):
                await client.rename(f"tests:{{{self.topic}}}:kept", f"tests:{{{self.topic}}}")

    async def arrived(self) -> Sequence[Envelope]:
        import redis.asyncio

        async with redis.asyncio.Redis.from_url(self.url) as client:
            found = []
            for _, fields in await client.xrange(f"tests:{{{self.topic}}}"):
                payload = fields.pop(b"data")
                found.append(envelope_of({name.decode(): value.decode() for name, value in fields.items()}, payload))
            return found


@asynccontextmanager
async def redis_streams(url: str = "", *, sync: bool) -> AsyncIterator[Streams]:
    import redis
    import redis.asyncio

    from retrysafe.messaging.brokers.redis_streams.publisher import AsyncRedisStreamsPublisher, RedisStreamsPublisher

    url = url or os.environ["RETRYSAFE_TEST_REDIS"]
    made = Streams()
    made.url = url
    made.topic = f"suite-{secrets.token_hex(6)}"
    made.beside = f"{made.topic}-beside"
    made.road = road_to(url)
    by = by_road(made.road, url)
    if sync:
        made.publisher = RedisStreamsPublisher(redis.Redis.from_url(by, socket_timeout=5), prefix="tests:")
    else:
        client = redis.asyncio.Redis.from_url(by, socket_timeout=5)
        made.publisher = AsyncRedisStreamsPublisher(client, prefix="tests:")
    yield made
    closed = made.publisher.close() if sync else made.publisher.aclose()
    if closed is not None:
        await closed
    await asyncio.to_thread(made.road.close)
    with redis.Redis.from_url(url) as client:
        client.delete(*client.keys(f"tests:{{{made.topic}*"), "nothing")


class Memory(Publishing):
    async def arrived(self) -> Sequence[Envelope]:
        return [one for one in self.publisher.published if one.topic == self.topic]


@asynccontextmanager
async def memory(*, sync: bool) -> AsyncIterator[Memory]:
    from retrysafe.messaging.brokers.memory.publisher import AsyncMemoryPublisher, MemoryPublisher

    made = Memory()
    made.topic = "orders"
    made.publisher = MemoryPublisher() if sync else AsyncMemoryPublisher()
    yield made


SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class Answers:
    """What an endpoint answers: a status, or whatever a function makes of a request."""

    def __init__(self) -> None:
        self.arrived: list[Envelope] = []
        self.statuses: deque[int] = deque()
        self.headers: dict[str, str] = {}
        self.gate: threading.Event | None = None
        self.waiting = 0
        self.busy: str | None = None
        """A path of which every request is answered with 503."""
        self.largest = 1 << 20


class Endpoint(OnARoad):
    """An HTTP server that verifies signatures and remembers what it got."""

    features = PublisherFeatures(ordered=False, reports_missing=True)
    elsewhere = "nowhere"

    beside = "mails"
    largest = 1 << 20

    def __init__(self) -> None:
        self.answers = Answers()

    async def stall(self) -> bool:
        self.answers.busy = "/hook"
        return True

    async def unstall(self) -> None:
        self.answers.busy = None

    async def arrived(self) -> Sequence[Envelope]:
        return self.answers.arrived


def _handler(answers: Answers) -> type[BaseHTTPRequestHandler]:
    from retrysafe.webhooks.delivering import Endpoint as Signing
    from retrysafe.webhooks.standard import signatures

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            fields = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(fields["content-length"]))
            signed = fields["webhook-id"], fields["webhook-timestamp"], body
            (expected,) = signatures(Signing("http://x", SECRET).keys, *signed)
            given = {name.removeprefix("ce-"): unquote(v) for name, v in fields.items() if name.startswith("ce-")}
            given["datacontenttype"] = fields["content-type"]
            gate = answers.gate
            if gate is not None:
                answers.waiting += 1
                gate.wait(60)
            status = answers.statuses.popleft() if answers.statuses else 204
            if fields["webhook-signature"] != f"v1,{expected}":
                status = 401
            elif self.path == answers.busy:
                status = 503
            elif len(body) > answers.largest:
                status = 413
            if status < 300:
                answers.arrived.append(envelope_of(given, body))
            self.send_response(status)
            for name, value in {"content-length": "0", **answers.headers}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@contextmanager
def http_endpoint(answers: Answers) -> Iterator[int]:
    """A server in threads of its own, on a port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(answers))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


@asynccontextmanager
async def webhook(*, sync: bool) -> AsyncIterator[Endpoint]:
    import httpx

    from retrysafe.messaging.brokers.webhook import AsyncWebhookPublisher, WebhookPublisher
    from retrysafe.webhooks.delivering import Endpoint as Signing
    from retrysafe.webhooks.sender import AsyncSender, Sender

    made = Endpoint()
    made.topic = "orders"
    stack = ExitStack()
    made.road = Road("127.0.0.1", stack.enter_context(http_endpoint(made.answers)))
    at = f"http://127.0.0.1:{made.road.port}"
    endpoints = {"orders": Signing(f"{at}/hook", SECRET), "mails": Signing(f"{at}/mails", SECRET)}
    if sync:
        client = httpx.Client()
        sender = Sender(client, max_attempts=1, timeout="5s", observers=())
        made.publisher = WebhookPublisher(sender, endpoints, patience="10s", concurrency=50)
        yield made
        await asyncio.to_thread(made.publisher.close)
        await asyncio.to_thread(client.close)
    else:
        async with httpx.AsyncClient() as aclient:
            asender = AsyncSender(aclient, max_attempts=1, timeout="5s", observers=())
            made.publisher = AsyncWebhookPublisher(asender, endpoints, patience="10s", concurrency=50)
            yield made
            await made.publisher.aclose()
    await asyncio.to_thread(made.road.close)
    await asyncio.to_thread(stack.close)


_PUBLISHINGS: dict[str, tuple[str | None, Callable[[], Any]]] = {
    "memory": (None, partial(memory, sync=True)),
    "memory-async": (None, partial(memory, sync=False)),
    "rabbitmq": ("rabbitmq", rabbitmq),
    "redis": ("redis", partial(redis_streams, sync=True)),
    "redis-async": ("redis", partial(redis_streams, sync=False)),
    "webhook": (None, partial(webhook, sync=True)),
    "webhook-async": (None, partial(webhook, sync=False)),
}
PUBLISHINGS = and_on_other_versions(_PUBLISHINGS, {"rabbitmq": ("rabbitmq",), "redis": ("redis-async",)})
