"""Clients of SQS and SNS, opened when they are first used."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError

from retrysafe.errors import ConfigurationError

FAILURES = (BotoCoreError, ClientError, OSError, TimeoutError)
"""What a call raises."""


class Service:
    """A client of one service, for one event loop. It never repeats a call by itself.

    region, endpoint: by default what the environment says.
    """

    def __init__(self, name: str, region: str | None, endpoint: str | None, timeout: float) -> None:
        self._name, self._region, self._endpoint, self._timeout = name, region, endpoint, timeout
        self._life = AsyncExitStack()
        self._client: Any = None
        self._opening = asyncio.Lock()

    async def call(self, operation: str, *, patience: float = 0.0, **arguments: Any) -> Any:
        """The answer of an operation, which may take so many seconds longer than others.

        Raises `ConfigurationError` when there are no credentials or no region.
        """
        try:
            async with asyncio.timeout(self._timeout + patience):
                return await getattr(await self._opened(), operation)(**arguments)
        except (NoCredentialsError, NoRegionError) as error:
            raise ConfigurationError(f"{error} Give this machine credentials of AWS, and the URL a region=.") from error

    async def aclose(self) -> None:
        """Close it."""
        self._client = None
        await self._life.aclose()

    async def _opened(self) -> Any:
        async with self._opening:
            if self._client is None:
                settings = AioConfig(
                    connect_timeout=self._timeout,
                    read_timeout=self._timeout + 20,  # a long poll is answered after 20 seconds at the latest
                    max_pool_connections=50,
                    retries={"mode": "standard", "total_max_attempts": 1},
                    tcp_keepalive=True,
                )
                making = get_session().create_client(
                    self._name, region_name=self._region, endpoint_url=self._endpoint, config=settings
                )
                self._client = await self._life.enter_async_context(making)
        return self._client


def code_of(error: ClientError) -> str:
    """The code of an error, without the prefix that older protocols have."""
    return str(error.response["Error"].get("Code", "")).rpartition(".")[2]


def status_of(error: ClientError) -> int:
    """The HTTP status of an error."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500))
