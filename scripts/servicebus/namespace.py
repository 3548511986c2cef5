"""All entities of a namespace: made, found, sent to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from entities import DEAD, DeadLetters, Destination, Message, RefusedError, Store
from journal import Journal
from settings import Settings

_SUBSCRIPTIONS = "/subscriptions/"
LARGEST = 256 << 10
"""Bytes of a message or a batch, as in the Standard tier."""


class Incoming(NamedTuple):
    """A message as it was sent."""

    content: bytes
    id: str
    session: str | None
    lives: float | None


class Namespace:
    """Entities by their paths, which are the same in any case of letters."""

    def __init__(self, journal: Journal, mark: Callable[[bytes, str, str], bytes]) -> None:
        self.journal, self._mark = journal, mark
        self.destinations: dict[str, Destination] = {}
        self._seq = int(time.time() * 1_000_000)
        for path, kind, elements in journal.entities():
            self._make(path, kind, Settings(elements))
        stores = {store.path: store for store in self.stores()}
        for row in list(journal.messages()):
            if row.store in stores:
                stores[row.store].restore(row)
        for path, id, at in journal.seen():
            if path in self.destinations:
                self.destinations[path].seen[id] = at

    def stores(self) -> Iterator[Store]:
        """All that can be received from."""
        for destination in self.destinations.values():
            for store in destination.stores.values():
                yield store
                if store.dead is not None:
                    yield store.dead

    def put(self, path: str, kind: str, settings: Settings, *, update: bool) -> None:
        """Make an entity, or give it other settings. Raises RefusedError."""
        path = path.lower()
        found = self._settings(path)
        if found is not None and not update:
            raise RefusedError("com.microsoft:entity-already-exists", f"{path} exists.")
        if found is None and update:
            raise RefusedError("amqp:not-found", f"There is no {path}.")
        self.journal.put_entity(path, kind, settings.elements)
        if found is None:
            self._make(path, kind, settings)
        else:
            self._change(path, settings)

    def drop(self, path: str) -> None:
        """Remove an entity. Raises RefusedError."""
        path = path.lower()
        if self._settings(path) is None:
            raise RefusedError("amqp:not-found", f"There is no {path}.")
        topic, _, subscription = path.partition(_SUBSCRIPTIONS)
        if subscription:
            del self.destinations[topic].stores[subscription]
        else:
            del self.destinations[path]
        self.journal.drop_entity(path)

    def destination(self, path: str) -> Destination:
        """Return a destination to send to. Raises RefusedError."""
        found = self.destinations.get(path.lower())
        if found is None:
            raise RefusedError("amqp:not-found", f"The messaging entity '{path}' could not be found.")
        if found.settings.status in ("Disabled", "SendDisabled"):
            raise RefusedError("com.microsoft:entity-disabled", f"The entity '{path}' is disabled for sending.")
        return found

    def store(self, path: str) -> Store:
        """Return a store to receive from. Raises RefusedError."""
        path, dead = (path.lower().removesuffix(f"/{DEAD}"), path.lower().endswith(f"/{DEAD}"))
        topic, _, subscription = path.partition(_SUBSCRIPTIONS)
        entity = self.destinations.get(topic)
        found = None if entity is None else entity.stores.get(subscription)
        if found is None:
            raise RefusedError("amqp:not-found", f"The messaging entity '{path}' could not be found.")
        return found.dead if dead and found.dead is not None else found

    def send(self, destination: Destination, batch: list[Incoming], now: float) -> set[Store]:
        """Store all messages of a batch, or none. Raises RefusedError."""
        settings = destination.settings
        stores = destination.stores.values()
        if sum(store.size for store in stores) + sum(len(one.content) for one in batch) > settings.size:
            raise RefusedError("amqp:resource-limit-exceeded", "The maximum entity size has been reached or exceeded.")
        if settings.sessions and any(one.session is None for one in batch):
            raise RefusedError("amqp:not-allowed", "The SessionId was not set on a message of an entity with sessions.")
        if settings.partitions and len({one.session for one in batch}) > 1:
            raise RefusedError("amqp:not-allowed", "A batch of an entity with partitions has messages of one session.")
        for one in batch:
            if settings.recognises and one.id and not self._is_new(destination, one.id, now):
                continue
            self._seq += 1
            lives = min(settings.kept, one.lives if one.lives is not None else settings.kept)
            for store in stores:
                expires = now + min(lives, store.settings.kept)
                store.add(Message(self._seq, one.content, one.id, one.session, now, expires))
        return set(stores)

    def _is_new(self, destination: Destination, id: str, now: float) -> bool:
        known = destination.seen.get(id)
        if known is not None and now - known < destination.settings.window:
            return False
        destination.seen[id] = now
        self.journal.see(destination.path, id, now)
        return True

    def _settings(self, path: str) -> Settings | None:
        topic, _, subscription = path.partition(_SUBSCRIPTIONS)
        entity = self.destinations.get(topic)
        if entity is None or not subscription:
            return None if entity is None else entity.settings
        return entity.stores[subscription].settings if subscription in entity.stores else None

    def _make(self, path: str, kind: str, settings: Settings) -> None:
        topic, _, subscription = path.partition(_SUBSCRIPTIONS)
        if subscription and topic not in self.destinations:
            raise RefusedError("amqp:not-found", f"There is no topic {topic}.")
        if not subscription:
            self.destinations[path] = Destination(path, kind, settings)
        if kind != "Topic":
            dead = Store(f"{path}/{DEAD}", Settings({}), self.journal, None)
            self.destinations[topic].stores[subscription] = Store(
                path, settings, self.journal, DeadLetters(dead, self._mark)
            )

    def _change(self, path: str, settings: Settings) -> None:
        topic, _, subscription = path.partition(_SUBSCRIPTIONS)
        entity = self.destinations[topic]
        if not subscription:
            entity.settings = settings
        if subscription in entity.stores:
            entity.stores[subscription].settings = settings
