"""Azure Service Bus, set up wrongly: what loses order and messages, and a topic without a subscription."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from retrysafe.messaging.brokers import servicebus
from tests.doctor.setups.form import ERROR, WARNING, Arguments, Ground, Making, Setup, unique
from tests.messaging.harnesses import servicebus as on_servicebus

TOPIC: dict[str, Any] = {"requires_duplicate_detection": True}
SUBSCRIPTION: dict[str, Any] = {"requires_session": True, "max_delivery_count": 2000}


def _created(topic: dict[str, Any], subscription: dict[str, Any] | None) -> Making:
    """A topic, and the subscription of a service to it, if it has one."""

    @contextmanager
    def make(ground: Ground) -> Iterator[Arguments]:
        url, name = ground.service("servicebus"), unique()
        asyncio.run(_create(url, name, topic, subscription))
        try:
            yield ["--broker", url, "--topic", name]
        finally:
            asyncio.run(on_servicebus.without(url, name, prefix=""))

    return make


def _subscribed(finds: str, broken: str, made: str, **settings: Any) -> Setup:
    return Setup(broken, made, finds, WARNING, _created(TOPIC, settings))


async def _create(url: str, name: str, topic: dict[str, Any], subscription: dict[str, Any] | None) -> None:
    async with on_servicebus.administration(url) as client:
        await client.create_topic(name, **topic)
        if subscription is not None:
            await client.create_subscription(name, "stock", **{**SUBSCRIPTION, **subscription})


@contextmanager
def sound(ground: Ground) -> Iterator[Arguments]:
    """A queue, and a topic with its subscription, as `declare` makes them."""
    url, queue, topic = ground.service("servicebus"), unique(), unique()
    asyncio.run(servicebus.declare(url, queue))
    asyncio.run(servicebus.declare(url, topic, group="mail"))
    try:
        yield ["--broker", url, "--topic", queue, "--topic", topic]
    finally:
        for name in (queue, topic):
            asyncio.run(on_servicebus.without(url, name, prefix=""))


@contextmanager
def _missing(ground: Ground) -> Iterator[Arguments]:
    yield ["--broker", ground.service("servicebus"), "--topic", unique()]


BROKEN = (
    Setup("There is no such queue or topic.", "nothing declared", "servicebus-entity", ERROR, _missing),
    Setup(
        "Nobody gets what is published.",
        "a topic alone",
        "servicebus-subscription",
        ERROR,
        _created(TOPIC, None),
    ),
    Setup(
        "What is published again is handed out again.",
        "`requires_duplicate_detection=False`",
        "servicebus-duplicates",
        WARNING,
        _created({}, {}),
    ),
    _subscribed(
        "servicebus-sessions",
        "Messages of a key may overtake each other.",
        "`requires_session=False`",
        requires_session=False,
    ),
    _subscribed(
        "servicebus-deliveries",
        "Messages are moved away whose consumers crashed, and later ones pass.",
        "`max_delivery_count=10`",
        max_delivery_count=10,
    ),
    _subscribed(
        "servicebus-retention",
        "Messages are lost while consumers are down for an hour.",
        "`default_message_time_to_live=1h`",
        default_message_time_to_live=timedelta(hours=1),
    ),
    Setup(
        "Messages are lost while consumers are down for an hour, whatever their subscription says.",
        "`default_message_time_to_live=1h` of the topic",
        "servicebus-retention",
        WARNING,
        _created({**TOPIC, "default_message_time_to_live": timedelta(hours=1)}, {}),
    ),
    Setup(
        "A topic that nobody uses is deleted, with its subscriptions and their messages.",
        "`auto_delete_on_idle=31d` of the topic",
        "servicebus-idle",
        WARNING,
        _created({**TOPIC, "auto_delete_on_idle": timedelta(days=31)}, {}),
    ),
    _subscribed(
        "servicebus-idle",
        "A subscription that nobody uses is deleted with its messages.",
        "`auto_delete_on_idle=31d`",
        auto_delete_on_idle=timedelta(days=31),
    ),
)
