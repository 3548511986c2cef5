"""The checks of topics of Pub/Sub and of their subscriptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.api_core.exceptions import NotFound
from google.pubsub_v1 import types

from retrysafe.messaging.brokers.checks import BrokerExamination, checks_of, error, warning
from retrysafe.messaging.brokers.pubsub.client import PubSubClients, PubSubService
from retrysafe.messaging.brokers.pubsub.messages import topic_path
from retrysafe.messaging.brokers.pubsub.opening import options_of
from retrysafe.messaging.brokers.pubsub.topology import retention_of
from retrysafe.messaging.brokers.spec import declaring
from retrysafe.protocol.checks import Facts

_WITHIN = 4.0
_DAY = 86400
_OFTEN = 100
"""The number of times that a message may well be handed out if its consumers crash: the most that a policy allows."""
_UPDATE = "gcloud pubsub subscriptions update"


async def _gather(url: str, names: tuple[str, ...]) -> Facts:
    """The settings of the subscriptions of topics, by their names; topics that are missing, or have none."""
    options = options_of(url)
    service = PubSubService(options.get("endpoint"), _WITHIN)
    missing, lonely, subscriptions = [], [], {}
    try:
        clients = await service.open()
        for name in names:
            try:
                found = await _subscriptions(clients, topic_path(options["project"], "", name))
            except NotFound:
                missing.append(name)
                continue
            subscriptions.update(found)
            if not found:
                lonely.append(name)
    finally:
        await service.aclose()
    return {"missing": missing, "lonely": lonely, "subscriptions": subscriptions}


async def _subscriptions(clients: PubSubClients, topic: str) -> dict[str, Any]:
    how: dict[str, Any] = {"retry": None, "timeout": _WITHIN}
    await clients.publisher.get_topic(topic=topic, **how)
    found = {}
    async for path in await clients.publisher.list_topic_subscriptions(topic=topic, **how):
        told = await clients.subscriber.get_subscription(subscription=path, **how)
        found[path.rpartition("/")[2]] = types.Subscription.pb(told)
    return found


CHECKS = checks_of(
    "how-to/pubsub.md",
    error(
        "pubsub-topic",
        "missing",
        bool,
        "Are the topics there?",
        "No topic {}.",
        f"Make them with  {declaring(group='GROUP')}",
    ),
    error(
        "pubsub-subscription",
        "lonely",
        bool,
        "Does a subscription get what is published?",
        "Without a subscription, what is published is lost: {}.",
        f"Let each service declare its own:  {declaring(group='GROUP')}",
    ),
    warning(
        "pubsub-order",
        "subscriptions",
        lambda set_: not set_.enable_message_ordering,
        "Do messages of a key keep their order?",
        "Without any order: {}.",
        "Make another subscription with ordered=True (it cannot be changed), and delete this one when it is empty.",
    ),
    warning(
        "pubsub-dead-letters",
        "subscriptions",
        lambda set_: 0 < set_.dead_letter_policy.max_delivery_attempts < _OFTEN,
        "Is it the inbox that gives messages up?",
        "Pub/Sub moves messages away that were handed out too often, also to consumers that crashed, and lets "
        "later ones of their keys pass: {}.",
        f"{_UPDATE} NAME --clear-dead-letter-policy, or --max-delivery-attempts=100; the inbox counts attempts, and "
        "keeps dead letters",
    ),
    warning(
        "pubsub-retention",
        "subscriptions",
        lambda set_: set_.message_retention_duration.seconds < _DAY,
        "Are messages kept while consumers are down?",
        "Messages are lost that wait for less than a day: {}.",
        f"{_UPDATE} NAME --message-retention-duration=7d",
    ),
    warning(
        "pubsub-expiration",
        "subscriptions",
        lambda set_: bool(set_.expiration_policy.ttl.seconds),
        "Does a subscription stay that nobody uses?",
        "It is deleted, with what it keeps, when no consumer was there for its expiration period: {}.",
        f"{_UPDATE} NAME --expiration-period=never",
    ),
)


def _retention(facts: Facts) -> Mapping[str, float]:
    return {name: retention_of(settings) for name, settings in facts["subscriptions"].items()}


EXAMINATION = BrokerExamination(CHECKS, _gather, _retention)
