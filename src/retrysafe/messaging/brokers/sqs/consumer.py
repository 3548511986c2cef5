"""Amazon SQS: messages are invisible to others while a consumer holds them, and deleted when they are settled."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.consumer import LaggingConsumer, names_of
from retrysafe.messaging.brokers.leased import LeasedSession, QueueSettings, Tag
from retrysafe.messaging.brokers.spec import declaring
from retrysafe.messaging.brokers.sqs.client import FAILURES, LONGEST_POLL, Service, is_missing
from retrysafe.messaging.brokers.sqs.messages import envelope_from, name_of
from retrysafe.messaging.brokers.sqs.topology import queue_of
from retrysafe.messaging.errors import QueueMissing
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.messages import Delivery
from retrysafe.protocol.records import Duration

_AT_ONCE = 10
"""The largest number of messages in a call."""
_KEPT = "MessageRetentionPeriod"
_COUNTS = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
_TOLD = ["ApproximateReceiveCount", "MessageGroupId"]


class SqsConsumer(LaggingConsumer["_SqsSession"]):
    """Takes messages from the queues of topics. Make them before, with `retrysafe.messaging.brokers.sqs.declare`.

    A FIFO queue hands out nothing of a key while a message of it is held, so any number of consumers keep the order of
    keys. A message that is given back stays with this consumer: it and what follows it in its lane are handed out when
    the time has come, other lanes go on. While it is held it is kept invisible, for the 12 hours that the service
    allows. A queue that is not FIFO has no order.

    Arguments:
        topics: one or more.
        group: the service whose queues are consumed, as `declare` was told; by default the one queue of each topic.
        region, endpoint: as for `SqsPublisher`.
        prefix: of the queues' names, as publishers were told.
        ordered: whether queues are FIFO.
        prefetch: how many messages of a queue are received and not settled. Those that wait for a retry count a tenth.
        prefetch_bytes: how many bytes of them; up to ten messages more may be received.
        lease: for how long the messages of a consumer that is dead or cut off stay invisible, from 2 seconds.
        poll: how long the service waits for messages before it answers that there are none, in whole seconds: up to 20,
            and a third of the lease. Below a second it does not wait, and is asked so often. Each poll is a request to
            be paid, and `aclose` waits for the last one.
        redelivery_window: for how long after it was published a message may be handed out again; by default for as long
            as the queue keeps it, which is read at first.
        timeout: how long the service may take to answer.
    """

    def __init__(
        self,
        topics: str | Iterable[str],
        *,
        group: str | None = None,
        region: str | None = None,
        endpoint: str | None = None,
        prefix: str = "",
        ordered: bool = True,
        prefetch: int = 100,
        prefetch_bytes: int = 16 << 20,
        lease: Duration = "60s",
        poll: Duration = "5s",
        redelivery_window: Duration | None = None,
        timeout: Duration = "10s",
    ) -> None:
        names = names_of(topics, prefetch, prefetch_bytes)
        try:
            queues = {name_of(prefix, queue_of(one, group or None), ordered=ordered): one for one in names}
        except ValueError as error:
            raise ConfigurationError(f"topics=, group= or prefix=: {error}.") from error
        hidden, within = max(2, round(seconds_of(lease, "lease"))), seconds_of(timeout, "timeout")
        poll_for = min(LONGEST_POLL, hidden / 3, seconds_of(poll, "poll"))

        def new_session() -> _SqsSession:
            service = Service("sqs", region, endpoint, within)
            return _SqsSession(service, queues, prefetch, prefetch_bytes, hidden, poll_for)

        super().__init__(new_session, redelivery_window)


class _SqsSession(LeasedSession):
    _errors = (*FAILURES, QueueMissing)

    def __init__(
        self, client: Service, queues: Mapping[str, str], prefetch: int, prefetch_bytes: int, lease: int, poll: float
    ) -> None:
        super().__init__(queues, prefetch, prefetch_bytes)
        self._client, self._lease, self._wait = client, lease, int(poll)
        self._idle = 0.0 if self._wait else poll
        self._urls: dict[str, str] = {}

    async def lag(self) -> Mapping[str, int]:
        """About how many messages of each queue wait, or are held by a consumer, as the service counts them."""
        found = {}
        for queue, url in self._urls.items():
            told = await self._client.call("get_queue_attributes", QueueUrl=url, AttributeNames=[*_COUNTS])
            found[queue] = sum(int(told["Attributes"][count]) for count in _COUNTS)
        return found

    async def _look_up(self, queue: str) -> QueueSettings:
        try:
            self._urls[queue] = url = (await self._client.call("get_queue_url", QueueName=queue))["QueueUrl"]
        except FAILURES as error:
            if is_missing(error):
                raise QueueMissing(f"SQS has no queue {queue}: declare it:  {declaring()}, and its group.") from error
            raise
        told = await self._client.call("get_queue_attributes", QueueUrl=url, AttributeNames=["All"])
        return QueueSettings(self._lease, float(told.get("Attributes", {}).get(_KEPT, 0)))

    async def _fetch(self, queue: str, most: int) -> Sequence[Delivery]:
        answer = await self._client.call(
            "receive_message",
            patience=self._wait,
            QueueUrl=self._urls[queue],
            MaxNumberOfMessages=min(_AT_ONCE, most),
            WaitTimeSeconds=self._wait,
            VisibilityTimeout=self._lease,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=_TOLD,
        )
        return [
            Delivery(
                envelope_from(message, self._queues[queue]),
                Tag(queue, message["ReceiptHandle"]),
                queue,
                int(message.get("Attributes", {}).get("ApproximateReceiveCount", "1")) > 1,
            )
            for message in answer.get("Messages", ())
        ]

    async def _settle(self, queue: str, handles: Sequence[str]) -> None:
        await self._tell_all("delete_message_batch", queue, handles)

    async def _hide(self, queue: str, handles: Sequence[str], seconds: int) -> Collection[str]:
        return await self._tell_all("change_message_visibility_batch", queue, handles, VisibilityTimeout=seconds)

    async def _hang_up(self) -> None:
        await self._client.aclose()

    async def _tell_all(self, operation: str, queue: str, handles: Sequence[str], **more: Any) -> list[str]:
        """Tell the service of messages: those of which it took notice. Of the others it may hear again."""
        batches = [handles[at : at + _AT_ONCE] for at in range(0, len(handles), _AT_ONCE)]
        told = await asyncio.gather(*(self._tell_batch(operation, queue, batch, **more) for batch in batches))
        return [handle for some in told for handle in some]

    async def _tell_batch(self, operation: str, queue: str, handles: Sequence[str], **more: Any) -> list[str]:
        entries = [{"Id": str(at), "ReceiptHandle": handle, **more} for at, handle in enumerate(handles)]
        with suppress(*FAILURES):
            answer = await self._client.call(operation, QueueUrl=self._urls[queue], Entries=entries)
            return [handles[int(one["Id"])] for one in answer.get("Successful", ())]
        return []
