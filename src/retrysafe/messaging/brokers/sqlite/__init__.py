"""Queues in a SQLite file: a broker for the processes of one machine, with nothing to install."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrysafe.messaging.brokers.spec import BrokerSpec, lazily

if TYPE_CHECKING:
    from retrysafe.messaging.brokers.sqlite.broker import AsyncSqlitePublisher, SqliteConsumer, SqlitePublisher, declare

__all__ = ["BROKER", "AsyncSqlitePublisher", "SqliteConsumer", "SqlitePublisher", "declare"]

BROKER = BrokerSpec(
    package=__name__,
    title="SQLite",
    schemes=("sqlite",),
    publisher="broker:publisher",
    async_publisher="broker:async_publisher",
    consumer="broker:consumer",
    broker="broker:broker",
    declaration="broker:declaration",
)

__getattr__ = lazily(__name__, broker="AsyncSqlitePublisher SqliteConsumer SqlitePublisher declare")
