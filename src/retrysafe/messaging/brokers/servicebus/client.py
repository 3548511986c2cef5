"""The clients of a namespace of Service Bus: its URL, its credentials, and what is switched off in the library.

The library repeats nothing by itself, and each sender and receiver has a connection of its own.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from azure.core.exceptions import AzureError
from azure.core.pipeline.transport import AioHttpTransport
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from retrysafe.errors import ConfigurationError

DECLARE = "declare it with retrysafe.messaging.brokers.servicebus.declare"
VARIABLE = "AZURE_SERVICEBUS_CONNECTION_STRING"
FAILURES = (AzureError, ConfigurationError, OSError, TimeoutError, ValueError, RuntimeError)
"""What a call raises; the library says by `ValueError` and `RuntimeError` that a connection is gone."""
LISTENS = 0.02
"""Seconds for which a connection is read before something else can be written to it."""
_EMULATOR = "emulator"
Link = TypeVar("Link", ServiceBusSender, ServiceBusReceiver)


class Namespace(NamedTuple):
    """A namespace: its host, how it is entered, and whether it is a server in its place, without TLS.

    connection: a connection string; None: the credentials that the environment has for Microsoft Entra.
    """

    host: str
    connection: str | None
    plain: bool

    def client(self, timeout: float) -> Client:
        """A client of messages, on whose connections each attempt may take so many seconds."""
        how: dict[str, Any] = {
            "retry_total": 0,
            "try_timeout": timeout,
            "auth_timeout": timeout,
            "timeout": timeout,
            "keep_alive": 0,
        }
        if self.connection is not None:
            return Client(ServiceBusClient.from_connection_string(self.connection, **how))
        credential = _default_credential()
        return Client(ServiceBusClient(self.host, credential, **how), credential)

    @asynccontextmanager
    async def administration(self, patience: float) -> AsyncIterator[ServiceBusAdministrationClient]:
        """A client of entities, whose requests may take so many seconds each."""
        limits = {"connection_timeout": patience, "read_timeout": patience}
        how: dict[str, Any] = {"retry_total": 0, **limits}
        if self.connection is None:
            async with (
                _default_credential() as credential,
                ServiceBusAdministrationClient(self.host, credential, **how) as client,
            ):
                yield client
            return
        if self.plain:
            how["transport"] = _Plain(**limits)
        async with ServiceBusAdministrationClient.from_connection_string(self.connection, **how) as client:
            yield client


class Client(NamedTuple):
    """A client of messages, with the credentials that have to be closed."""

    messages: ServiceBusClient
    credential: Any = None

    async def aclose(self) -> None:
        """Hang up."""
        await quietly(self.messages.close)
        if self.credential is not None:
            await quietly(self.credential.close)


class _Plain(AioHttpTransport):  # type: ignore[misc]  # which azure-core exports lazily
    """HTTP where the library writes HTTPS, as to a namespace."""

    async def send(self, request: Any, **config: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return await super().send(request, **config)


def namespace_of(url: str) -> Namespace:
    """The namespace of a URL. Raises `ConfigurationError` for one that names none, or anything else."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    wrong = options.keys() - {_EMULATOR} or parts.path not in ("", "/") or (parts.username and not parts.password)
    if parts.scheme != "servicebus" or not parts.hostname or wrong:
        raise ConfigurationError(
            "Write the URL of a namespace as servicebus://NAME.servicebus.windows.net, with POLICY:KEY@ before the "
            "name for a shared access policy; queues and topics are named by topics."
        )
    host = parts.netloc.rpartition("@")[2]
    plain = options.get(_EMULATOR) == "true"
    connection = os.environ.get(VARIABLE)
    if parts.username and parts.password:
        connection = _connection_string(host, unquote(parts.username), unquote(parts.password), plain)
    return Namespace(host, connection, plain)


def _connection_string(host: str, policy: str, key: str, plain: bool) -> str:
    told = f"Endpoint=sb://{host}/;SharedAccessKeyName={policy};SharedAccessKey={key}"
    return f"{told};UseDevelopmentEmulator=true" if plain else told


def _default_credential() -> Any:
    try:
        identity = importlib.import_module("azure.identity.aio")
    except ImportError as error:
        raise ConfigurationError(
            f"There are no credentials for Service Bus: set {VARIABLE}, write POLICY:KEY@ into the URL, or install "
            "azure-identity for those of Microsoft Entra."
        ) from error
    return identity.DefaultAzureCredential()


def condition_of(error: BaseException) -> str:
    """The condition of AMQP that an error of the library was made from, such as "amqp:not-found"; empty if none."""
    for one in (error, error.__cause__):
        found = getattr(getattr(one, "inner_exception", None), "condition", None)
        if found:
            value = getattr(found, "value", found)
            return value.decode() if isinstance(value, bytes) else str(value)
    return ""


def with_its_socket(link: Link) -> Link:
    """A sender or receiver that closes its socket, too, when its connection has failed.

    The library does not, up to 7.15.0 at least: `Connection.close` does nothing more for a connection that is at its
    end, and the socket stays open for as long as the event loop runs.
    """
    opened: Any = link
    create = opened._create_handler

    def creating(auth: Any) -> None:
        create(auth)
        handler = opened._handler
        handler.close_async = partial(_closed, handler, handler.close_async)

    opened._create_handler = creating
    return link


async def _closed(handler: Any, close: Callable[[], Awaitable[None]]) -> None:
    socket = getattr(handler._connection, "_transport", None)
    try:
        await close()
    finally:
        if socket is not None:
            await quietly(socket.close)


async def hang_up(link: ServiceBusSender | ServiceBusReceiver, within: float) -> None:
    """Close a sender or receiver."""
    await quietly(partial(asyncio.wait_for, link.close(), within))


async def quietly(step: Callable[[], Awaitable[object]]) -> None:
    """Do something that may fail, such as closing a connection that is gone."""
    try:
        await step()
    except FAILURES:
        return
