"""Clients of SQS and SNS, opened when they are first used."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError
from botocore.loaders import create_loader

from retrysafe.errors import ConfigurationError


class TopicMissing(Exception):
    """There is no topic of this name."""


FAILURES = (BotoCoreError, ClientError, OSError, TimeoutError, ConfigurationError, TopicMissing)
"""The errors of a call."""
_DESCRIPTIONS = create_loader()
"""The descriptions of the services, which are large and are read once."""
LONGEST_POLL = 20
"""Seconds after which the service answers at the latest that there are no messages."""
_MISSING = ("QueueDoesNotExist", "NonExistentQueue", "NotFound", "NotFoundException", "ResourceNotFoundException")


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

        Raises one of `FAILURES`: `ConfigurationError` when there are no credentials or no region.
        """
        try:
            async with asyncio.timeout(self._timeout + patience):
                return await getattr(await self._open(), operation)(**arguments)
        except (NoCredentialsError, NoRegionError) as error:
            raise ConfigurationError(
                f"{str(error).rstrip('.')}. Give this machine credentials of AWS, and the URL a region=."
            ) from error

    async def aclose(self) -> None:
        self._client = None
        await self._life.aclose()

    async def _open(self) -> Any:
        async with self._opening:
            if self._client is None:
                settings = AioConfig(
                    connect_timeout=self._timeout,
                    read_timeout=self._timeout + LONGEST_POLL,
                    max_pool_connections=50,
                    retries={"mode": "standard", "total_max_attempts": 1},
                    tcp_keepalive=True,
                )
                session = get_session()
                session.register_component("data_loader", _DESCRIPTIONS)
                making = session.create_client(
                    self._name, region_name=self._region, endpoint_url=self._endpoint, config=settings
                )
                self._client = await self._life.enter_async_context(making)
        return self._client


def code_of(error: ClientError) -> str:
    """The code of an error, without the prefix that older protocols have."""
    return plain(error.response["Error"].get("Code"))


def plain(code: str | None) -> str:
    return (code or "").rpartition(".")[2]


def status_of(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500))


def is_missing(error: BaseException) -> bool:
    return isinstance(error, TopicMissing) or (isinstance(error, ClientError) and code_of(error) in _MISSING)


async def topic_named(service: Service, name: str) -> str:
    """The address of a topic of SNS. Raises one of `FAILURES`: `TopicMissing` if there is none."""
    pages: dict[str, Any] = {}
    while True:
        answer = await service.call("list_topics", **pages)
        for topic in answer["Topics"]:
            if topic["TopicArn"].rpartition(":")[2] == name:
                return str(topic["TopicArn"])
        if not answer.get("NextToken"):
            raise TopicMissing(name)
        pages = {"NextToken": answer["NextToken"]}
