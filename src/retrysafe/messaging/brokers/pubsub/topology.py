"""The topics and subscriptions in which publishers and consumers meet."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from google.api_core.exceptions import AlreadyExists, GoogleAPICallError

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.pubsub.client import PubSubService
from retrysafe.messaging.brokers.pubsub.messages import subscription_path, topic_path
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.records import Duration


async def declare(
    project: str,
    topics: str | Iterable[str],
    *,
    group: str | None = None,
    prefix: str = "",
    ordered: bool = True,
    keep: Duration = "7d",
    lease: Duration = "60s",
    exactly_once: bool = False,
    endpoint: str | None = None,
    within: Duration = "10s",
) -> None:
    """Make topics, and the subscriptions of a group to them; what is there stays as it is.

    What is published to a topic before a group has its subscription never reaches that group.

    A subscription gets no dead-letter topic: that would count crashes of innocent consumers, and let later messages of
    a key pass. Whether a message is given up is decided, and remembered, by the inbox. An unused subscription
    stays, which by default would end after 31 days, with what it keeps.

    Arguments:
        project: of Google Cloud.
        topics: one or more.
        group: the consumers that together take each message once, such as "inventory"; by default topics are made
            without subscriptions.
        prefix: of the names, as publishers and consumers are told.
        ordered: whether messages of a key keep their order.
        keep: how long a subscription keeps a message: from 10 minutes to 31 days.
        lease: for how long the messages of a consumer that is dead or cut off are hidden from others: the
            acknowledgement deadline, from 10 seconds to 10 minutes.
        exactly_once: whether the service takes care, within a region, that a message which was acknowledged does not
            come again; acknowledgements take longer then, and a ``lease`` should be 60 seconds or more.
        endpoint: as for `PubSubPublisher`.
        within: how long each call may take.

    Raises `ConfigurationError` when the service refuses.
    """
    service = PubSubService(endpoint, seconds_of(within, "within"))
    wanted = {
        "ack_deadline_seconds": round(seconds_of(lease, "lease")),
        "enable_message_ordering": ordered,
        "enable_exactly_once_delivery": exactly_once,
        "expiration_policy": {},
        "message_retention_duration": timedelta(seconds=seconds_of(keep, "keep")),
    }
    how: dict[str, Any] = {"retry": None, "timeout": service.timeout}
    try:
        clients = await service.open()
        for topic in [topics] if isinstance(topics, str) else topics:
            path = topic_path(project, prefix, topic)
            with suppress(AlreadyExists):
                await clients.publisher.create_topic(name=path, **how)
            if group is not None:
                name = subscription_path(project, prefix, topic, group)
                subscription = {**wanted, "name": name, "topic": path}
                with suppress(AlreadyExists):
                    await clients.subscriber.create_subscription(subscription, **how)
    except (GoogleAPICallError, ValueError) as error:
        raise ConfigurationError(f"Pub/Sub refuses: {error}") from error
    finally:
        await service.aclose()


def retention_of(settings: Any) -> float:
    """For how many seconds a subscription with these settings may hand a message out again."""
    return float(max(settings.message_retention_duration.seconds, settings.topic_message_retention_duration.seconds))
