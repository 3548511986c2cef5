"""Backends on DynamoDB, from a URL, a client of boto3 or aiobotocore, or a boto3 Table."""

from __future__ import annotations

import re
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from retrysafe.backends.backend import Backend
from retrysafe.backends.dynamodb.client import Access, AsyncDynamodbClient, DynamodbClient, Plain
from retrysafe.backends.dynamodb.store import DynamodbStore
from retrysafe.backends.service_clock import ServiceClock
from retrysafe.backends.spec import StoreAccess
from retrysafe.backends.urls import url_options, without_password
from retrysafe.errors import ConfigurationError
from retrysafe.protocol import durations

DEFAULT_TABLE = "retrysafe_records"
"""The table of a client, which names none."""
_TABLE_NAME = re.compile(r"[A-Za-z0-9_.-]{3,255}")


def from_url(url: str) -> Backend:
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    url_options(options, ("region", "endpoint", "timeout", "pool"), "dynamodb")
    if not _TABLE_NAME.fullmatch(parts.netloc) or parts.path not in ("", "/"):
        raise ConfigurationError(
            f"store={without_password(url)!r}: write dynamodb://table?region=…&endpoint=…; a table's name has 3 to 255 "
            "letters, digits, dots, hyphens and underscores."
        )
    pool = options.get("pool", "50")
    if not pool.isdecimal() or int(pool) < 1:
        raise ConfigurationError(f"store={without_password(url)!r}: pool is a number of connections.")
    timeout = durations.seconds(options.get("timeout", "2s"), "timeout")
    access = Access(options.get("region"), options.get("endpoint"), timeout, int(pool))
    impatient = access._replace(timeout=min(1.0, timeout), pool=10, patience=0.0)
    clock = ServiceClock()
    return Backend(
        DynamodbStore(parts.netloc, clock, url),
        StoreAccess(
            url,
            sync=partial(DynamodbClient.connect, access, clock),
            asynchronous=partial(AsyncDynamodbClient, access, clock),
            heartbeat=partial(DynamodbClient.connect, impatient, clock),
            aheartbeat=partial(AsyncDynamodbClient, impatient, clock),
        ),
    )


def from_client(client: Any) -> Backend:
    service = client.meta.service_model.service_name
    if service != "dynamodb":
        raise ConfigurationError(f"store= is a client of {service}; expected one of dynamodb.")
    clock, address = ServiceClock(), _address(DEFAULT_TABLE, client)
    asynchronous = hasattr(client, "__aenter__")
    return Backend(
        DynamodbStore(DEFAULT_TABLE, clock, address),
        StoreAccess(
            address,
            sync=None if asynchronous else partial(DynamodbClient, client, clock),
            asynchronous=partial(AsyncDynamodbClient, Access(), clock, client) if asynchronous else None,
        ),
    )


def from_table(table: Any) -> Backend:
    if table.meta.resource_model.name != "Table" or table.meta.service_name != "dynamodb":
        raise ConfigurationError(f"store= is {table!r}; of boto3's resources only a DynamoDB Table can be one.")
    clock, address = ServiceClock(), _address(table.name, table.meta.client)
    return Backend(
        DynamodbStore(table.name, clock, address),
        StoreAccess(address, sync=partial(DynamodbClient, Plain(table.meta.client), clock)),
    )


def _address(table: str, client: Any) -> str:
    return f"dynamodb://{table}?region={client.meta.region_name}&endpoint={client.meta.endpoint_url}"
