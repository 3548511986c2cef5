"""Amazon SQS and SNS: batches of messages, of each of which the service says how it took it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from botocore.exceptions import ClientError, ConnectTimeoutError, EndpointConnectionError

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.sqs.client import FAILURES, Service, code_of, status_of
from retrysafe.messaging.brokers.sqs.messages import entry_of, name_of, order_of
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus
from retrysafe.protocol.records import Duration

_ACKED = PublishResult(PublishStatus.ACKED)
_AT_ONCE = 10
"""How many messages a batch has at most."""
_LARGEST = {"sqs": 1 << 20, "sns": 256 << 10}
"""How many bytes a message has at most, and a batch."""
_BUSY = ("RequestThrottled", "ThrottlingException", "Throttling", "ThrottledException", "OverLimit")
_BAD = ("InvalidMessageContents", "InvalidParameterValue", "InvalidParameter", "ParameterValueInvalid", "ValidationError")
"""Codes for a message that will never be taken."""


class _Entry(NamedTuple):
    place: int
    fields: dict[str, Any]
    size: int


class _Batches:
    """Publishes to one service."""

    _service: str
    _operation: str

    def __init__(
        self,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        prefix: str = "",
        ordered: bool = True,
        timeout: Duration = "10s",
    ) -> None:
        self._prefix, self._ordered = prefix, ordered
        self._client = Service(self._service, region, endpoint, seconds_of(timeout, "timeout"))
        self._addresses: dict[str, str] = {}
        self.by_topic = True

    def destination(self, envelope: Envelope, /) -> str:
        """The queue or topic that takes a message."""
        return f"{self._prefix}{envelope.topic}"

    async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        """Publish them in batches: one behind the other for one destination, at the same time for several."""
        said: dict[int, PublishResult] = {}
        entries: dict[str, list[_Entry]] = {}
        for place, envelope in enumerate(envelopes):
            try:
                name = name_of(self._prefix, envelope.topic, ordered=self._ordered)
                entry = self._entry(place, envelope)
            except ValueError as error:
                said[place] = PublishResult(PublishStatus.RETRYABLE, str(error))
                continue
            if entry.size > _LARGEST[self._service]:
                limit = _LARGEST[self._service]
                said[place] = PublishResult(PublishStatus.REJECTED, f"larger than the {limit} bytes of a message")
            else:
                entries.setdefault(name, []).append(entry)
        for found in await asyncio.gather(*(self._published(name, some) for name, some in entries.items())):
            said.update(found)
        return [said[place] for place in range(len(envelopes))]

    async def aclose(self) -> None:
        """Hang up."""
        await self._client.aclose()

    async def _published(self, name: str, entries: Sequence[_Entry]) -> dict[int, PublishResult]:
        said: dict[int, PublishResult] = {}
        try:
            address = self._addresses.get(name) or await self._address(name)
        except ConfigurationError as error:
            return {entry.place: PublishResult(PublishStatus.UNAVAILABLE, str(error)) for entry in entries}
        except FAILURES as error:
            result = _failed(error)
            if result.status is PublishStatus.UNKNOWN:  # nothing was published yet
                result = result._replace(status=PublishStatus.UNAVAILABLE)
            return {entry.place: result for entry in entries}
        self._addresses[name] = address
        for batch in _batches(entries, _LARGEST[self._service]):
            answers = await self._sent(address, batch)
            said.update(answers)
            if any(one.status is PublishStatus.STALLED for one in answers.values()):
                self._addresses.pop(name, None)  # it may have been made anew
        return said

    async def _sent(self, address: str, batch: Sequence[_Entry]) -> dict[int, PublishResult]:
        try:
            answer = await self._client.call(self._operation, **self._request(address, [one.fields for one in batch]))
        except FAILURES as error:
            return {entry.place: _failed(error) for entry in batch}
        said = {int(one["Id"]): _ACKED for one in answer.get("Successful", ())}
        said.update((int(one["Id"]), _refused(one)) for one in answer.get("Failed", ()))
        silent = PublishResult(PublishStatus.UNKNOWN, "the service said nothing of it")
        return {entry.place: said.get(entry.place, silent) for entry in batch}

    def _entry(self, place: int, envelope: Envelope) -> _Entry:
        body, attributes = entry_of(envelope)
        fields: dict[str, Any] = {"Id": str(place), self._body: body, "MessageAttributes": attributes}
        if self._ordered:
            fields |= order_of(envelope)
        told = sum(len(name) + len("String") + len(one["StringValue"].encode()) for name, one in attributes.items())
        return _Entry(place, fields, len(body.encode()) + told)

    _body: str

    async def _address(self, name: str) -> str:
        raise NotImplementedError

    def _request(self, address: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
        raise NotImplementedError


class SqsPublisher(_Batches):
    """Sends each message to the queue named like its topic, and waits for the service's answers.

    An answer means that several servers of SQS have the message. Make the queue before, with
    `retrysafe.messaging.brokers.sqs.declare`. One that is missing, that we may not use or that is throttled keeps its
    own messages waiting, which spend no attempt. A message that is too large is given up. A FIFO queue recognises one
    that comes again within 5 minutes, and takes it without a word.

    Arguments:
        region: of AWS; by default what the environment says. So are the credentials.
        endpoint: the URL of the service, if it is not that of AWS.
        prefix: of the names of queues.
        ordered: whether queues are FIFO: messages of one key keep their order.
        timeout: how long the service may take; a message without an answer is sent again, under the same id.
    """

    _service, _operation, _body = "sqs", "send_message_batch", "MessageBody"

    async def _address(self, name: str) -> str:
        found: str = (await self._client.call("get_queue_url", QueueName=name))["QueueUrl"]
        return found

    def _request(self, address: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
        return {"QueueUrl": address, "Entries": entries}


class SnsPublisher(_Batches):
    """Publishes each message to the topic of SNS named like its topic, from where every queue that subscribes has it.

    An answer means that SNS has the message; that the queues get it is then its duty. Make the topic and its queues
    before, with `retrysafe.messaging.brokers.sqs.declare`: what is published before a queue subscribes never reaches
    it. The rest is as for `SqsPublisher`, and so are the arguments.
    """

    _service, _operation, _body = "sns", "publish_batch", "Message"

    async def _address(self, name: str) -> str:
        pages: dict[str, Any] = {}
        while True:
            answer = await self._client.call("list_topics", **pages)
            for topic in answer["Topics"]:
                if topic["TopicArn"].rpartition(":")[2] == name:
                    return str(topic["TopicArn"])
            if not answer.get("NextToken"):
                raise ClientError({"Error": {"Code": "NotFound", "Message": f"no topic {name}"}}, "list_topics")
            pages = {"NextToken": answer["NextToken"]}

    def _request(self, address: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
        return {"TopicArn": address, "PublishBatchRequestEntries": entries}


def _batches(entries: Sequence[_Entry], largest: int) -> Iterator[list[_Entry]]:
    batch: list[_Entry] = []
    size = 0
    for entry in entries:
        if batch and (len(batch) == _AT_ONCE or size + entry.size > largest):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += entry.size
    if batch:
        yield batch


def _refused(answer: dict[str, Any]) -> PublishResult:
    """What is said of one message of a batch."""
    code = str(answer.get("Code", "")).rpartition(".")[2]
    if code in _BUSY or not answer.get("SenderFault"):
        return PublishResult(PublishStatus.STALLED, code)
    return PublishResult(PublishStatus.REJECTED if code in _BAD else PublishStatus.RETRYABLE, code)


def _failed(error: BaseException) -> PublishResult:
    """What the failure of a whole call says, in words that are the same for every message."""
    if isinstance(error, ClientError):
        code = code_of(error)
        if status_of(error) >= 500 and code != "NotFound":
            return PublishResult(PublishStatus.UNKNOWN, code)
        return PublishResult(PublishStatus.STALLED, code)  # the queue, our rights, or the rate: no single message
    if isinstance(error, EndpointConnectionError | ConnectTimeoutError):
        return PublishResult(PublishStatus.UNAVAILABLE, type(error).__name__)
    return PublishResult(PublishStatus.UNKNOWN, type(error).__name__)
