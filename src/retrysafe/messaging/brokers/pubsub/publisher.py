"""Google Pub/Sub: messages are published by requests, which the service takes or refuses as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.pubsub_v1 import types

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.base import broker_address_of
from retrysafe.messaging.brokers.publisher import ACKED, BatchLimits, BatchSession, BrokerPublisher, PublishEntry
from retrysafe.messaging.brokers.pubsub.client import FAILURES, PubSubService
from retrysafe.messaging.brokers.pubsub.messages import content_of, topic_path
from retrysafe.messaging.brokers.pubsub.results import blames_one, result_of
from retrysafe.messaging.cloudevents import Mode, require_mode
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.messages import Envelope, PublishResult
from retrysafe.protocol.records import Duration

_Message: Any = types.PubsubMessage.pb()
_Request: Any = types.PublishRequest
_LARGEST = 10_000_000
"""The largest number of bytes in a request (https://cloud.google.com/pubsub/quotas#resource_limits)."""
_MOST = 1000
"""The largest number of messages."""
_FRAME = 8
"""Bytes that say of a message within a request how long it is, at most."""


class _PubSubPublishing(BatchSession):
    _errors = FAILURES
    _blames_one = staticmethod(blames_one)

    def __init__(self, service: PubSubService, project: str, prefix: str, mode: Mode) -> None:
        self._service, self._project, self._prefix = service, project, prefix
        self._mode: Mode = mode

    async def close(self) -> None:
        await self._service.aclose()

    def _encode(self, place: int, envelope: Envelope) -> tuple[tuple[str, str], PublishEntry]:
        path = topic_path(self._project, self._prefix, envelope.topic)
        content = content_of(envelope, self._mode)
        message = _Message(data=content.data, attributes=content.attributes, ordering_key=content.ordering_key)
        return (path, content.ordering_key), PublishEntry(place, message, message.ByteSize() + _FRAME)

    async def _limits(self, destination: tuple[str, str]) -> BatchLimits:
        most = _LARGEST - len(destination[0].encode()) - _FRAME
        return BatchLimits(_MOST, most, most)

    async def _send(self, destination: tuple[str, str], batch: Sequence[PublishEntry]) -> dict[int, PublishResult]:
        messages = [entry.content for entry in batch]
        request = _Request.wrap(_Request.pb()(topic=destination[0], messages=messages))
        clients = await self._service.open()
        await clients.publisher.publish(request, retry=None, timeout=self._service.timeout)
        return {entry.place: ACKED for entry in batch}

    @staticmethod
    def _judge(error: Exception, *, sent: bool) -> PublishResult:
        return result_of(error)


class PubSubPublisher(BrokerPublisher[_PubSubPublishing]):
    """Publishes each message to the topic of Pub/Sub named like its own, and waits for the ids that the service gives.

    An id means that the service has stored the message. Make the topic before, and the subscriptions of all groups,
    with `retrysafe.messaging.brokers.pubsub.declare`. A topic that is missing, or that we may not use, and a quota that
    is used up keep messages waiting, which spend no attempt. A message larger than 10 MB is given up before it is sent.

    The ordering key of a message is its key. A key that has failed is not paused, as by the library's own publisher:
    the relay publishes the message again, and nothing of its key before it.

    Arguments:
        project: of Google Cloud.
        endpoint: by default that of Google, which is the nearest region's; messages of a key keep their order only if
            they are all published in one region, such as by "europe-west1-pubsub.googleapis.com:443". Of a server in
            Google's place: "http://host:port", which is reached without TLS and credentials. PUBSUB_EMULATOR_HOST is
            obeyed, too. Credentials are those of the environment.
        prefix: of the names of topics.
        mode: where the attributes of a CloudEvent are: "binary", in attributes of the message, or "structured", in its
            payload. An event that exceeds the limits of attributes is always in the payload.
        timeout: how long the service may take; a message without an answer is published again, under the same id.
    """

    by_topic = True

    def __init__(
        self,
        project: str,
        *,
        endpoint: str | None = None,
        prefix: str = "",
        mode: Mode = "binary",
        timeout: Duration = "10s",
    ) -> None:
        require_mode(mode)
        if not project:
            raise ConfigurationError("project= must not be empty.")
        self._prefix, within = prefix, seconds_of(timeout, "timeout")
        self.broker_address = broker_address_of(f"pubsub://{endpoint or ''}/{project}", prefix)
        super().__init__(lambda: _PubSubPublishing(PubSubService(endpoint, within), project, prefix, mode))

    def destination(self, envelope: Envelope, /) -> str:
        """The topic that takes a message."""
        return f"{self._prefix}{envelope.topic}"
