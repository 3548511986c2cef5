"""Messages that need a person: due and not leaving, paused, or dead letters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from retrysafe.admin.rendering import duration
from retrysafe.backends.backend import Backend
from retrysafe.backends.commands import Commands
from retrysafe.backends.migrations import on_demand
from retrysafe.backends.sql.inbox import SqlInbox
from retrysafe.backends.sql.outbox_operating import OperableSqlOutbox
from retrysafe.backends.sql.store import keeps_messages
from retrysafe.messaging.inbox.operator import Consuming
from retrysafe.messaging.relay.procedures import GONE, OutboxStatus, standing
from retrysafe.protocol.requests import Program, ask

STALLED = 60.0
"""Seconds after which a due message that has not left needs a person."""


class Need(NamedTuple):
    """Something that needs a person: what it is, the page of the console where it is seen, and the command for it."""

    text: str
    path: str
    command: str


def is_stalled(status: OutboxStatus) -> bool:
    """Tell whether a message is due for so long that it needs a person."""
    return status.oldest_due > STALLED


def of_outbox(status: OutboxStatus, commands: Commands) -> Iterator[Need]:
    """Yield the parts of an outbox that need a person."""
    listed = commands.line("outbox status", ())
    if is_stalled(status):
        late = [one for one in status.backlog if one.oldest_due > STALLED]
        said = [f"{one.topic} waits: {one.error.rstrip('.')}" for one in late if one.error]
        slow = "the relays are too slow, or the broker is away, of which the log of the relays has the reason"
        cause = (said[0] if said else slow) if status.alive else "no relay is running"
        yield Need(f"Messages are due for {duration(status.oldest_due)}: {cause}.", "/messages", listed)
    for relay in status.relays:
        if relay.silent >= GONE:
            text = f"Relay {relay.name} has been silent for {duration(relay.silent)}: it is taken for dead."
            yield Need(text, "/messages/relays", listed)
    if status.paused:
        waiting = [one for one in status.backlog if one.paused]
        number, oldest = sum(one.messages for one in waiting), max((one.oldest for one in waiting), default=0.0)
        left = f"; the oldest of {number:,} {_messages(number)} has waited for {duration(oldest)}" if waiting else ""
        yield Need(f"Paused: {', '.join(status.paused)}. Nothing of these topics leaves{left}.", "/messages", listed)
    if status.dead:
        text = f"{status.dead:,} messages could not be published, and are dead letters."
        if status.dead == 1:
            text = "1 message could not be published, and is a dead letter."
        yield Need(text, "/messages/dead", commands.line("outbox dead list", ()))
    if status.parked:
        text = f"{describe_parked(status.parked)}, until the first message of each is redriven."
        yield Need(text, "/messages/dead", commands.line("outbox dead list", ()))


def describe_parked(number: int) -> str:
    """The number of parked lanes, as words."""
    return "1 lane is parked" if number == 1 else f"{number:,} lanes are parked"


def of_inboxes(inboxes: Iterable[Consuming], commands: Commands) -> Iterator[Need]:
    """The dead letters of consumers; a running consumer takes those that are marked within seconds."""
    for one in inboxes:
        path = f"/messages/inbox?consumer={one.consumer}"
        command = commands.line("inbox dead list", [("consumer", one.consumer)])
        if left := one.dead - one.marked:
            text = f"Consumer {one.consumer} has given up on {left:,} {_messages(left)}."
            yield Need(text, path, command)
        if one.marked:
            text = f"{one.marked:,} {_messages(one.marked)} of consumer {one.consumer} "
            text += f"{'waits' if one.marked == 1 else 'wait'} to be handled again. "
            text += "If this stays, no consumer is running, or, of a task, retrysafe.tasks.redrive() was not called."
            yield Need(text, path, command)


def _messages(number: int) -> str:
    return "message" if number == 1 else "messages"


class Messages(NamedTuple):
    """The outbox and the consumers' dead letters of a store; None and nothing where it has no tables for them."""

    outbox: OutboxStatus | None
    inboxes: list[Consuming]


def messages_of(backend: Backend) -> Program[Messages]:
    """Look at the messages of a store, without making tables in a SQLite file."""
    store, outbox, inboxes = backend.store, None, list[Consuming]()
    if keeps_messages(store):
        file = backend.kind == "sqlite"
        if not file or (yield from on_demand.is_present("outbox")):
            outbox = yield from standing(OperableSqlOutbox(store))
        if not file or (yield from on_demand.is_present("inbox")):
            found = yield from ask(SqlInbox(store).tally())
            inboxes = [
                Consuming(boundary, name, dead, marked, age / 1e6) for boundary, name, dead, marked, age in found
            ]
    return Messages(outbox, inboxes)
