"""The clients of a namespace of Service Bus: its URL, its credentials, and what is switched off in the library.

The library repeats nothing by itself, and each sender and receiver has a connection of its own.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from azure.core.exceptions import AzureError
from azure.core.pipeline.transport import AioHttpTransport
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.servicebus.decoding import decoding
from retrysafe.messaging.brokers.spec import declaring

DECLARE = f"declare it:  {declaring()}"
VARIABLE = "AZURE_SERVICEBUS_CONNECTION_STRING"
FAILURES = (AzureError, ConfigurationError, OSError, TimeoutError, ValueError, RuntimeError)
"""The errors of a call; the library raises `ValueError` and `RuntimeError` when a connection is gone."""
LISTENS = 0.02
"""Seconds for which a connection is read before something else can be written to it."""
_EMULATOR = "emulator"
_DEVELOPMENT = "UseDevelopmentEmulator"
_ENTITY = "entitypath"
_LOGGER = logging.getLogger(__name__)
Link = TypeVar("Link", ServiceBusSender, ServiceBusReceiver)


class Namespace(NamedTuple):
    """A namespace: its host, how it is entered, and whether it is a server in its place, without TLS.

    connection: a connection string; None: the credentials that the environment has for Microsoft Entra.
    """

    host: str
    connection: str | None
    plain: bool

    def __repr__(self) -> str:
        """Without the key."""
        return f"Namespace({self.host!r})"

    def client(self, timeout: float) -> NamespaceClient:
        """A client of messages, on whose connections each attempt may take so many seconds."""
        how: dict[str, Any] = {
            "retry_total": 0,
            "try_timeout": timeout,
            "auth_timeout": timeout,
            "timeout": timeout,
            "keep_alive": 0,
        }
        if self.connection is not None:
            return NamespaceClient(ServiceBusClient.from_connection_string(self.connection, **how))
        credential = _default_credential()
        return NamespaceClient(ServiceBusClient(self.host, credential, **how), credential)

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


class NamespaceClient(NamedTuple):
    """A client of messages, with the credentials that have to be closed."""

    messages: ServiceBusClient
    credential: Any = None

    async def aclose(self) -> None:
        with suppress(*FAILURES):
            await self.messages.close()
        if self.credential is not None:
            with suppress(*FAILURES):
                await self.credential.close()


class _Plain(AioHttpTransport):  # type: ignore[misc]  # which azure-core exports lazily
    async def send(self, request: Any, **config: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return await super().send(request, **config)


def namespace_of(url: str) -> Namespace:
    """The namespace of a URL. Raises `ConfigurationError` for one that names none, or anything else."""
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        policy, key = unquote(parts.username or ""), unquote(parts.password or "")
        _require(parts.scheme == "servicebus" and parts.hostname and parts.port != 0)
        _require(parts.path in ("", "/") and not parts.fragment and bool(policy) == bool(key))
        _require(options.keys() <= {_EMULATOR} and options.get(_EMULATOR, "true") in ("true", "false"))
        _require(not {";", "\n", "\r"} & {*policy, *key})
    except ValueError:
        raise ConfigurationError(
            "Write the URL of a namespace as servicebus://NAME.servicebus.windows.net, with POLICY:KEY@ before the "
            "name for a shared access policy, percent-encoded; queues and topics are named by topics."
        ) from None
    host, plain = parts.netloc.rpartition("@")[2], options.get(_EMULATOR) == "true"
    connection = os.environ.get(VARIABLE)
    if policy:
        connection = f"Endpoint=sb://{host}/;SharedAccessKeyName={policy};SharedAccessKey={key}"
    return Namespace(host, connection and _check(connection, host, plain), plain)


def _require(right: object) -> None:
    if not right:
        raise ValueError


def _check(connection: str, host: str, plain: bool) -> str:
    """A connection string to the namespace as a whole: it is the topic of a message that says where it goes.

    Raises `ConfigurationError` for what is none, or leads to another namespace than the URL, with no word of its key.
    """
    try:
        ServiceBusClient.from_connection_string(connection)
    except ValueError as error:
        raise ConfigurationError(f"{VARIABLE} is no connection string of Service Bus: {error}") from None
    fields = [part.partition("=") for part in connection.strip().rstrip(";").split(";")]
    known = {name.strip().lower(): value for name, _, value in fields}
    told = urlsplit(known.get("endpoint") or known.get("hostname", "")).netloc
    if told.lower() != host.lower():
        raise ConfigurationError(f"{VARIABLE} leads to {told!r}, and the URL to {host!r}: one of them is wrong.")
    kept = [
        f"{name}={value}" for name, _, value in fields if name.strip().lower() not in (_ENTITY, _DEVELOPMENT.lower())
    ]
    return ";".join([*kept, f"{_DEVELOPMENT}=true"] if plain else kept)


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


def end_reason_of(sender: ServiceBusSender) -> Callable[[], Exception | None]:
    """Asks what the service said when it ended the link that the sender has now; None: it did not, or said nothing.

    The library does not tell what is on its way then, up to 7.15.0 at least, and says that the error is unknown.
    """
    opened: Any = sender
    link = getattr(opened._handler, "_link", None)

    def ask() -> Exception | None:
        error = getattr(link, "_error", None)
        return None if error is None else opened._amqp_transport.create_servicebus_exception(_LOGGER, error)

    return ask


def amend(link: Link) -> Link:
    """A sender or receiver that closes its socket, too, when its connection has failed, and decodes every message.

    The library does not, up to 7.15.0 at least: `Connection.close` does nothing more for a connection that is at its
    end, and the socket stays open for as long as the event loop runs.
    """
    opened: Any = link
    create = opened._create_handler

    def creating(auth: Any) -> None:
        create(auth)
        handler = opened._handler
        handler.close_async = partial(_close_both, handler, handler.close_async)
        if isinstance(opened, ServiceBusReceiver):
            decoding(handler)

    opened._create_handler = creating
    return link


async def _close_both(handler: Any, close: Callable[[], Awaitable[None]]) -> None:
    socket = getattr(handler._connection, "_transport", None)
    try:
        await close()
    finally:
        if socket is not None:
            with suppress(*FAILURES):
                await socket.close()


async def hang_up(link: ServiceBusSender | ServiceBusReceiver, within: float) -> None:
    with suppress(*FAILURES):
        async with asyncio.timeout(within):
            await link.close()
