"""Amazon SQS and SNS: batches of messages, of each of which the service says how it took it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple

from botocore.exceptions import ClientError

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.home import of_one_loop
from retrysafe.messaging.brokers.sqs.client import FAILURES, Service, is_missing, topic_named
from retrysafe.messaging.brokers.sqs.judging import blames_one, failed, refused
from retrysafe.messaging.brokers.sqs.messages import MODES, Mode, content_of, name_of, order_of
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus
from retrysafe.protocol.records import Duration

_ACKED = PublishResult(PublishStatus.ACKED)
_SILENT = PublishResult(PublishStatus.UNKNOWN, "the service said nothing of it")
_AT_ONCE = 10
"""The largest number of messages in a batch."""
_TYPE = "String"


class _Entry(NamedTuple):
    place: int
    fields: dict[str, Any]
    size: int


class _Address(NamedTuple):
    """The address of a queue or topic, and the largest sizes of its messages and batches."""

    name: str
    largest: int


@of_one_loop(follows=True)
class _Batches:
    """Publishes to one service."""

    _service: ClassVar[str]
    _operation: ClassVar[str]
    _body: ClassVar[str]

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
        if mode not in MODES:
            raise ConfigurationError(f"mode={mode!r}: write one of {', '.join(MODES)}.")
        self._prefix, self._ordered = prefix, ordered
        self._mode: Mode = mode
        self._client = Service(self._service, region, endpoint, seconds_of(timeout, "timeout"))
        self._addresses: dict[str, _Address] = {}
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
                entries.setdefault(name, []).append(self._entry(place, envelope))
            except ValueError as error:
                said[place] = PublishResult(PublishStatus.RETRYABLE, str(error))
        for found in await asyncio.gather(*(self._published(name, some) for name, some in entries.items())):
            said.update(found)
        return [said[place] for place in range(len(envelopes))]

    async def aclose(self) -> None:
        """Hang up."""
        await self._client.aclose()

    async def _published(self, name: str, entries: Sequence[_Entry]) -> dict[int, PublishResult]:
        try:
            address = self._addresses.get(name) or await self._address(name)
        except FAILURES as error:
            return dict.fromkeys((entry.place for entry in entries), failed(error, sent=False))
        self._addresses[name] = address
        large = PublishResult(PublishStatus.REJECTED, f"larger than the {address.largest} bytes of a message")
        said = {entry.place: large for entry in entries if entry.size > address.largest}
        for batch in _batches([entry for entry in entries if entry.place not in said], address.largest):
            said.update(await self._sent(name, address, batch))
        return said

    async def _sent(self, name: str, address: _Address, batch: Sequence[_Entry]) -> dict[int, PublishResult]:
        try:
            request = self._request(address.name, [one.fields for one in batch])
            answer = await self._client.call(self._operation, **request)
        except FAILURES as error:
            if len(batch) > 1 and blames_one(error):
                alone = [await self._sent(name, address, [entry]) for entry in batch]
                return {place: result for one in alone for place, result in one.items()}
            if is_missing(error):
                self._addresses.pop(name, None)  # it may be made anew, elsewhere
            return dict.fromkeys((entry.place for entry in batch), failed(error))
        said = {int(one["Id"]): _ACKED for one in answer.get("Successful", ())}
        said.update((int(one["Id"]), refused(one)) for one in answer.get("Failed", ()))
        return {entry.place: said.get(entry.place, _SILENT) for entry in batch}

    def _entry(self, place: int, envelope: Envelope) -> _Entry:
        body, told = content_of(envelope, self._mode)
        fields: dict[str, Any] = {"Id": str(place), self._body: body, "MessageAttributes": told}
        if self._ordered:
            fields |= order_of(envelope)
        beside = sum(len(name) + len(_TYPE) + len(one["StringValue"].encode()) for name, one in told.items())
        return _Entry(place, fields, len(body.encode()) + beside)

    async def _address(self, name: str) -> _Address:
        raise NotImplementedError

    def _request(self, address: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
        raise NotImplementedError


class SqsPublisher(_Batches):
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

    _service, _operation, _body = "sqs", "send_message_batch", "MessageBody"
    _LARGEST = 1 << 20

    async def _address(self, name: str) -> _Address:
        url: str = (await self._client.call("get_queue_url", QueueName=name))["QueueUrl"]
        largest = self._LARGEST
        with suppress(ClientError):  # a right to send is none to ask
            told = await self._client.call("get_queue_attributes", QueueUrl=url, AttributeNames=["All"])
            largest = int(told.get("Attributes", {}).get("MaximumMessageSize", largest))
        return _Address(url, largest)

    def _request(self, address: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
        return {"QueueUrl": address, "Entries": entries}


class SnsPublisher(_Batches):
    """Publishes each message to the topic of SNS named like its topic, from where every queue that subscribes has it.

    An answer means that SNS has the message; that the queues get it is then its duty. Make the topic and its queues
    before, with `retrysafe.messaging.brokers.sqs.declare`: what is published before a queue subscribes never reaches
    it. A message has 256 KiB at most. The rest is as for `SqsPublisher`, and so are the arguments.
    """

    _service, _operation, _body = "sns", "publish_batch", "Message"
    _LARGEST = 256 << 10

    async def _address(self, name: str) -> _Address:
        return _Address(await topic_named(self._client, name), self._LARGEST)

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
