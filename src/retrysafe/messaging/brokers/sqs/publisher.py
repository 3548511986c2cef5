"""Amazon SQS and SNS: batches of messages, of each of which the service says how it took it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

from botocore.exceptions import ClientError

from retrysafe.messaging.brokers.base import broker_address_of
from retrysafe.messaging.brokers.publisher import ACKED, BatchLimits, BatchSession, BrokerPublisher, PublishEntry
from retrysafe.messaging.brokers.sqs.client import FAILURES, Service, is_missing, topic_named
from retrysafe.messaging.brokers.sqs.messages import content_of, name_of, order_of
from retrysafe.messaging.brokers.sqs.results import blames_one, result_of, result_of_answer
from retrysafe.messaging.cloudevents import Mode, require_mode
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus
from retrysafe.protocol.records import Duration

_SILENT = PublishResult(PublishStatus.UNKNOWN, "the service said nothing of it")
_AT_ONCE = 10
"""The largest number of messages in a batch."""
_TYPE = "String"


class _Address(NamedTuple):
    """The address of a queue or topic, and the largest sizes of its messages and batches."""

    name: str
    largest: int


class _SqsPublishing(BatchSession):
    service: ClassVar[str]
    _operation: ClassVar[str]
    _body: ClassVar[str]
    _request: ClassVar[tuple[str, str]]
    """The names of the address and of the entries in a request."""
    _errors = FAILURES
    _judge, _blames_one = staticmethod(result_of), staticmethod(blames_one)

    def __init__(self, client: Service, prefix: str, ordered: bool, mode: Mode) -> None:
        self._client, self._prefix, self._ordered = client, prefix, ordered
        self._mode: Mode = mode
        self._addresses: dict[str, _Address] = {}

    async def close(self) -> None:
        await self._client.aclose()

    def _encode(self, place: int, envelope: Envelope) -> tuple[str, PublishEntry]:
        name = name_of(self._prefix, envelope.topic, ordered=self._ordered)
        body, attributes = content_of(envelope, self._mode)
        fields: dict[str, Any] = {"Id": str(place), self._body: body, "MessageAttributes": attributes}
        if self._ordered:
            fields |= order_of(envelope)
        beside = sum(len(name) + len(_TYPE) + len(one["StringValue"].encode()) for name, one in attributes.items())
        return name, PublishEntry(place, fields, len(body.encode()) + beside)

    async def _limits(self, destination: str) -> BatchLimits:
        if destination not in self._addresses:
            self._addresses[destination] = await self._find(destination)
        largest = self._addresses[destination].largest
        return BatchLimits(_AT_ONCE, largest, largest)

    async def _send(self, destination: str, batch: Sequence[PublishEntry]) -> dict[int, PublishResult]:
        address, entries = self._request
        request: dict[str, Any] = {
            address: self._addresses[destination].name,
            entries: [entry.content for entry in batch],
        }
        try:
            answer = await self._client.call(self._operation, **request)
        except FAILURES as error:
            if is_missing(error):
                self._addresses.pop(destination, None)  # it may be made anew, elsewhere
            raise
        results = {int(one["Id"]): ACKED for one in answer.get("Successful", ())}
        results.update((int(one["Id"]), result_of_answer(one)) for one in answer.get("Failed", ()))
        return {entry.place: results.get(entry.place, _SILENT) for entry in batch}

    async def _find(self, name: str) -> _Address:
        raise NotImplementedError


class _SqsQueues(_SqsPublishing):
    service, _operation, _body, _request = "sqs", "send_message_batch", "MessageBody", ("QueueUrl", "Entries")

    async def _find(self, name: str) -> _Address:
        url: str = (await self._client.call("get_queue_url", QueueName=name))["QueueUrl"]
        largest = 1 << 20
        with suppress(ClientError):  # a right to send is not always one to ask
            found = await self._client.call("get_queue_attributes", QueueUrl=url, AttributeNames=["All"])
            largest = int(found.get("Attributes", {}).get("MaximumMessageSize", largest))
        return _Address(url, largest)


class _SnsTopics(_SqsPublishing):
    service, _operation, _body = "sns", "publish_batch", "Message"
    _request = ("TopicArn", "PublishBatchRequestEntries")

    async def _find(self, name: str) -> _Address:
        return _Address(await topic_named(self._client, name), 256 << 10)


class _AwsPublisher(BrokerPublisher[_SqsPublishing]):
    by_topic = True
    _sessions: ClassVar[type[_SqsPublishing]]

    def __init__(
        self,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        prefix: str = "",
        ordered: bool = True,
        mode: Mode = "binary",
        timeout: Duration = "10s",
    ) -> None:
        require_mode(mode)
        self._prefix, within = prefix, seconds_of(timeout, "timeout")
        self.broker_address = broker_address_of(
            f"{self._sessions.service}://{urlsplit(endpoint or '').netloc or region}", prefix
        )

        def new_session() -> _SqsPublishing:
            return self._sessions(Service(self._sessions.service, region, endpoint, within), prefix, ordered, mode)

        super().__init__(new_session)

    def destination(self, envelope: Envelope, /) -> str:
        """The queue or topic that takes a message."""
        return f"{self._prefix}{envelope.topic}"


class SqsPublisher(_AwsPublisher):
    """Sends each message to the queue named like its topic, and waits for the service's answers.

    An answer means that several servers of SQS have the message. Make the queue before, with
    `retrysafe.messaging.brokers.sqs.declare`. One that is missing, that we may not use or that is throttled keeps its
    own messages waiting, which spend no attempt. A message that is larger than the queue takes is given up before it is
    sent. A FIFO queue recognises one that comes again within 5 minutes, and takes it without a word.

    Arguments:
        region: of AWS; by default what the environment says. So are the credentials.
        endpoint: the URL of the service, if it is not that of AWS.
        prefix: of the names of queues.
        ordered: whether queues are FIFO: messages of one key keep their order.
        mode: where the attributes of a CloudEvent are: "binary", in attributes of the message, or "structured", in its
            body. An event that does not fit into ten attributes and a body of text is always in the body.
        timeout: how long the service may take; a message without an answer is sent again, under the same id.
    """

    _sessions = _SqsQueues


class SnsPublisher(_AwsPublisher):
    """Publishes each message to the topic of SNS named like its topic, from where every queue that subscribes has it.

    An answer means that SNS has the message; that the queues get it is then its duty. Make the topic and its queues
    before, with `retrysafe.messaging.brokers.sqs.declare`: what is published before a queue subscribes never reaches
    it. A message has 256 KiB at most. The rest is as for `SqsPublisher`, and so are the arguments.
    """

    _sessions = _SnsTopics
