"""A broker in a SQLite file, from a URL such as sqlite:///broker.db."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from retrysafe.backends.urls import without_password
from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.base import Broker
from retrysafe.messaging.brokers.spec import declaring
from retrysafe.messaging.brokers.sqlite.broker import AsyncSqlitePublisher, SqliteConsumer, SqlitePublisher, declare
from retrysafe.protocol.records import Duration


def path_of(url: str) -> str:
    """The path of the file. Raises `ConfigurationError` for a URL without one."""
    path = url.removeprefix("sqlite:///")
    if path in ("", url, ":memory:") or "?" in path:
        raise ConfigurationError(f"{without_password(url)!r}: write sqlite:///relative.db or sqlite:////absolute.db.")
    return path


def publisher(url: str) -> SqlitePublisher:
    """The publisher of `retrysafe relay`."""
    return SqlitePublisher(path_of(url))


def async_publisher(url: str) -> AsyncSqlitePublisher:
    """The publisher of `retrysafe relay` on an async store."""
    return AsyncSqlitePublisher(path_of(url))


def consumer(url: str, topics: Sequence[str], *, group: str, lease: Duration = "30s") -> SqliteConsumer:
    """The consumer of `retrysafe inbox run`: the group is a queue, which has the topics that it is bound to."""
    if topics or not group:
        raise ConfigurationError(
            "A queue of a SQLite file has the topics that it is bound to: give --group alone. Bind it first with  "
            f"{declaring('GROUP')}"
        )
    return SqliteConsumer(path_of(url), group, hold=lease)


def declaration(url: str, topics: Sequence[str], *, group: str) -> None:
    """Make the file, and bind topics to the queue of a group, for `retrysafe topics declare`."""
    declare(path_of(url), [(topic, group) for topic in topics])


def broker(url: str, *, name: str, partitions: int | None, lease: Duration) -> Broker:
    """A file of queues; its lanes are spread by themselves, so that it has no partitions."""
    path = path_of(url)

    def queue(topic: str, group: str) -> str:
        return f"{name}.{group}.{topic}"

    return Broker(
        lambda topics, group: asyncio.to_thread(declare, path, [(topic, queue(topic, group)) for topic in topics]),
        lambda: AsyncSqlitePublisher(path),
        lambda topic, group: SqliteConsumer(path, queue(topic, group), hold=lease),
    )
