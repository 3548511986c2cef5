"""The clients of Pub/Sub, opened when they are first used.

They are those of the service's interface, without the layer that the library has for publishing and consuming: that
sends batches and renews deadlines in threads of its own, and stops publishing a key that has failed.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import google.auth
import grpc.aio
from google.api_core.exceptions import GoogleAPICallError
from google.auth.exceptions import GoogleAuthError
from google.pubsub_v1 import PublisherAsyncClient, SubscriberAsyncClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcAsyncIOTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcAsyncIOTransport

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.spec import declaring

DECLARE = f"declare it:  {declaring()}"
FAILURES = (GoogleAPICallError, ConfigurationError, OSError, TimeoutError)
"""The errors of a call."""
_SERVICE = "pubsub.googleapis.com"
_SCOPES = PublisherAsyncClient.get_transport_class().AUTH_SCOPES
_CHANNEL = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
]
"""Messages have the limits of the service, not those of the library; a connection that is dead is noticed."""


class PubSubClients(NamedTuple):
    publisher: PublisherAsyncClient
    subscriber: SubscriberAsyncClient
    channel: Any


class PubSubService:
    """The service, for one event loop. No call is repeated by itself.

    endpoint: the name of a host, reached over TLS with the credentials of the environment, or "http://host:port" of a
        server in its place, reached without either. By default what PUBSUB_EMULATOR_HOST says, or else Google's own.
    timeout: seconds that a call may take.
    """

    def __init__(self, endpoint: str | None, timeout: float) -> None:
        self._endpoint, self.timeout = endpoint, timeout
        self._clients: PubSubClients | None = None
        self._opening = asyncio.Lock()

    async def open(self) -> PubSubClients:
        """The clients. Raises `ConfigurationError` without credentials, `TimeoutError` when they take too long."""
        async with self._opening:
            if self._clients is None:
                channel = await self._channel()
                self._clients = PubSubClients(
                    PublisherAsyncClient(transport=PublisherGrpcAsyncIOTransport(channel=channel)),
                    SubscriberAsyncClient(transport=SubscriberGrpcAsyncIOTransport(channel=channel)),
                    channel,
                )
        return self._clients

    async def aclose(self) -> None:
        clients, self._clients = self._clients, None
        if clients is not None:
            await clients.channel.close()

    async def _channel(self) -> Any:
        plain = _plain(self._endpoint)
        if plain is not None:
            return grpc.aio.insecure_channel(plain, options=_CHANNEL)
        try:
            async with asyncio.timeout(self.timeout):
                credentials, _ = await asyncio.to_thread(google.auth.default, scopes=_SCOPES)
        except GoogleAuthError as error:
            raise ConfigurationError(
                f"There are no credentials for Pub/Sub: {error} Or name a server without any: endpoint=http://host:port."
            ) from error
        return PublisherGrpcAsyncIOTransport.create_channel(
            self._endpoint or _SERVICE, credentials=credentials, scopes=_SCOPES, options=_CHANNEL
        )


def _plain(endpoint: str | None) -> str | None:
    """The host and port of a server that is reached as it is; None for one of Google's."""
    if endpoint is None:
        return os.environ.get("PUBSUB_EMULATOR_HOST") or None
    parts = urlsplit(endpoint)
    return parts.netloc if parts.scheme == "http" else None
