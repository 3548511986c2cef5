"""SQS and SNS from a URL such as sqs://?region=eu-central-1, whose credentials are those of the environment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from retrysafe.backends.urls import without_password
from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.sqs.consumer import SqsConsumer
from retrysafe.messaging.brokers.sqs.publisher import SnsPublisher, SqsPublisher
from retrysafe.messaging.brokers.sqs.topology import declare
from retrysafe.protocol.records import Duration


def options_of(url: str) -> dict[str, Any]:
    """The region and the endpoint of a URL. Raises `ConfigurationError` for anything else in it."""
    parts = urlsplit(url)
    if parts.netloc or parts.path not in ("", "/"):
        raise ConfigurationError(
            f"{without_password(url)!r}: write {parts.scheme}://?region=…&endpoint=…; topics name the queues."
        )
    options: dict[str, Any] = dict(parse_qsl(parts.query))
    if unknown := options.keys() - {"region", "endpoint"}:
        raise ConfigurationError(
            f"{without_password(url)!r}: it has no option {min(unknown)!r}, only region and endpoint."
        )
    return options


def publisher(url: str, **options: Any) -> SqsPublisher | SnsPublisher:
    """The publisher of `retrysafe relay`: to queues, or to topics of SNS."""
    kind = SnsPublisher if urlsplit(url).scheme == "sns" else SqsPublisher
    return kind(**options_of(url), **options)


def consumer(url: str, topics: Sequence[str], *, group: str, **options: Any) -> SqsConsumer:
    """The consumer of `retrysafe inbox run`, of queues of SQS, also where they subscribe to topics of SNS."""
    return SqsConsumer(topics, group=group, **options_of(url), **options)


async def declaration(url: str, topics: Sequence[str], **options: Any) -> None:
    """Make queues for `retrysafe topics declare`."""
    await declare(topics, **options_of(url), **options)


class Fanout:
    """FIFO topics whose names begin with our name, to which each group's queues subscribe; the lanes are the groups."""

    def __init__(self, url: str, *, name: str, partitions: int | None, lease: Duration) -> None:
        self._options, self._prefix, self._lease = options_of(url), f"{name}-", lease

    async def declare(self, topics: Iterable[str], groups: Iterable[str]) -> None:
        """Make the topics and the queues."""
        topics = list(topics)
        for group in groups:
            await declare(topics, group=group, prefix=self._prefix, **self._options)

    def publisher(self) -> SnsPublisher:
        """A publisher to the topics."""
        return SnsPublisher(prefix=self._prefix, **self._options)

    def consumer(self, topic: str, group: str) -> SqsConsumer:
        """A consumer of the group's queue."""
        return SqsConsumer(topic, group=group, prefix=self._prefix, lease=self._lease, poll="1s", **self._options)
