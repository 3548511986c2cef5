"""A connection to NATS that is made anew when it is lost, instead of by the client library.

The library keeps what is published while it is away, and sends it later: behind what was sent again meanwhile.
"""

from __future__ import annotations

import asyncio
import re
import time
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
"""Errors of a lost connection, or of a server that cannot be reached."""


_SUBJECTS = 10_000
"""The number of forbidden subjects that are remembered."""
_FORBIDDEN = "permissions violation"
"""The server's words for a forbidden subject, such as: permissions violation for publish to "orders"."""


class Forbidden:
    """The forbidden subjects that the server has named, and when. The client tells it in small letters."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[str, float]] = {}

    def note(self, text: str) -> None:
        """The server says something that answers no request."""
        if _FORBIDDEN in text.lower():
            subject = (re.findall('"([^"]*)"', text) or [""])[-1].casefold()
            self._said.pop(subject, None)
            self._said[subject] = text, time.monotonic()
            if len(self._said) > _SUBJECTS:
                del self._said[next(iter(self._said))]

    def since(self, began: float, subject: str = "") -> str | None:
        """Return the refusal since then of this subject, or of any."""
        of = [self._said.get(subject.casefold())] if subject else reversed(self._said.values())
        return next((one[0] for one in of if one is not None and one[1] >= began), None)


class NatsLink:
    """A client that is connected, when it is lost, and what the server has said that it may not do."""

    def __init__(self, client: Client, lost: asyncio.Event, forbidden: Forbidden) -> None:
        self.client, self.lost, self.forbidden = client, lost, forbidden

    @property
    def is_open(self) -> bool:
        """True if it has not been lost, as far as anyone knows."""
        return not self.lost.is_set() and self.client.is_connected

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Raise `nats.errors.Error` with what is forbidden instead of a timeout: such a request has no answer."""
        began = time.monotonic()
        try:
            yield
        except nats.errors.TimeoutError as error:
            if text := self.forbidden.since(began):
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
        self.lost.set()
        with suppress(*LOST):
            await self.client.close()


async def connect(url: str, credentials: str | None, patience: float) -> NatsLink:
    """Connect to one of the servers of a URL, which are separated by commas."""
    lost = asyncio.Event()

    async def is_lost() -> None:
        lost.set()

    forbidden = Forbidden()

    async def on_error(error: Exception) -> None:
        forbidden.note(str(error))

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
                error_cb=on_error,
            )
    except BaseException as error:
        with suppress(Exception):  # of a client that never came to connect, even an AssertionError
            await client.close()  # the library leaves the socket of a greeting that was cut off
        if isinstance(error, ModuleNotFoundError):
            raise ConfigurationError(f"Credentials of NATS need {error.name}: pip install 'retrysafe[nats]'") from error
        raise
    return NatsLink(client, lost, forbidden)
