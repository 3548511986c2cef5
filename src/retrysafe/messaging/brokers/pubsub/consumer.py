"""Google Pub/Sub: a subscription hides messages from other consumers until their acknowledgement deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from google.api_core.exceptions import DeadlineExceeded, GoogleAPICallError
from google.pubsub_v1 import types

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.consumer import BrokerConsumer, names_of
from retrysafe.messaging.brokers.leased import LeasedSession, QueueSettings, Tag
from retrysafe.messaging.brokers.pubsub.client import FAILURES, PubSubService
from retrysafe.messaging.brokers.pubsub.messages import envelope_from, subscription_path
from retrysafe.messaging.brokers.pubsub.results import for_a_consumer, may_be_repeated, refusals_of
from retrysafe.messaging.brokers.pubsub.topology import retention_of
from retrysafe.messaging.errors import QueueMissing
from retrysafe.protocol.backoff import Backoff
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.messages import Delivery
from retrysafe.protocol.records import Duration

_AT_ONCE = 1000
"""The largest number of acknowledgements in a request, which may have 512 KiB."""
_AGAIN = Backoff(base=0.1, cap=2.0)
"""The pauses before acknowledgements are repeated that fail for a while."""


class PubSubConsumer(BrokerConsumer["_PubSubSession"]):
    """Takes messages from the subscriptions of a group. Make them before, with `brokers.pubsub.declare`.

    A subscription that keeps the order hands out nothing of a key while a message of it is held, so any number of
    consumers keep the order of keys. A message that is given back stays with this consumer: it and what follows it in
    its lane are handed out when the time has come, other lanes go on. While it is held its deadline is put off, however
    long that takes. Where a subscription has exactly-once delivery, failed acknowledgements are repeated until they
    succeed or fail for good.

    Arguments:
        project: of Google Cloud.
        topics: one or more.
        group: the consumers that together take each message once, such as "inventory", as `declare` was told.
        endpoint: as for `PubSubPublisher`; consumers keep the order in any region.
        prefix: of names, as publishers were told.
        prefetch: how many messages of a subscription are received and not settled. Those that wait for a retry
            count a tenth.
        prefetch_bytes: how many bytes of them; what one request brings, of at most ``prefetch`` messages, may exceed
            it.
        poll: how long a request waits for messages; `aclose` waits for the last one.
        redelivery_window: for how long after it was published a message may be handed out again; by default for as long
            as the subscription, or the topic, keeps it, which is read at first.
        timeout: how long the service may take to answer.

    For how long messages of a consumer that is dead or cut off are hidden is the subscription's acknowledgement
    deadline.
    """

    def __init__(
        self,
        project: str,
        topics: str | Iterable[str],
        *,
        group: str,
        endpoint: str | None = None,
        prefix: str = "",
        prefetch: int = 100,
        prefetch_bytes: int = 16 << 20,
        poll: Duration = "5s",
        redelivery_window: Duration | None = None,
        timeout: Duration = "10s",
    ) -> None:
        if not project or not group:
            raise ConfigurationError("project= and group= must not be empty.")
        try:
            names = names_of(topics, prefetch, prefetch_bytes)
            queues = {subscription_path(project, prefix, topic, group): topic for topic in names}
        except ValueError as error:
            raise ConfigurationError(f"topics=, group= or prefix=: {error}.") from error
        poll_for, within = seconds_of(poll, "poll"), seconds_of(timeout, "timeout")
        super().__init__(
            lambda: _PubSubSession(PubSubService(endpoint, within), queues, prefetch, prefetch_bytes, poll_for),
            redelivery_window,
        )


class _PubSubSession(LeasedSession):
    _errors = (*FAILURES, QueueMissing)

    def __init__(
        self, service: PubSubService, queues: Mapping[str, str], prefetch: int, prefetch_bytes: int, poll: float
    ) -> None:
        super().__init__(queues, prefetch, prefetch_bytes)
        self._service, self._poll_for = service, poll

    async def _look_up(self, queue: str) -> QueueSettings:
        clients = await self._service.open()
        try:
            told = await clients.subscriber.get_subscription(
                subscription=queue, retry=None, timeout=self._service.timeout
            )
        except GoogleAPICallError as error:
            raise for_a_consumer(error, queue) from error
        settings = types.Subscription.pb(told)
        return QueueSettings(settings.ack_deadline_seconds, retention_of(settings))

    async def _fetch(self, queue: str, most: int) -> Sequence[Delivery]:
        clients = await self._service.open()
        request = {"subscription": queue, "max_messages": most}
        try:
            answer = await clients.subscriber.pull(request, retry=None, timeout=self._poll_for)
        except DeadlineExceeded:
            return ()  # it had no messages for so long
        except GoogleAPICallError as error:
            raise for_a_consumer(error, queue) from error
        return [self._delivery(queue, one) for one in types.PullResponse.pb(answer).received_messages]

    def _delivery(self, queue: str, received: Any) -> Delivery:
        message = received.message
        envelope = envelope_from(message.data, message.attributes, message.ordering_key, self._queues[queue])
        age = time.time() - message.publish_time.seconds
        redelivered = (
            received.delivery_attempt > 1 if received.delivery_attempt else age >= self._terms[queue].lease / 2
        )
        return Delivery(envelope, Tag(queue, received.ack_id), queue, redelivered)

    async def _settle(self, queue: str, handles: Sequence[str]) -> None:
        """Acknowledge them; again those that fail for a while, until another consumer may have them."""
        loop = asyncio.get_running_loop()
        until, failures = loop.time() + self._terms[queue].lease, 0
        while handles:
            handles = [
                one
                for one, fate in (await self._tell_all("acknowledge", queue, handles)).items()
                if may_be_repeated(fate)
            ]
            failures += 1
            pause = _AGAIN.delay(failures, 1.0)
            if not handles or loop.time() + pause >= until or self._closing.is_set():
                return
            await asyncio.sleep(pause)

    async def _hide(self, queue: str, handles: Sequence[str], seconds: int) -> Collection[str]:
        lost = await self._tell_all("modify_ack_deadline", queue, handles, ack_deadline_seconds=seconds)
        return [handle for handle in handles if handle not in lost]

    async def _hang_up(self) -> None:
        await self._service.aclose()

    async def _tell_all(self, operation: str, queue: str, handles: Sequence[str], **more: Any) -> dict[str, str]:
        """Tell the service of messages; what became of those of which it took no notice."""
        batches = [handles[at : at + _AT_ONCE] for at in range(0, len(handles), _AT_ONCE)]
        lost: dict[str, str] = {}
        for found in await asyncio.gather(*(self._tell(operation, queue, batch, **more) for batch in batches)):
            lost.update(found)
        return lost

    async def _tell(self, operation: str, queue: str, handles: Sequence[str], **more: Any) -> dict[str, str]:
        try:
            clients = await self._service.open()
            request = {"subscription": queue, "ack_ids": handles, **more}
            await getattr(clients.subscriber, operation)(request, retry=None, timeout=self._service.timeout)
        except FAILURES as error:
            return {**refusals_of(error)} or dict.fromkeys(handles, type(error).__name__)
        return {}
