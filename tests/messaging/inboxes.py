"""Inboxes on every database, and messages for them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrysafe import Boundary
from retrysafe.backends import registry
from retrysafe.backends.driver import run
from retrysafe.messaging import Envelope, Handler, Inbox
from retrysafe.messaging.inbox import procedures
from retrysafe.messaging.inbox.attempts import InboxAttempt
from retrysafe.protocol.events import Event
from retrysafe.protocol.messages import DeadLetterFilter, Delivery, InboxLetter
from retrysafe.protocol.requests import ask
from tests.stores.ageing import mysql_connection

KINDS = ("sqlite", "postgresql", "mysql")


def envelope(id: object, key: object = "k", payload: bytes = b'{"n":1}', **fields: Any) -> Envelope:
    text = None if key is None else str(key)
    made = Envelope(str(id), "orders", text, "orders.placed.v1", "/shop", None, {}, payload, "application/json")
    return made._replace(**fields)


def delivery(id: object, key: object = "k", payload: bytes = b'{"n":1}', *, redelivered: bool = False) -> Delivery:
    return Delivery(envelope(id, key, payload), id, "orders.0", redelivered)


@dataclass
class World:
    """A database with a table of what was applied, and the inboxes on it."""

    kind: str
    url: str
    table: str
    told: list[Event] = field(default_factory=list)
    boundaries: list[Boundary] = field(default_factory=list)

    def inbox(self, **terms: Any) -> Inbox:
        name = f"inbox-{secrets.token_hex(6)}"
        letters = terms.pop("dead_letter_store", None)
        terms = {
            "store": self.url,
            "effects": "transactional",
            "window": "7d",
            "observers": (self.told.append,),
            **terms,
        }
        self.boundaries.append(Boundary(name, **terms))
        return Inbox(self.boundaries[-1], dead_letter_store=letters)

    def apply(self, tx: Any, value: object) -> None:
        """The business write: it counts how often it was made."""
        sql = f"INSERT INTO {self.table} VALUES ('{value}')"
        if hasattr(tx, "query"):
            tx.query(sql)
        else:
            tx.execute(sql)

    def applied(self) -> list[str]:
        with self.connected() as look:
            return sorted(row[0] for row in look(f"SELECT value FROM {self.table}"))

    @contextmanager
    def connected(self) -> Iterator[Any]:
        if self.kind == "sqlite":
            import sqlite3

            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"), isolation_level=None)) as lite:
                yield lambda sql: lite.execute(sql).fetchall()
        elif self.kind == "postgresql":
            import psycopg

            with psycopg.connect(self.url, autocommit=True) as connection:

                def perform(sql: str) -> Any:
                    cursor = connection.execute(sql.encode())
                    return cursor.fetchall() if cursor.description else []

                yield perform
        else:
            with closing(mysql_connection(self.url, autocommit=True)) as my, my.cursor() as cursor:

                def query(sql: str) -> Any:
                    cursor.execute(sql)
                    return cursor.fetchall()

                yield query

    def letters(self, inbox: Inbox) -> list[InboxLetter]:
        found = inbox._letters
        return found.run(ask(found.inbox.letters(DeadLetterFilter(boundary=inbox.boundary.name), limit=100)))

    def mark(self, inbox: Inbox) -> None:
        for letter in self.letters(inbox):
            assert run(ask(inbox._letters.inbox.mark(letter.arrival.identity)), inbox._letters.backend.client())

    def begin(self, handler: Handler[..., Any], envelope: Envelope) -> None:
        """Leave the state of an attempt whose process is killed in it."""
        handler.letters.run(procedures.begin(handler.letters.inbox, InboxAttempt(handler.setting, envelope)))

    def withdraw(self, handler: Handler[..., Any], envelope: Envelope) -> None:
        arrival = InboxAttempt(handler.setting, envelope).arrival
        handler.letters.run(ask(handler.letters.inbox.note_withdrawal(arrival)))

    def unfinished(self, handler: Handler[..., Any], envelope: Envelope) -> int:
        arrival = InboxAttempt(handler.setting, envelope).arrival
        counts = handler.letters.run(ask(handler.letters.inbox.counts(arrival)))
        return counts.started - counts.finished

    def age_attempts(self, seconds: int = 3600) -> None:
        with self.connected() as perform:
            perform(f"UPDATE retrysafe_inbox_attempts SET updated = updated - {seconds * 1_000_000}")

    def names(self) -> list[str]:
        return [one.name for one in self.told]

    def close(self) -> None:
        for boundary in self.boundaries:
            boundary.close()
        with self.connected() as perform:
            perform(f"DROP TABLE {self.table}")


def world_of(kind: str, path: Path) -> World:
    url = f"sqlite:///{path / 'inbox.db'}" if kind == "sqlite" else os.environ[f"RETRYSAFE_TEST_{kind.upper()}"]
    registry.connect(url).migrate()
    world = World(kind, url, f"applied_{secrets.token_hex(6)}")
    with world.connected() as perform:
        perform(f"CREATE TABLE {world.table} (value VARCHAR(64))")
    return world
