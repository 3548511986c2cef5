"""SQS and SNS from a URL such as sqs://?region=eu-central-1, whose credentials are those of the environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from retrysafe.backends.urls import without_password
from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.base import Broker
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


def broker(url: str, *, name: str, partitions: int | None, lease: Duration) -> Broker:
    """FIFO topics whose names begin with our name, to which each group's queues subscribe; the lanes are the groups."""
    shared: dict[str, Any] = {"prefix": f"{name}-", **options_of(url)}
    return Broker(
        lambda topics, group: declare(topics, group=group, **shared),
        lambda: SnsPublisher(**shared),
        lambda topic, group: SqsConsumer(topic, group=group, lease=lease, poll="1s", **shared),
    )
