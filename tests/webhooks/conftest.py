"""Receivers of every provider on every store, and a count of effects that a rollback takes back."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from retrysafe.webhooks import Receiver, WebhookEvent
from tests.faults.helpers import unique
from tests.http.conftest import Place, place
from tests.webhooks.providers import NOW, PROVIDERS, Provider

__all__ = ["place"]
WINDOW = "7d"


class Effects:
    """The effects of handlers: rows in the boundary's own transaction where it has one, else entries of a list."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._entries: list[str] = []
        self._table = unique("effects")
        if place.transactional:
            self._execute(f"CREATE TABLE {self._table} (event TEXT NOT NULL)")

    def had(self, event: WebhookEvent[Any]) -> None:
        """In a sync handler."""
        if not self._place.transactional:
            self._entries.append(event.id)
        else:
            event.tx.execute(*self._insert(event))

    async def ahad(self, event: WebhookEvent[Any]) -> None:
        """In an async handler."""
        if not self._place.transactional or self._place.store.startswith("sqlite"):
            self.had(event)
        else:
            await event.tx.execute(*self._insert(event))

    def _insert(self, event: WebhookEvent[Any]) -> tuple[str, tuple[str]]:
        mark = "?" if self._place.store.startswith("sqlite") else "%s"
        return f"INSERT INTO {self._table} VALUES ({mark})", (event.id,)

    @property
    def of(self) -> list[str]:
        """The ids of the events that had an effect, committed where there are commits."""
        if not self._place.transactional:
            return sorted(self._entries)
        return sorted(row[0] for row in self._execute(f"SELECT event FROM {self._table}"))

    def forget(self) -> None:
        """From now on only what follows counts."""
        self._entries.clear()
        if self._place.transactional:
            self._execute(f"DELETE FROM {self._table}")

    def _execute(self, sql: str) -> list[Any]:
        if self._place.store.startswith("sqlite"):
            with closing(sqlite3.connect(self._place.store.removeprefix("sqlite:///"))) as connection, connection:
                return connection.execute(sql).fetchall()
        with psycopg.connect(self._place.store, autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        if self._place.transactional:
            self._execute(f"DROP TABLE {self._table}")


@pytest.fixture
def effects(place: Place) -> Iterator[Effects]:
    """The effects of a test's handlers."""
    made = Effects(place)
    yield made
    made.close()


@pytest.fixture(params=PROVIDERS)
def provider(request: pytest.FixtureRequest) -> Provider:
    """Every provider."""
    return PROVIDERS[request.param]


class Clock:
    """A time that stands still until it is set."""

    def __init__(self) -> None:
        self.now: float = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """The time as the receivers of a test see it."""
    return Clock()


class Gate:
    """A handler that waits inside its claim, sync or async, until it is let go."""

    def __init__(self) -> None:
        self.entered, self.leave = threading.Event(), threading.Event()

    def pass_through(self) -> None:
        self.entered.set()
        assert self.leave.wait(60)

    async def apass_through(self) -> None:
        self.entered.set()
        assert await asyncio.to_thread(self.leave.wait, 60)


def receiver_of(place: Place, provider: Provider, clock: Clock, **options: Any) -> Receiver:
    """A receiver on a boundary of its own."""
    terms = options.pop("terms", {})
    scheme = options.pop("scheme", None) or provider.receiver_scheme()
    return Receiver(place.boundary(window=WINDOW, **terms), scheme, clock=clock, **options)
