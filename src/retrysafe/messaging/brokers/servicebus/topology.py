"""The queues, or topics and subscriptions, in which publishers and consumers meet."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from azure.core.exceptions import AzureError, ResourceExistsError

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.servicebus.client import namespace_of
from retrysafe.messaging.brokers.servicebus.messages import source_of
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.records import Duration

_DELIVERIES = 2000
"""The largest number of deliveries that the service accepts as its limit: the inbox counts attempts."""


async def declare(
    url: str,
    topics: str | Iterable[str],
    *,
    group: str | None = None,
    prefix: str = "",
    ordered: bool = True,
    keep: Duration = "7d",
    lease: Duration = "60s",
    recognise: Duration = "10m",
    megabytes: int = 1024,
    within: Duration = "10s",
) -> None:
    """Make a queue for each topic, or a topic with the subscription of a group; what is there stays as it is.

    What is published to a topic before a group has its subscription never reaches that group. Needs the right Manage.

    Arguments:
        url: of the namespace, as for `ServiceBusPublisher`.
        topics: one or more.
        group: the consumers that together take each message once, such as "inventory". None: a queue for each topic,
            whose consumers have no group.
        prefix: of the names, as publishers and consumers are told.
        ordered: whether messages have sessions, in which they keep their order. It cannot be changed later.
        keep: how long a message is kept. Then it goes to the dead letters of Service Bus.
        lease: for how long what a consumer has is kept from others when it is dead or cut off: the lock duration, from
            5 seconds to 5 minutes.
        recognise: for how long a message that is published again is recognised: from 20 seconds to 7 days.
        megabytes: how large the queue or topic may be.
        within: how long each request may take.

    Raises `ConfigurationError` when the service refuses.
    """
    patience = seconds_of(within, "within")
    kept = timedelta(seconds=seconds_of(keep, "keep"))
    receiving: dict[str, Any] = {
        "requires_session": ordered,
        "lock_duration": timedelta(seconds=seconds_of(lease, "lease")),
        "max_delivery_count": _DELIVERIES,
        "default_message_time_to_live": kept,
        "dead_lettering_on_message_expiration": True,
    }
    sending: dict[str, Any] = {
        "requires_duplicate_detection": True,
        "duplicate_detection_history_time_window": timedelta(seconds=seconds_of(recognise, "recognise")),
        "max_size_in_megabytes": megabytes,
        "default_message_time_to_live": kept,
    }
    try:
        async with namespace_of(url).administration(patience) as service:
            for topic in [topics] if isinstance(topics, str) else topics:
                source = source_of(prefix, topic, group)
                with suppress(ResourceExistsError):
                    if group is None:
                        await service.create_queue(source.name, **{**receiving, **sending})
                    else:
                        await service.create_topic(source.name, **sending)
                if group is not None:
                    with suppress(ResourceExistsError):
                        await service.create_subscription(source.name, group, **receiving)
    except (AzureError, ValueError) as error:
        raise ConfigurationError(f"Service Bus refuses: {error}") from error
