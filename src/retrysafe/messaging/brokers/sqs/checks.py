"""The checks of queues of SQS and topics of SNS."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

from botocore.exceptions import ClientError

from retrysafe.messaging.brokers.checks import BrokerExamination, checks_of, error, warning
from retrysafe.messaging.brokers.spec import declaring
from retrysafe.messaging.brokers.sqs.client import Service, TopicMissing, is_missing, topic_named
from retrysafe.messaging.brokers.sqs.opening import options_of
from retrysafe.protocol.checks import Facts

_WITHIN = 4.0
_DAY = 86400
_RETENTION = "MessageRetentionPeriod"
_OFTEN = 100
"""The number of times that a message may well be received if its consumers crash."""
_DECLARE = f"Make them with  {declaring()}"


async def _gather(url: str, names: tuple[str, ...]) -> Facts:
    """The settings of queues, or of topics, by their names; those that are missing."""
    kind = urlsplit(url).scheme
    options = options_of(url)
    service = Service(kind, options.get("region"), options.get("endpoint"), _WITHIN)
    find = _topic if kind == "sns" else _queue
    try:
        settings = {name: await find(service, f"{name}.fifo") or await find(service, name) for name in names}
    finally:
        await service.aclose()
    known = {name: attributes for name, attributes in settings.items() if attributes is not None}
    missing = sorted(settings.keys() - known.keys())
    return {"missing": missing, "queues": {}, "topics": {}, "topics" if kind == "sns" else "queues": known}


async def _queue(service: Service, name: str) -> dict[str, str] | None:
    try:
        url = (await service.call("get_queue_url", QueueName=name))["QueueUrl"]
    except ClientError as error:
        if is_missing(error):
            return None
        raise
    return {**(await service.call("get_queue_attributes", QueueUrl=url, AttributeNames=["All"])).get("Attributes", {})}


async def _topic(service: Service, name: str) -> dict[str, str] | None:
    with suppress(TopicMissing):
        topic = await topic_named(service, name)
        return {**(await service.call("get_topic_attributes", TopicArn=topic))["Attributes"]}
    return None


CHECKS = checks_of(
    "how-to/sqs.md",
    error(
        "sqs-queue",
        "missing",
        bool,
        "Are the queues and topics there?",
        "No queue or topic {}.",
        _DECLARE,
    ),
    warning(
        "sqs-order",
        "queues",
        lambda set_: set_.get("FifoQueue") != "true",
        "Do messages of a key keep their order?",
        "Not FIFO, so without any order: {}.",
        "Declare a FIFO queue (ordered=True), and delete this one when it is empty.",
    ),
    warning(
        "sqs-dead-letters",
        "queues",
        lambda set_: int(json.loads(set_.get("RedrivePolicy") or "{}").get("maxReceiveCount", _OFTEN)) < _OFTEN,
        "Is it the inbox that gives messages up?",
        "SQS moves messages away that were received too often, also by consumers that crashed, and lets later ones "
        "of their keys pass: {}.",
        "Take the redrive policy from the queue (aws sqs set-queue-attributes --attributes RedrivePolicy=), or give it "
        "maxReceiveCount=1000; the inbox counts attempts, and keeps dead letters",
    ),
    warning(
        "sqs-retention",
        "queues",
        lambda set_: int(set_.get(_RETENTION, _DAY)) < _DAY,
        "Are messages kept while consumers are down?",
        "Messages are lost that wait for less than a day: {}.",
        "aws sqs set-queue-attributes --attributes MessageRetentionPeriod=345600",
    ),
    error(
        "sns-subscription",
        "topics",
        lambda set_: int(set_.get("SubscriptionsConfirmed", "0")) < 1,
        "Does a queue get what is published?",
        "Without a subscription, what is published is lost: {}.",
        f"Let each service declare its queues:  {declaring(group='GROUP')}",
    ),
)


def _retention(facts: Facts) -> Mapping[str, float]:
    return {name: float(settings[_RETENTION]) for name, settings in facts["queues"].items() if _RETENTION in settings}


EXAMINATION = BrokerExamination(CHECKS, _gather, _retention)
