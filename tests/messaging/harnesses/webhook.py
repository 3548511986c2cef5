"""Webhooks under the suite of publishers, at an endpoint of the test's own."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from retrysafe.messaging.cloudevents import envelope_of
from retrysafe.protocol.messages import Envelope
from retrysafe.testing.publishers import PublisherFeatures
from tests.messaging.harnesses.base import Harness, OnARoad
from tests.messaging.roads import Road

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class Answers:
    """The answers of an endpoint: a status, or a function's answer to a request."""

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


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # the suite calls with fifty connections at once
    daemon_threads = True


@contextmanager
def http_endpoint(answers: Answers) -> Iterator[int]:
    """A server in threads of its own, on a port."""
    server = _Server(("127.0.0.1", 0), _handler(answers))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
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
        client = httpx.Client(timeout=60)
        sender = Sender(client, max_attempts=1, timeout="60s", observers=())
        made.publisher = WebhookPublisher(sender, endpoints, patience="20s", concurrency=50)
        yield made
        await asyncio.to_thread(made.publisher.close)
        await asyncio.to_thread(client.close)
    else:
        async with httpx.AsyncClient(timeout=60) as aclient:
            asender = AsyncSender(aclient, max_attempts=1, timeout="60s", observers=())
            made.publisher = AsyncWebhookPublisher(asender, endpoints, patience="20s", concurrency=50)
            yield made
            await made.publisher.aclose()
    await asyncio.to_thread(made.road.close)
    await asyncio.to_thread(stack.close)


HARNESS = Harness(
    "webhook",
    publishings={"webhook": lambda folder: webhook(sync=True), "webhook-async": lambda folder: webhook(sync=False)},
)
