"""NATS JetStream: messages that the stream of their subject has acknowledged, and recognises when they come again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from nats.errors import ConnectionClosedError

from retrysafe.messaging.brokers.base import broker_address_of
from retrysafe.messaging.brokers.nats.confirms import Confirm, Confirms, result_of
from retrysafe.messaging.brokers.nats.connecting import LOST, NatsLink, connect
from retrysafe.messaging.brokers.nats.messages import content_of, size_of, subject_of
from retrysafe.messaging.brokers.publisher import BrokerPublisher, error_text
from retrysafe.messaging.cloudevents import Mode, require_mode
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus
from retrysafe.protocol.ordering import partition, partitions_of
from retrysafe.protocol.records import Duration

_UNCONFIRMED = PublishResult(PublishStatus.STALLED, "the stream did not confirm it in time")
_LOST = PublishResult(PublishStatus.UNKNOWN, "the connection was lost")


class NatsPublisher(BrokerPublisher["_NatsPublishing"]):
    """Publishes to subjects that streams keep, each message with its topic as subject, and waits for confirms.

    A confirm means that the stream has the message, on a majority of its servers if it has several. Declare the stream
    before. One that is missing, full, without a leader, or that does not confirm in time keeps its own messages
    waiting, which spend no attempt; messages to other subjects go on. A message that is larger than the server takes is
    given up. One that comes again within the stream's window is recognised.

    Arguments:
        url: of the server, such as "nats://user:password@host:4222", or of several of a cluster, separated by commas.
        prefix: of the subjects.
        partitions: over how many subjects a topic is spread, named "TOPIC.0" and so on: all messages of one key go to
            one of them. By default one, named like the topic. Their number is not to be changed while messages are
            under way, and consumers must be told the same.
        credentials: a file of NATS credentials (.creds).
        timeout: how long confirms are waited for; a message without one is sent again, under the same id.
        mode: where the attributes of a CloudEvent are: "binary", in headers, or "structured", in the payload.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "",
        partitions: int | None = None,
        credentials: str | None = None,
        timeout: Duration = "10s",
        mode: Mode = "binary",
    ) -> None:
        partitions_of("", partitions)  # refuses a wrong number
        require_mode(mode)
        self._prefix, self._partitions, within = prefix, partitions, seconds_of(timeout, "timeout")
        self.broker_address, self.by_topic = broker_address_of(url, prefix), partitions is None
        super().__init__(lambda: _NatsPublishing(url, credentials, self.destination, mode, within))

    def destination(self, envelope: Envelope, /) -> str:
        """The subject that a message is published to."""
        return f"{self._prefix}{partition(envelope.topic, envelope.key, envelope.id, self._partitions)}"


class _NatsPublishing:
    """A connection, which is made anew when it is lost."""

    def __init__(
        self, url: str, credentials: str | None, destination: Callable[[Envelope], str], mode: Mode, timeout: float
    ) -> None:
        self._url, self._credentials, self._destination, self._timeout = url, credentials, destination, timeout
        self._mode: Mode = mode
        self._connection: NatsLink | None = None
        self._confirms: Confirms | None = None
        self._opening = asyncio.Lock()

    async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        try:
            async with self._opening:  # publish may be called while it is under way
                connection, confirms = await self._connect()
        except LOST as error:
            return [PublishResult(PublishStatus.UNAVAILABLE, error_text(error))] * len(envelopes)
        began = time.monotonic()
        sent = [await self._send(connection, confirms, envelope) for envelope in envelopes]
        waiting = {one for one in sent if not isinstance(one, PublishResult)}
        try:
            if waiting:
                with suppress(ConnectionClosedError):
                    await connection.first_of(asyncio.ensure_future(asyncio.wait(waiting)), self._timeout)
            server_is_there = await self._check_server(connection, waiting)
            return [
                self._result(connection, one, envelope, began, server_is_there=server_is_there)
                for one, envelope in zip(sent, envelopes, strict=True)
            ]
        finally:
            for one in waiting:
                one.cancel()

    async def _send(
        self, connection: NatsLink, confirms: Confirms, envelope: Envelope
    ) -> asyncio.Future[Confirm] | PublishResult:
        try:
            subject = subject_of("", self._destination(envelope))
            payload, headers = content_of(envelope, self._mode)
        except ValueError as error:
            return PublishResult(PublishStatus.RETRYABLE, str(error))
        limit = connection.client.max_payload
        if size_of(headers, payload) > limit:  # the server would hang up on it
            return PublishResult(PublishStatus.REJECTED, f"larger than the {limit} bytes that the server takes")
        try:
            return await confirms.publish(subject, payload, headers)
        except ConnectionClosedError:
            return _LOST
        except LOST as error:
            return PublishResult(PublishStatus.UNKNOWN, error_text(error))

    def _result(
        self,
        connection: NatsLink,
        sent: asyncio.Future[Confirm] | PublishResult,
        envelope: Envelope,
        began: float,
        *,
        server_is_there: bool,
    ) -> PublishResult:
        """Return the result of a message, of which the confirm may be missing although the server is there."""
        if isinstance(sent, PublishResult):
            return sent
        if sent.done():
            return result_of(sent.result())
        if not server_is_there:
            return _LOST
        forbidden = connection.forbidden.since(began, subject_of("", self._destination(envelope)))
        return PublishResult(PublishStatus.STALLED, forbidden) if forbidden else _UNCONFIRMED

    async def _check_server(self, connection: NatsLink, waiting: set[asyncio.Future[Confirm]]) -> bool:
        """Close the connection unless the server is there, although confirms are missing; tell which."""
        if all(one.done() for one in waiting):
            return True
        if connection.is_open:
            with suppress(*LOST):
                await connection.client.flush(timeout=max(1, round(self._timeout)))
                return True
        if self._connection is connection:
            await self.close()
        return False

    # ------------------------------------------------------------ the connection

    async def _connect(self) -> tuple[NatsLink, Confirms]:
        if self._connection is None or self._confirms is None or not self._connection.is_open:
            await self.close()
            connection = await connect(self._url, self._credentials, self._timeout)
            self._connection, self._confirms = connection, await Confirms.open(connection.client)
        return self._connection, self._confirms

    async def close(self) -> None:
        connection, self._connection, self._confirms = self._connection, None, None
        if connection is not None:
            await connection.close()
