"""Google Pub/Sub: messages are published by requests, which the service takes or refuses as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from google.pubsub_v1 import types

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.home import of_one_loop
from retrysafe.messaging.brokers.pubsub.client import FAILURES, Service
from retrysafe.messaging.brokers.pubsub.judging import blames_one, failed
from retrysafe.messaging.brokers.pubsub.messages import MODES, Mode, content_of, topic_path
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus
from retrysafe.protocol.records import Duration

_Message: Any = types.PubsubMessage.pb()
_Request: Any = types.PublishRequest
_ACKED = PublishResult(PublishStatus.ACKED)
_LARGEST = 10_000_000
"""The largest number of bytes in a request (https://cloud.google.com/pubsub/quotas#resource_limits)."""
_MOST = 1000
"""The largest number of messages."""
_FRAME = 8
"""Bytes that say of a message within a request how long it is, at most."""
_TOO_LARGE = PublishResult(PublishStatus.REJECTED, f"larger than the {_LARGEST} bytes of a request to Pub/Sub")


class _Entry(NamedTuple):
    place: int
    message: Any
    size: int


@of_one_loop(follows=True)
class PubSubPublisher:
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
        if mode not in MODES:
            raise ConfigurationError(f"mode={mode!r}: write one of {', '.join(MODES)}.")
        if not project:
            raise ConfigurationError("project= must not be empty.")
        self._project, self._prefix = project, prefix
        self._mode: Mode = mode
        self._service = Service(endpoint, seconds_of(timeout, "timeout"))

    def destination(self, envelope: Envelope, /) -> str:
        """The topic that takes a message."""
        return f"{self._prefix}{envelope.topic}"

    async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        """Publish them: those of one topic and key in their order, others at the same time."""
        said: dict[int, PublishResult] = {}
        entries: dict[tuple[str, str], list[_Entry]] = {}
        for place, envelope in enumerate(envelopes):
            try:
                path, entry = self._entry(place, envelope)
            except ValueError as error:
                said[place] = PublishResult(PublishStatus.RETRYABLE, str(error))
                continue
            if entry.size + len(path.encode()) + _FRAME > _LARGEST:
                said[place] = _TOO_LARGE
            else:
                entries.setdefault((path, entry.message.ordering_key), []).append(entry)
        requests = (self._published(path, some) for (path, _), some in entries.items())
        for found in await asyncio.gather(*requests):
            said.update(found)
        return [said[place] for place in range(len(envelopes))]

    async def aclose(self) -> None:
        """Hang up."""
        await self._service.aclose()

    async def _published(self, path: str, entries: Sequence[_Entry]) -> dict[int, PublishResult]:
        said: dict[int, PublishResult] = {}
        for request in _requests(path, entries):
            said.update(await self._sent(path, request))
        return said

    async def _sent(self, path: str, entries: Sequence[_Entry]) -> dict[int, PublishResult]:
        request = _Request.wrap(_Request.pb()(topic=path, messages=[entry.message for entry in entries]))
        try:
            clients = await self._service.open()
            await clients.publisher.publish(request, retry=None, timeout=self._service.timeout)
        except FAILURES as error:
            if len(entries) > 1 and blames_one(error):
                alone = [await self._sent(path, [entry]) for entry in entries]
                return {place: result for one in alone for place, result in one.items()}
            return dict.fromkeys((entry.place for entry in entries), failed(error))
        return dict.fromkeys((entry.place for entry in entries), _ACKED)

    def _entry(self, place: int, envelope: Envelope) -> tuple[str, _Entry]:
        path = topic_path(self._project, self._prefix, envelope.topic)
        content = content_of(envelope, self._mode)
        message = _Message(data=content.data, attributes=content.attributes, ordering_key=content.ordering_key)
        return path, _Entry(place, message, message.ByteSize() + _FRAME)


def _requests(path: str, entries: Sequence[_Entry]) -> Iterator[list[_Entry]]:
    """As few as the limits allow."""
    request: list[_Entry] = []
    begun = size = len(path.encode()) + _FRAME
    for entry in entries:
        if request and (len(request) == _MOST or size + entry.size > _LARGEST):
            yield request
            request, size = [], begun
        request.append(entry)
        size += entry.size
    if request:
        yield request
