"""Common parts of the brokers' harnesses: their description, a bench for consumers, a road for publishers."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol
from urllib.parse import parse_qs, urlsplit

from retrysafe.messaging.brokers.base import Consumer
from retrysafe.protocol.messages import Envelope, PublishStatus
from retrysafe.testing.consumers import ConsumerFeatures
from retrysafe.testing.publishers import Publishing
from tests.faults.proxies.proxy import Proxy
from tests.messaging.roads import Road
from tests.versions import variable_of

PARTITIONS = 4


class Place(NamedTuple):
    """The place of a test's messages: at a broker, under a name, in a topic over partitions, for a group."""

    url: str
    name: str
    topic: str
    group: str
    partitions: int


class Mortal(Protocol):
    """A broker that can be killed, and started again."""

    @property
    def url(self) -> str: ...

    def kill(self) -> None:
        """Let nobody reach it."""
        ...

    def start(self) -> None:
        """Let it be there again, with what it had."""
        ...

    def close(self) -> None:
        """Remove it."""
        ...


class Killed(NamedTuple):
    """A broker that is killed while a pipeline runs.

    kind: the name of its harness.
    service: that must be there.
    others_go_on: whether it is one of a cluster, which goes on without it.
    """

    kind: str
    service: str
    opened: Callable[[], Mortal]
    others_go_on: bool = False


class Page(NamedTuple):
    """The broker of an example: a variable that names it, and the end of what examples leave there.

    value: of the variable, made of the broker's URL.
    """

    variable: str
    clean: Callable[[str], Awaitable[None]]
    value: Callable[[str], str] = str


class Harness(NamedTuple):
    """One broker, for the suites.

    name: of it in the names of tests.
    service: that it needs.
    bench: a class over a URL, for the suite of consumers.
    publishings: by name what opens a publisher, given a folder, for the suite of publishers.
    on_other_versions: which of them are opened on other versions of the service too.
    in_folder: its URL in a folder, where it needs no service.
    library: the module that takes long to import, if any.
    group: the options of `retrysafe inbox run` for the group of a `Broker` of a name, with both in braces.
    killed: by name the brokers that are killed under the pipeline.
    page: for the documentation's examples.
    left, remove: how many messages a group has not settled; and the end of what a `Broker` has made.
    """

    name: str
    service: str | None = None
    bench: Any = None
    publishings: Mapping[str, Callable[[Path], AbstractAsyncContextManager[Publishing]]] = {}
    on_other_versions: Sequence[str] = ()
    in_folder: Callable[[Path], str] | None = None
    library: str = ""
    group: tuple[str, ...] = ()
    killed: Mapping[str, Killed] = {}
    page: Page | None = None
    left: Callable[[Place], Awaitable[int]] | None = None
    remove: Callable[[Place], Awaitable[None]] | None = None

    def url(self, folder: Path) -> str:
        """Return its URL; `KeyError` for a service that is not there."""
        if self.in_folder is not None:
            return self.in_folder(folder)
        return os.environ[variable_of(self.service)] if self.service else ""


class Bench:
    """A topic, spread over partitions; every consumer reaches the broker by a proxy of its own."""

    features = ConsumerFeatures()
    framing: ClassVar[Any]
    proxy: ClassVar[type[Proxy]] = Proxy
    publisher: Any

    def __init__(self, url: str, **options: Any) -> None:
        self.url, self.options = url, options
        self.topic = f"suite-{secrets.token_hex(6)}"
        self.proxies: dict[Consumer, Proxy] = {}

    async def consumer(self) -> Consumer:
        parts = urlsplit(self.url)
        proxy = self.proxy((parts.hostname or "127.0.0.1", parts.port or self.framing.default_port), self.framing)
        credentials, _, _ = parts.netloc.rpartition("@")
        url = parts._replace(netloc=f"{credentials}{'@' * bool(credentials)}127.0.0.1:{proxy.port}").geturl()
        made = self.make(url)
        self.proxies[made] = proxy
        return made

    def make(self, url: str) -> Consumer:
        raise NotImplementedError

    async def crash(self, consumer: Consumer) -> None:
        """The broker hears nothing more of it."""
        self.proxies[consumer].close()
        await consumer.aclose()
        del self.proxies[consumer]

    async def publish(self, envelopes: Sequence[Envelope]) -> None:
        """One after the other, so that the order is that of the list."""
        for envelope in envelopes:
            (published,) = await self.publisher.publish([envelope])
            assert published.status in (PublishStatus.ACKED, PublishStatus.DUPLICATE), published

    async def clean(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        """Consumers are closed by those who opened them."""
        await self.clean()
        await self.publisher.aclose()
        for proxy in self.proxies.values():
            proxy.close()


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
    return Road(parts.hostname or "127.0.0.1", parts.port or 0, parts.scheme)


class BehindARoad:
    """The shared stand-in for a service of a cloud, by a road that is closed: if killed, it would forget everything."""

    def __init__(self, service: str) -> None:
        url = os.environ[variable_of(service)]
        (endpoint,) = parse_qs(urlsplit(url).query)["endpoint"]
        self._road = road_to(endpoint)
        self.url = url.replace(endpoint, f"http://127.0.0.1:{self._road.port}")

    def kill(self) -> None:
        """Cut every connection, and refuse new ones."""
        self._road.close()

    def start(self) -> None:
        """Let connections through."""
        self._road.open()

    def close(self) -> None:
        """Close the road."""
        self._road.close()
