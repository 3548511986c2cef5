"""Google Pub/Sub, set up wrongly: subscriptions that lose order and messages, and a topic without one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from retrysafe.messaging.brokers import pubsub
from retrysafe.protocol.checks import Severity
from tests.doctor.setups.form import ERROR, WARNING, Arguments, Ground, Setup, unique
from tests.messaging.harnesses import pubsub as on_pubsub

WEEK = 7 * 86400
SOUND: dict[str, Any] = {
    "ack_deadline_seconds": 10,
    "enable_message_ordering": True,
    "message_retention_duration": {"seconds": WEEK},
    "expiration_policy": {},
}


def _created(finds: str, severity: Severity, broken: str, made: str, **settings: Any) -> Setup:
    """A topic, and the subscription of a service to it."""

    @contextmanager
    def make(ground: Ground) -> Iterator[Arguments]:
        url, name = ground.service("pubsub"), unique()
        asyncio.run(_create(url, name, settings))
        try:
            yield ["--broker", url, "--topic", name]
        finally:
            _remove(url, name)

    return Setup(broken, made, finds, severity, make)


async def _create(url: str, name: str, settings: dict[str, Any]) -> None:
    project = on_pubsub.options_of(url)["project"]
    topic, dead = (f"projects/{project}/topics/{one}" for one in (name, f"{name}-dead"))
    path = f"projects/{project}/subscriptions/stock.{name}"
    if "dead_letter_policy" in settings:
        settings = {**settings, "dead_letter_policy": {**settings["dead_letter_policy"], "dead_letter_topic": dead}}
    async with on_pubsub.service(url) as clients:
        for one in (topic, dead):
            await clients.publisher.create_topic(name=one)
        await clients.subscriber.create_subscription({"name": path, "topic": topic, **SOUND, **settings})


def _remove(url: str, name: str) -> None:
    asyncio.run(on_pubsub.without(url, name, "stock", "mail", prefix=""))
    asyncio.run(on_pubsub.without(url, f"{name}-dead", prefix=""))


@contextmanager
def sound(ground: Ground) -> Iterator[Arguments]:
    """A topic with a subscription, as `declare` makes them."""
    url, name = ground.service("pubsub"), unique()
    asyncio.run(pubsub.declare(topics=name, group="mail", **on_pubsub.options_of(url)))
    try:
        yield ["--broker", url, "--topic", name]
    finally:
        _remove(url, name)


@contextmanager
def _missing(ground: Ground) -> Iterator[Arguments]:
    yield ["--broker", ground.service("pubsub"), "--topic", unique()]


@contextmanager
def _lonely(ground: Ground) -> Iterator[Arguments]:
    url, name = ground.service("pubsub"), unique()
    asyncio.run(pubsub.declare(topics=name, **on_pubsub.options_of(url)))
    try:
        yield ["--broker", url, "--topic", name]
    finally:
        _remove(url, name)


BROKEN = (
    Setup("There is no such topic.", "nothing declared", "pubsub-topic", ERROR, _missing),
    Setup("Nobody gets what is published.", "a topic alone", "pubsub-subscription", ERROR, _lonely),
    _created(
        "pubsub-order",
        WARNING,
        "Messages of a key may overtake each other.",
        "`enable_message_ordering=False`",
        enable_message_ordering=False,
    ),
    _created(
        "pubsub-dead-letters",
        WARNING,
        "Messages are moved away whose consumers crashed, and later ones pass.",
        "`max_delivery_attempts=5`",
        dead_letter_policy={"max_delivery_attempts": 5},
    ),
    _created(
        "pubsub-retention",
        WARNING,
        "Messages are lost while consumers are down for an hour.",
        "`message_retention_duration=1h`",
        message_retention_duration={"seconds": 3600},
    ),
    _created(
        "pubsub-expiration",
        WARNING,
        "A subscription that nobody uses is deleted with its messages.",
        "`expiration_policy=31d`",
        expiration_policy={"ttl": {"seconds": 31 * 86400}},
    ),
)
