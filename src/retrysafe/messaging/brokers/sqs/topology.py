"""The queues of SQS and topics of SNS in which publishers and consumers meet."""

from __future__ import annotations

import json
from collections.abc import Iterable

from botocore.exceptions import ClientError

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.sqs.client import Service
from retrysafe.messaging.brokers.sqs.messages import name_of
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.records import Duration


async def declare(
    topics: str | Iterable[str],
    *,
    group: str | None = None,
    prefix: str = "",
    ordered: bool = True,
    keep: Duration = "4d",
    region: str | None = None,
    endpoint: str | None = None,
    within: Duration = "10s",
) -> None:
    """Make the queues of topics; what is there and alike stays as it is.

    Without a group a topic has one queue, and each of its messages reaches one consumer. Where several services must
    each get every message, each makes queues of its own, as its ``group``, which subscribe to a topic of SNS.

    A queue gets no redrive policy: it would count crashes of innocent consumers, and let later messages of a key pass.
    Whether a message is given up is decided, and remembered, by the inbox.

    Arguments:
        topics: one or more.
        group: the service whose queues these are, as its consumers are told.
        prefix: of the names, as publishers and consumers are told.
        ordered: whether queues and topics are FIFO.
        keep: how long a queue keeps a message: from 1 minute to 14 days.
        region, endpoint: as for `SqsPublisher`.
        within: how long each call may take.

    Raises `ConfigurationError` when the service refuses, as for a queue that is there with other settings.
    """
    patience = seconds_of(within, "within")
    queues, notifications = (Service(name, region, endpoint, patience) for name in ("sqs", "sns"))
    settings = {"MessageRetentionPeriod": str(round(seconds_of(keep, "keep")))}
    if ordered:
        settings |= {
            "FifoQueue": "true",
            "DeduplicationScope": "messageGroup",
            "FifoThroughputLimit": "perMessageGroupId",
        }
    try:
        for topic in [topics] if isinstance(topics, str) else topics:
            name = name_of(prefix, queue_of(topic, group), ordered=ordered)
            url = (await queues.call("create_queue", QueueName=name, Attributes=settings))["QueueUrl"]
            if group is not None:
                await _subscribe(queues, notifications, url, name_of(prefix, topic, ordered=ordered), ordered=ordered)
    except (ClientError, ValueError) as error:
        raise ConfigurationError(f"SQS or SNS refuses: {error}") from error
    finally:
        await queues.aclose()
        await notifications.aclose()


async def _subscribe(queues: Service, notifications: Service, url: str, name: str, *, ordered: bool) -> None:
    kind = {"FifoTopic": "true", "ContentBasedDeduplication": "false"} if ordered else {}
    topic = (await notifications.call("create_topic", Name=name, Attributes=kind))["TopicArn"]
    asked = ["QueueArn", "Policy"]
    told = (await queues.call("get_queue_attributes", QueueUrl=url, AttributeNames=asked))["Attributes"]
    queue = told["QueueArn"]
    policy = _allowing(told.get("Policy") or "{}", queue, topic)
    if policy is not None:
        await queues.call("set_queue_attributes", QueueUrl=url, Attributes={"Policy": policy})
    await notifications.call(
        "subscribe",
        TopicArn=topic,
        Protocol="sqs",
        Endpoint=queue,
        Attributes={"RawMessageDelivery": "true"},
        ReturnSubscriptionArn=True,
    )


def _allowing(policy: str, queue: str, topic: str) -> str | None:
    """The policy of a queue with leave for a topic to send to it; None if it has that."""
    found = json.loads(policy)
    statements = found.get("Statement", [])
    statements = statements if isinstance(statements, list) else [statements]
    ours = {
        "Sid": f"retrysafe-{topic.rpartition(':')[2]}",
        "Effect": "Allow",
        "Principal": {"Service": "sns.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": queue,
        "Condition": {"ArnEquals": {"aws:SourceArn": topic}},
    }
    if any(one.get("Sid") == ours["Sid"] for one in statements):
        return None
    return json.dumps({"Version": "2012-10-17", **found, "Statement": [*statements, ours]})


def queue_of(topic: str, group: str | None) -> str:
    """The queue of a topic: its own name, or that of a group for it."""
    return topic if group is None else f"{group}.{topic}"
