"""The checks of queues and topics of Service Bus, and of subscriptions. Only who may manage a namespace can ask."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import QueueProperties, SubscriptionProperties, TopicProperties

from retrysafe.messaging.brokers.checks import BrokerExamination, checks_of, error, warning
from retrysafe.messaging.brokers.servicebus.client import namespace_of
from retrysafe.messaging.brokers.servicebus.messages import name_of
from retrysafe.messaging.brokers.spec import declaring
from retrysafe.protocol.checks import Facts

_WITHIN = 4.0
_DAY = timedelta(days=1)
_FOR_EVER = timedelta(days=36500)
_OFTEN = 100
"""The number of times that a message may well be handed out if its consumers crash."""
_UPDATE = "az servicebus topic subscription update"
_MADE = declaring(group="GROUP")


class _Entity(NamedTuple):
    """A queue or topic, and what can be received from: the queue itself, or the topic's subscriptions, by names."""

    sending: QueueProperties | TopicProperties
    receiving: dict[str, QueueProperties | SubscriptionProperties]


async def _gather(url: str, topics: tuple[str, ...]) -> Facts:
    """The settings of entities by their names; those that are missing."""
    missing, entities = [], {}
    async with namespace_of(url).administration(_WITHIN) as service:
        for topic in topics:
            name = name_of("", topic)
            found = await _topic(service, name) or await _queue(service, name)
            if found is None:
                missing.append(name)
            else:
                entities[name] = found
    sending: dict[str, Any] = {name: entity.sending for name, entity in entities.items()}
    receiving = {name: settings for entity in entities.values() for name, settings in entity.receiving.items()}
    return {"missing": missing, "entities": entities, "receiving": receiving, "all": sending | receiving}


async def _topic(service: ServiceBusAdministrationClient, name: str) -> _Entity | None:
    try:
        topic = await service.get_topic(name)
    except (ResourceNotFoundError, AttributeError):  # which the library raises for a queue
        return None
    return _Entity(topic, {f"{name}/{one.name}": one async for one in service.list_subscriptions(name)})


async def _queue(service: ServiceBusAdministrationClient, name: str) -> _Entity | None:
    try:
        queue = await service.get_queue(name)
    except ResourceNotFoundError:
        return None
    return _Entity(queue, {name: queue})


def _shorter(duration: timedelta | str | None, than: timedelta) -> bool:
    return isinstance(duration, timedelta) and duration < than


CHECKS = checks_of(
    "how-to/servicebus.md",
    error(
        "servicebus-entity",
        "missing",
        bool,
        "Are the queues and topics there?",
        "No queue or topic {}.",
        f"Make them with  {_MADE}",
    ),
    error(
        "servicebus-subscription",
        "entities",
        lambda entity: not entity.receiving,
        "Does a subscription get what is published?",
        "Without a subscription, what is published is lost: {}.",
        f"Let each service declare its own:  {_MADE}",
    ),
    warning(
        "servicebus-sessions",
        "receiving",
        lambda set_: not set_.requires_session,
        "Do messages of a key keep their order?",
        "Without sessions there is no order: {}.",
        "Make another queue or subscription with ordered=True (it cannot be changed), and delete this one when it is "
        "empty.",
    ),
    warning(
        "servicebus-deliveries",
        "receiving",
        lambda set_: (set_.max_delivery_count or 10) < _OFTEN,
        "Is it the inbox that gives messages up?",
        "Service Bus moves messages away that were handed out too often, also to consumers that crashed, and lets "
        "later ones of their sessions pass: {}.",
        f"{_UPDATE} --max-delivery-count 2000; the inbox counts attempts, and keeps dead letters",
    ),
    warning(
        "servicebus-duplicates",
        "entities",
        lambda entity: not entity.sending.requires_duplicate_detection,
        "Is a message recognised that is published again?",
        "What is published again is handed out again: {}.",
        "Make another queue or topic with duplicate detection, as declare does (it cannot be changed); without it the "
        "inbox drops duplicates alone.",
    ),
    warning(
        "servicebus-retention",
        "all",
        lambda set_: _shorter(set_.default_message_time_to_live, _DAY),
        "Are messages kept while consumers are down?",
        "Messages expire that wait for less than a day: {}.",
        f"{_UPDATE} --default-message-time-to-live P7D",
    ),
    warning(
        "servicebus-idle",
        "all",
        lambda set_: _shorter(set_.auto_delete_on_idle, _FOR_EVER),
        "Does a queue or subscription stay that nobody uses?",
        "It is deleted, with what it keeps, when nobody used it for a while: {}.",
        f"{_UPDATE} --auto-delete-on-idle P10675199D",
    ),
)


def _retention(facts: Facts) -> Mapping[str, float]:
    """The shorter of the times to live of a topic and its subscription counts."""
    found = {
        name: (entity.sending.default_message_time_to_live, settings.default_message_time_to_live)
        for entity in facts["entities"].values()
        for name, settings in entity.receiving.items()
    }
    bounds = {name: [one for one in lives if _shorter(one, _FOR_EVER)] for name, lives in found.items()}
    return {name: min(lives).total_seconds() for name, lives in bounds.items() if lives}


EXAMINATION = BrokerExamination(CHECKS, _gather, _retention)
