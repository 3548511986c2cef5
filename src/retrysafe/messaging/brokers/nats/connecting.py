"""A connection to NATS that is made anew when it is lost, instead of by the client library.

The library keeps what is published while it is away, and sends it later: behind what was sent again meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from retrysafe.errors import ConfigurationError

_PING_EVERY = 5
"""Seconds after which a connection is tried that says nothing; with two pings unanswered it is lost."""
LOST = (nats.errors.Error, OSError, EOFError, TimeoutError)
"""What is raised when a connection is lost, or the server cannot be reached."""


_FORBIDDEN = "permissions violation"
"""What the server says of a subject that is not for us, such as: permissions violation for publish to "orders"."""


class Connection:
    """A client that is connected, when it is lost, and what the server has said last that it may not do."""

    def __init__(self, client: Client, lost: asyncio.Event, forbidden: deque[str]) -> None:
        self.client, self.lost, self._forbidden = client, lost, forbidden

    @property
    def is_open(self) -> bool:
        """Whether it has not been lost, as far as anyone knows."""
        return not self.lost.is_set() and self.client.is_connected

    def forbidden(self, subject: str = "") -> str | None:
        """What the server has said of this subject, or of any, because it is not for us."""
        named = f'"{subject}"'.casefold() if subject else ""
        return next((text for text in reversed(self._forbidden) if named in text.casefold()), None)

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Raise `nats.errors.Error` with what is forbidden instead of a timeout: such a request has no answer."""
        try:
            yield
        except nats.errors.TimeoutError as error:
            if text := self.forbidden():
                raise nats.errors.Error(text) from error
            raise

    async def request(self, subject: str, body: bytes, patience: float) -> Msg:
        """The answer to a request. Raises `nats.errors.Error`, also when the connection is lost meanwhile."""
        asking = asyncio.ensure_future(self.client.request(subject, body, timeout=patience))
        await self.first_of(asking)
        if asking.cancelled():  # by the client library, as it hangs up
            raise nats.errors.ConnectionClosedError
        return asking.result()

    async def first_of(self, waiting: asyncio.Future[Any], patience: float | None = None) -> None:
        """Wait for something until the connection is lost, or the time is over. Raises `ConnectionClosedError`."""
        lost = asyncio.create_task(self.lost.wait())
        try:
            await asyncio.wait({lost, waiting}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done() and self.lost.is_set():
                raise nats.errors.ConnectionClosedError
        finally:
            lost.cancel()
            waiting.cancel()

    async def close(self) -> None:
        """Hang up."""
        self.lost.set()
        with suppress(*LOST):
            await self.client.close()


async def connect(url: str, credentials: str | None, patience: float) -> Connection:
    """Connect to one of the servers of a URL, which are separated by commas."""
    lost = asyncio.Event()

    async def is_lost() -> None:
        lost.set()

    forbidden: deque[str] = deque(maxlen=16)

    async def told(error: Exception) -> None:
        """The server says something that answers no request."""
        if _FORBIDDEN in str(error).lower():
            forbidden.append(str(error))

    client = Client()
    try:
        async with asyncio.timeout(patience):
            await client.connect(
                url.split(","),
                user_credentials=credentials,
                allow_reconnect=False,
                max_reconnect_attempts=1,  # of the first connection, for each server
                reconnect_time_wait=0,
                connect_timeout=max(1, round(patience)),
                ping_interval=_PING_EVERY,
                disconnected_cb=is_lost,
                closed_cb=is_lost,
                error_cb=told,
            )
    except BaseException as error:
        with suppress(Exception):  # of a client that never came to connect, even an AssertionError
            await client.close()  # the library leaves the socket of a greeting that was cut off
        if isinstance(error, ModuleNotFoundError):
            raise ConfigurationError(f"Credentials of NATS need {error.name}: pip install 'retrysafe[nats]'") from error
        raise
    return Connection(client, lost, forbidden)
