"""Backends on Cosmos DB, from a URL or a database of azure-cosmos."""

from __future__ import annotations

import re
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from azure.cosmos.aio import DatabaseProxy as AsyncDatabaseProxy

from retrysafe.backends.backend import Backend
from retrysafe.backends.cosmos.client import AsyncCosmosClient, ContainerAccess, CosmosClient, Reach
from retrysafe.backends.cosmos.store import CosmosStore
from retrysafe.backends.service_clock import ServiceClock
from retrysafe.backends.spec import StoreAccess
from retrysafe.backends.urls import url_options, without_password
from retrysafe.errors import ConfigurationError
from retrysafe.protocol import durations

_KEY = re.compile(r"[A-Za-z0-9+/]+={0,2}")
CONTAINER = "retrysafe_records"
"""The container, if the URL names none."""


def from_url(url: str) -> Backend:
    parts, address = urlsplit(url), without_password(url)
    options = dict(parse_qsl(parts.query))
    url_options(options, ("timeout", "discovery"), "cosmos")
    discovery = options.get("discovery", "on")
    database, _, container = unquote(parts.path.strip("/")).partition("/")
    key = unquote(parts.password or "")
    if not (parts.hostname and database and _KEY.fullmatch(key)) or "/" in container or discovery not in ("on", "off"):
        raise ConfigurationError(
            f"store={address!r}: write cosmos://:KEY@ACCOUNT.documents.azure.com/database/container?discovery=on, with "
            "the key percent-encoded (/ is %2F, + is %2B, = is %3D). Without a key, store= takes a DatabaseProxy."
        )
    timeout = durations.seconds(options.get("timeout", "5s"), "timeout")
    access = ContainerAccess(f"https://{parts.hostname}:{parts.port or 443}/", key, timeout, 3.0, discovery == "on")
    pulse = access._replace(timeout=min(1.0, timeout), patience=0.001)  # 0 would be the library's default
    clock, names = ServiceClock(), (database, container or CONTAINER)
    return Backend(
        CosmosStore(clock, address, names),
        StoreAccess(
            address,
            sync=partial(CosmosClient, names, clock, access),
            asynchronous=partial(AsyncCosmosClient, names, clock, access),
            heartbeat=partial(CosmosClient, names, clock, pulse),
            aheartbeat=partial(AsyncCosmosClient, names, clock, pulse),
        ),
    )


def from_database(database: Any) -> Backend:
    clock, names = ServiceClock(), (database.id, CONTAINER)
    address = f"cosmos://…@{urlsplit(database.client_connection.url_connection).netloc}/{'/'.join(names)}"
    reach = Reach(database, CONTAINER)
    access = (
        StoreAccess(address, asynchronous=partial(AsyncCosmosClient, names, clock, reach=reach))
        if isinstance(database, AsyncDatabaseProxy)
        else StoreAccess(address, sync=partial(CosmosClient, names, clock, reach=reach))
    )
    return Backend(CosmosStore(clock, address, names), access)
