"""Letting time pass for a key in a store that a test names by its URL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from retrysafe.backends.driver import arun, run
from retrysafe.backends.registry import connect, leave
from retrysafe.protocol.requests import Program
from retrysafe.testing.time_travel import elapse, lapse

Age = Callable[[bytes, int], None]
"""Lets so many microseconds pass for a key."""


def age_at(url: str) -> Age:
    """By the clients of those who use this URL, or, when nobody does, by clients made for it."""

    def age(key: bytes, micros: int) -> None:
        do_at(url, lambda store: elapse(store, [key], micros))

    return age


def let_lapse(url: str, boundary: str) -> None:
    """Let time pass for what a boundary runs, until its leases have lapsed: its workers have died."""
    do_at(url, lambda store: lapse(store, [boundary]))


def do_at(url: str, program: Callable[[Any], Program[Any]]) -> Any:
    """Drive a program over the store behind a URL."""
    backend = connect(url)
    backend.users += 1
    try:
        if backend.serves_sync:
            return run(program(backend.store), backend.client())
        return asyncio.run(_done(backend, program))
    finally:
        if leave(backend):
            backend.close()


async def _done(backend: Any, program: Callable[[Any], Program[Any]]) -> Any:
    try:
        return await arun(program(backend.store), backend.aclient())
    finally:
        await backend.aclose()


def mysql_connection(url: str, **options: Any) -> Any:
    """A PyMySQL connection of a test's own.

    Closing it rolls back first: a server ends the transaction of a connection that was merely closed a moment later,
    with its locks held until then.
    """
    import pymysql
    from pymysql.constants import SERVER_STATUS

    class Connection(pymysql.connections.Connection):  # type: ignore[misc]
        def close(self) -> None:
            if self.open and self.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS:
                with suppress(pymysql.Error):  # its server is gone, and so is the transaction
                    self.rollback()
            super().close()

    parts = urlsplit(url)
    return Connection(
        host=parts.hostname,
        port=parts.port,
        user=parts.username,
        database=parts.path[1:],
        ssl_disabled=True,  # or every connection would read all certificates of the system
        **{"charset": "utf8mb4", **options},
    )


@cache
def redis_masters(url: str) -> Any:
    """Return a client to the master that has a key; the test's own."""
    from retrysafe.backends.redis import url as redis_url

    return redis_url.sync(redis_url.parse(url))


@cache
def dynamodb_client(endpoint: str) -> Any:
    """A client of the tests' own, one in every process: making one takes a tenth of a second."""
    import boto3

    return boto3.client("dynamodb", endpoint_url=endpoint, region_name="us-east-1")
