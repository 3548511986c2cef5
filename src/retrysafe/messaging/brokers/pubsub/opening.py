"""Pub/Sub from a URL such as pubsub://my-project, with the credentials of the environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from retrysafe.backends.urls import without_password
from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.base import Broker
from retrysafe.messaging.brokers.pubsub.consumer import PubSubConsumer
from retrysafe.messaging.brokers.pubsub.publisher import PubSubPublisher
from retrysafe.messaging.brokers.pubsub.topology import declare
from retrysafe.protocol.records import Duration


def options_of(url: str) -> dict[str, Any]:
    """The project and the endpoint of a URL. Raises `ConfigurationError` for anything else in it."""
    parts = urlsplit(url)
    options: dict[str, Any] = dict(parse_qsl(parts.query))
    if not parts.netloc or parts.path not in ("", "/") or options.keys() - {"endpoint"}:
        raise ConfigurationError(
            f"{without_password(url)!r}: write pubsub://PROJECT or pubsub://PROJECT?endpoint=…; topics have names."
        )
    return {"project": parts.netloc, **options}


def publisher(url: str, **options: Any) -> PubSubPublisher:
    """The publisher of `retrysafe relay`."""
    return PubSubPublisher(**options_of(url), **options)


def consumer(url: str, topics: Sequence[str], *, group: str, **options: Any) -> PubSubConsumer:
    """The consumer of `retrysafe inbox run`."""
    return PubSubConsumer(topics=topics, group=group, **options_of(url), **options)


async def declaration(url: str, topics: Sequence[str], **options: Any) -> None:
    """Make topics and subscriptions for `retrysafe topics declare`."""
    await declare(topics=topics, **options_of(url), **options)


def broker(url: str, *, name: str, partitions: int | None, lease: Duration) -> Broker:
    """Topics whose names begin with our name, with a subscription for each group; the lanes are ordering keys."""
    options_of(url)  # refuses a wrong one at once
    prefix = f"{name}-"
    return Broker(
        lambda topics, group: declaration(url, topics, group=group, prefix=prefix, lease=lease),
        lambda: publisher(url, prefix=prefix),
        lambda topic, group: consumer(url, [topic], group=group, prefix=prefix, poll="1s"),
    )
