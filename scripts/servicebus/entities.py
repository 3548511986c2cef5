"""Queues, topics and subscriptions by the rules that the service documents. Instants are seconds of any one clock.

https://learn.microsoft.com/azure/service-bus-messaging/: message-transfers-locks-settlement (locks and settlement),
message-sessions (sessions, and when deliveries are counted), duplicate-detection, service-bus-dead-letter-queues.
"""

from __future__ import annotations

import heapq
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from journal import Journal, Row
from settings import Settings

DEAD = "$deadletterqueue"
LOCK_LOST = "com.microsoft:message-lock-lost"
SESSION_LOST = "com.microsoft:session-lock-lost"


class RefusedError(Exception):
    """A request that is refused, by the condition of AMQP that says why."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description)
        self.condition, self.description = condition, description


@dataclass
class Message:
    """One of a store. ``token`` and ``until`` are of its lock; in a session the session's lock counts."""

    seq: int
    content: bytes
    id: str
    session: str | None
    enqueued: float
    expires: float
    count: int = 0
    token: uuid.UUID | None = None
    until: float = 0.0


@dataclass
class SessionLock:
    """The holder of a session, and the end of its lock."""

    owner: object
    until: float
    held: dict[uuid.UUID, Message] = field(default_factory=dict)


class Store:
    """A source to receive from: a queue, a subscription, or the dead letters of one."""

    def __init__(self, path: str, settings: Settings, journal: Journal, dead: DeadLetters | None) -> None:
        self.path, self.settings, self._dead = path, settings, dead
        self.dead = None if dead is None else dead.store
        self._journal = journal
        self.size = 0
        self.messages: dict[int, Message] = {}
        self.sessions: dict[str, SessionLock] = {}
        self.locked: dict[uuid.UUID, Message] = {}
        self._ready: dict[str | None, list[int]] = {}
        self.lost: Callable[[object], None] = lambda owner: None
        """Told the owner of a session whose lock has expired."""

    def restore(self, row: Row) -> None:
        """Take back what was there before a restart."""
        message = Message(row.seq, row.content, row.id, row.session, row.enqueued, row.expires, row.count)
        self._put(message)

    def add(self, message: Message) -> None:
        """Store a message."""
        if self.settings.sessions and message.session is None and self._dead is not None:
            self._bury(message, "Session id is null.", "An entity that requires sessions takes no message without one.")
            return
        self._journal.add(Row(self.path, *_columns(message)))
        self._put(message)

    def next_session(self) -> str | None:
        """The session nobody has whose first message is the oldest; None if there is none."""
        free = ((heap[0], name) for name, heap in self._ready.items() if heap and name not in self.sessions)
        return next((name for _, name in sorted(free, key=lambda one: one[0])[:1]), None)

    def lock_session(self, name: str, owner: object, now: float) -> SessionLock:
        """Give a session to an owner."""
        if name in self.sessions:
            raise RefusedError("com.microsoft:session-cannot-be-locked", f"The session {name!r} is locked.")
        lock = self.sessions[name] = SessionLock(owner, now + self.settings.lock)
        return lock

    def release_session(self, name: str, owner: object) -> None:
        """Its owner hangs up: what is not settled is there again, and no delivery is counted."""
        lock = self.sessions.get(name)
        if lock is not None and lock.owner is owner:
            del self.sessions[name]
            for token, message in lock.held.items():
                del self.locked[token]
                self._let_go(message)

    def renew_session(self, name: str, owner: object, now: float) -> float:
        """Until when it is locked then."""
        lock = self.sessions.get(name)
        if lock is None or lock.owner is not owner:
            raise RefusedError(SESSION_LOST, "The session lock has expired on the session.")
        lock.until = now + self.settings.lock
        return lock.until

    def take(self, session: str | None, now: float) -> Message | None:
        """Lock the next message of a session, or of all."""
        heap = self._ready.get(session, [])
        while heap:
            message = self.messages.get(heapq.heappop(heap))
            if not heap:
                self._ready.pop(session, None)
            if message is None or message.token is not None or self._expired(message, now):
                continue
            token = message.token = uuid.uuid4()
            message.until = now + self.settings.lock
            self.locked[token] = message
            if session is not None:
                self.sessions[session].held[token] = message
                message.until = self.sessions[session].until
            return message
        return None

    def renew(self, token: uuid.UUID, now: float) -> float:
        """Lock a message for longer."""
        message = self._held(token, now)
        message.until = now + self.settings.lock
        return message.until

    def complete(self, token: uuid.UUID, now: float) -> None:
        """It is done with."""
        self._remove(self._unlock(token, now))

    def release(self, token: uuid.UUID, now: float) -> None:
        """Hand it out again; this delivery does not count."""
        self._let_go(self._unlock(token, now))

    def abandon(self, token: uuid.UUID, now: float) -> None:
        """Hand it out again."""
        self._again(self._unlock(token, now))

    def dead_letter(self, token: uuid.UUID, reason: str, description: str, now: float) -> None:
        """Move it to the dead letters."""
        message = self._unlock(token, now)
        self._remove(message)
        self._bury(message, reason, description)

    def tick(self, now: float) -> bool:
        """Let expire what is due; whether there was any."""
        lapsed = [name for name, lock in self.sessions.items() if lock.until <= now]
        for name in lapsed:
            lock = self.sessions.pop(name)
            for token, message in lock.held.items():
                del self.locked[token]
                self._again(message)
            self.lost(lock.owner)
        over = [] if self.settings.sessions else [one for one, kept in self.locked.items() if kept.until <= now]
        for token in over:
            self._again(self.locked.pop(token))
        return bool(lapsed or over)

    # ------------------------------------------------------------ inside

    def _held(self, token: uuid.UUID, now: float) -> Message:
        message = self.locked.get(token)
        session = self.settings.sessions
        if message is None or (not session and message.until <= now):
            raise RefusedError(SESSION_LOST if session else LOCK_LOST, "The lock supplied is invalid: it has expired.")
        return message

    def _unlock(self, token: uuid.UUID, now: float) -> Message:
        message = self._held(token, now)
        del self.locked[token]
        if message.session is not None and message.session in self.sessions:
            self.sessions[message.session].held.pop(token, None)
        return message

    def _again(self, message: Message) -> None:
        message.count += 1
        if message.count >= self.settings.deliveries and self.dead is not None:
            self._remove(message)
            self._bury(message, "MaxDeliveryCountExceeded", f"It was delivered {message.count} times.")
            return
        self._journal.count(self.path, message.seq, message.count)
        self._let_go(message)

    def _let_go(self, message: Message) -> None:
        message.token = None
        heapq.heappush(self._ready.setdefault(message.session if self.settings.sessions else None, []), message.seq)

    def _put(self, message: Message) -> None:
        self.messages[message.seq] = message
        self.size += len(message.content)
        self._let_go(message)

    def _remove(self, message: Message) -> None:
        del self.messages[message.seq]
        self.size -= len(message.content)
        self._journal.remove(self.path, message.seq)

    def _expired(self, message: Message, now: float) -> bool:
        if now < message.expires:
            return False
        self._remove(message)
        if self.settings.dead_when_expired:
            self._bury(message, "TTLExpiredException", "The message expired and was dead lettered.")
        return True

    def _bury(self, message: Message, reason: str, description: str) -> None:
        if self._dead is not None:
            content = self._dead.mark(message.content, reason, description)
            never = float("inf")
            buried = Message(message.seq, content, message.id, message.session, message.enqueued, never)
            self._dead.store.add(buried)


class DeadLetters(NamedTuple):
    """The destination of a store's dead letters, and the reason given to a message."""

    store: Store
    mark: Callable[[bytes, str, str], bytes]


def _columns(message: Message) -> tuple[Any, ...]:
    session, expires = message.session, message.expires
    return message.seq, message.content, message.id, session, message.enqueued, expires, message.count


class Destination:
    """A destination to send to: a queue, or a topic with subscriptions."""

    def __init__(self, path: str, kind: str, settings: Settings) -> None:
        self.path, self.kind, self.settings = path, kind, settings
        self.stores: dict[str, Store] = {}
        """By the names of subscriptions, in lower case; a queue has one, without a name."""
        self.seen: dict[str, float] = {}
