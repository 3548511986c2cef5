"""The outbox: messages written in the transaction that they tell of, so that both are there or neither."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from weakref import WeakSet

from retrysafe.backends import registry
from retrysafe.backends.backend import Backend
from retrysafe.backends.driver import arun, run
from retrysafe.backends.joining import join
from retrysafe.backends.sql.outbox_operating import OperableSqlOutbox
from retrysafe.backends.sql.store import SqlStore, keeps_messages
from retrysafe.claims.observers import LoggingObserver, Observers
from retrysafe.errors import ConfigurationError
from retrysafe.messaging import validation
from retrysafe.messaging.errors import MessageRefused
from retrysafe.messaging.notifications import Notifier, wake
from retrysafe.messaging.relay.presence import Reporter
from retrysafe.messaging.relay.procedures import each
from retrysafe.messaging.validation import encode, trace_headers
from retrysafe.protocol import keys
from retrysafe.protocol.client import AsyncFlushing, Flushing
from retrysafe.protocol.events import Observer
from retrysafe.protocol.messages import ENTROPY, Envelope, uuid7

LARGEST = 1 << 20
"""Bytes of a payload over which brokers begin to refuse it."""
NO_HEADERS: Mapping[str, str] = {}


class Message(NamedTuple):
    """One message for `Outbox.add_many`; the fields are the arguments of `Outbox.add`."""

    topic: str
    payload: Any
    key: str | None = None
    type: str | None = None
    sequence: int | None = None
    headers: Mapping[str, str] = NO_HEADERS
    media_type: str | None = None


class Outbox:
    """Writes messages into your database, in your transaction: they are published only if it commits.

    Arguments:
        store: the database, as ``Boundary(store=…)`` takes it: SQLite, PostgreSQL, MySQL or MariaDB.
        source: the sender, a URI reference such as "/shop/orders" (CloudEvents ``source``); with a message's id
            it identifies the message everywhere.
        types: every type of its messages; as a mapping, with a sentence of what happened. A message of another type is
            refused; `retrysafe describe` prints them, and its lock file tells when one is gone. By default any.
        largest: bytes of a payload over which a message is refused.
        notify: notify listening relays of other processes (``Relay(listen=…)``; PostgreSQL only), in a small
            separate transaction from a thread or a task, one for all messages written within some milliseconds.
        observers: receive "message_created" for each message, before its transaction commits; by default a
            `LoggingObserver`.

    Rows are written once and never changed. A `Relay` publishes them, each at least once, under one id; messages of
    one topic and key in the order in which they were written. That is the order of your changes only if each
    writer holds the lock of what ``key`` names (its row, its version) before it adds the message.
    """

    def __init__(
        self,
        store: Any,
        *,
        source: str,
        types: Mapping[str, str] | Iterable[str] | None = None,
        largest: int = LARGEST,
        notify: bool = False,
        observers: Iterable[Observer] | None = None,
    ) -> None:
        if not source:
            raise ConfigurationError('source= is empty: name the sender, as in source="/shop/orders".')
        self.source = keys.check_name(source, "source")
        self.types = None if types is None else _types_of(types)
        """The types of its messages, each with its sentence or nothing; None when it may write any."""
        self._largest = largest
        self._backend = registry.connect(store)
        self._outbox, _ = outbox_of(self._backend)
        self._notifier = Notifier(self._backend, self._outbox.notify()) if notify else None
        self._observers = Observers((LoggingObserver(),) if observers is None else observers)
        self._reporter = Reporter(self._observers)
        _living.add(self)

    # ------------------------------------------------------------ messages

    def add(
        self,
        tx: Any,
        topic: str,
        payload: Any,
        *,
        key: str | None = None,
        type: str | None = None,
        sequence: int | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
        media_type: str | None = None,
    ) -> Envelope:
        """Write a message in the caller's transaction, and return it as it will leave.

        tx: a connection or session in a transaction, as ``Boundary.claim(tx=…)`` takes it, or ``claim.tx``.
        topic: where it goes, 1 to 255 bytes.
        payload: bytes, or what becomes JSON.
        key: the message's subject (CloudEvents ``subject``), such as an order's id; messages of one topic and key keep
            their order, and those without a key have none.
        type: what happened, with its major version; by default the topic and ".v1".
        sequence: the version of what ``key`` names, for consumers that apply only what is newer.
        headers: more attributes, text without control characters, up to 32 KiB in all; those of the current trace
            are added.
        media_type: of the payload; by default JSON, and for bytes "application/octet-stream".

        Raises `MessageRefused` for what cannot be sent, `ConfigurationError` for a tx that cannot be used.
        """
        return self.add_many(tx, [Message(topic, payload, key, type, sequence, headers, media_type)])[0]

    def add_many(self, tx: Any, messages: Iterable[Message]) -> list[Envelope]:
        """Write messages, in this order; all of them, or none if one is refused."""
        envelopes = [self._envelope(message) for message in messages]
        joining = join(self._backend, tx)
        if (execute := joining.execute) is None:
            raise ConfigurationError("tx= belongs to async code: use aadd or aadd_many, and await it.")
        self._backend.check(execute, joining.place)
        if isinstance(execute, Flushing):
            execute.flush()  # the row must be locked when the message gets its number
        run(each(self._outbox.add(envelopes)), execute)
        self.wake()
        if self._observers.is_enabled("message_created"):
            self._reporter.report_created(envelopes)
        return envelopes

    async def aadd(
        self,
        tx: Any,
        topic: str,
        payload: Any,
        *,
        key: str | None = None,
        type: str | None = None,
        sequence: int | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
        media_type: str | None = None,
    ) -> Envelope:
        """`add` in a transaction of async code."""
        return (await self.aadd_many(tx, [Message(topic, payload, key, type, sequence, headers, media_type)]))[0]

    async def aadd_many(self, tx: Any, messages: Iterable[Message]) -> list[Envelope]:
        """`add_many` in a transaction of async code."""
        envelopes = [self._envelope(message) for message in messages]
        joining = join(self._backend, tx)
        if (execute := joining.aexecute) is None:
            raise ConfigurationError("tx= belongs to sync code: use add or add_many.")
        await self._backend.acheck(execute, joining.place)
        if isinstance(execute, AsyncFlushing):
            await execute.aflush()
        await arun(each(self._outbox.add(envelopes)), execute)
        await self.awake()
        if self._observers.is_enabled("message_created"):
            self._reporter.report_created(envelopes)
        return envelopes

    def wake(self) -> None:
        """Wake the relays of this process, as after your commit: what you added leaves at once.

        With ``notify=True`` those of other processes too; in async code that is `awake`.
        They look for it from the moment it was added, every millisecond at first and then ever more rarely, up to
        once a second: this is for transactions that go on for long after they have added a message.
        """
        wake(self._backend)
        if self._notifier is not None:
            self._notifier.tell()

    async def awake(self) -> None:
        """`wake` in async code; it waits for nothing."""
        wake(self._backend)
        if self._notifier is not None:
            self._notifier.atell()

    # ------------------------------------------------------------ how

    def _envelope(self, message: Message) -> Envelope:
        payload, media_type = encode(message.payload, message.media_type)
        if len(payload) > self._largest:
            raise MessageRefused(f"payload= has {len(payload)} bytes; at most {self._largest} are taken (largest=).")
        return Envelope(
            id=uuid7(time.time_ns() // 1_000_000, os.urandom(ENTROPY)),
            topic=validation.name(message.topic, "topic"),
            key=None if message.key is None else keys.parse(message.key),
            type=self._type(message),
            source=self.source,
            sequence=validation.sequence(message.sequence),
            headers=validation.headers({**trace_headers(), **message.headers}),
            payload=payload,
            media_type=validation.name(media_type, "media_type"),
        )

    def _type(self, message: Message) -> str:
        name = validation.name(message.type or f"{message.topic}.v1", "type")
        if self.types is not None and name not in self.types:
            raise MessageRefused(
                f"type={name!r} is none of the types= of this outbox ({', '.join(self.types)}): declare it there, or "
                "correct it."
            )
        return name


def living() -> list[Outbox]:
    """The outboxes of this process."""
    return list(_living)


_living: WeakSet[Outbox] = WeakSet()


def _types_of(types: Mapping[str, str] | Iterable[str]) -> dict[str, str]:
    if isinstance(types, str):
        raise ConfigurationError(f"types={types!r}: give a list, such as [{types!r}].")
    try:
        found = dict(types) if isinstance(types, Mapping) else dict.fromkeys(types, "")
    except TypeError as error:
        raise ConfigurationError(f"types= is a list of text, or a mapping to sentences: {error}.") from error
    if not found:
        raise ConfigurationError("types= is empty, so that no message could be written: name them, or leave it out.")
    for name, sentence in found.items():
        if not isinstance(sentence, str):
            raise ConfigurationError(f"types=: the sentence of {name!r} is text, not {type(sentence).__name__}.")
        try:
            validation.name(name, "types")
        except MessageRefused as error:
            raise ConfigurationError(error.detail or "") from error
    return found


def outbox_of(backend: Backend) -> tuple[OperableSqlOutbox, SqlStore]:
    """The outbox of a backend, and the store that it is in."""
    if not keeps_messages(backend.store):
        raise ConfigurationError(
            f"store=: a {backend.kind} store has no place for messages that share a transaction with your work; "
            "an outbox is in SQLite, PostgreSQL, MySQL or MariaDB."
        )
    backend.tables.provide("outbox")
    return OperableSqlOutbox(backend.store), backend.store
