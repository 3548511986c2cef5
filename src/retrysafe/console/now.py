"""The first page: what needs a person now, and what is in the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from starlette.responses import Response

from retrysafe.admin.operator import Operator, Sample
from retrysafe.admin.rendering import duration
from retrysafe.backends.commands import Commands
from retrysafe.console.visit import Area, Page, Visit
from retrysafe.messaging.inbox.operator import Consuming
from retrysafe.messaging.relay.procedures import GONE, OutboxStatus
from retrysafe.protocol.records import Count, EffectiveState, Filter

AREA = Area("Now", "/")
UNKNOWN = Filter(states=frozenset({EffectiveState.UNKNOWN}))
STALLED = 60.0
"""Seconds after which a due message that has not left needs a person."""


class Need(NamedTuple):
    """Something that needs a person: what it is, the page where it is seen, and the command that lists it."""

    text: str
    path: str
    command: str


class Share(NamedTuple):
    """Records of one boundary in one state: their number, or their share of a sample in percent."""

    boundary: str
    state: EffectiveState
    records: int
    percent: float


def show(visit: Visit) -> Response:
    """The page."""
    with visit.operator() as operator:
        unknown, sample = operator.count(UNKNOWN), operator.sample()
        oldest = _oldest(operator) if unknown.records else 0.0
    status, inboxes = None, list[Consuming]()
    if visit.console.has_messages:
        with visit.outbox() as outbox:
            status = outbox.status()
        with visit.inbox() as inbox:
            inboxes = inbox.status()
    commands = visit.commands
    needs = [
        *_of_keys(unknown, oldest, commands),
        *(_of_messages(status, commands) if status else ()),
        *_of_inboxes(inboxes, commands),
    ]
    return visit.page(
        "now.html",
        "Now",
        "Now",
        needs=needs,
        unknown=unknown,
        oldest=oldest,
        status=status,
        inbox_dead=sum(one.dead for one in inboxes),
        gone=[relay for relay in status.relays if relay.silent >= GONE] if status else [],
        shares=shares(sample),
        sample=sample,
    )


def shares(sample: Sample) -> list[Share]:
    """What a sample consists of, the most frequent first."""
    counted = Counter((record.boundary, record.reported_state) for record in sample.records)
    total = max(1, len(sample.records))
    return [Share(boundary, state, number, 100 * number / total) for (boundary, state), number in counted.most_common()]


def _oldest(operator: Operator) -> float:
    """Seconds for which the oldest unknown key waits, where the store has them by age."""
    found = next(operator.each(UNKNOWN), None)
    return 0.0 if found is None else (found.now - found.updated) / 1e6


def _of_keys(unknown: Count, oldest: float, commands: Commands) -> Iterator[Need]:
    if unknown.records:
        number = f"{unknown.records:,}{'+' * unknown.capped}"
        what = "key is" if unknown.records == 1 and not unknown.capped else "keys are"
        text = f"{number} {what} unknown: their effect may have happened, and every retry is refused until they are "
        text += f"settled. The oldest waits for {duration(oldest)}."
        yield Need(text, "/unknown", commands.line("keys list", [("state", "unknown")]))


def _of_messages(status: OutboxStatus, commands: Commands) -> Iterator[Need]:
    listed = commands.line("outbox status", ())
    if status.oldest_due > STALLED:
        cause = "the relays are too slow, or the broker refuses" if status.alive else "no relay is running"
        yield Need(f"Messages are due for {duration(status.oldest_due)}: {cause}.", "/messages", listed)
    for relay in status.relays:
        if relay.silent >= GONE:
            text = f"Relay {relay.name} has been silent for {duration(relay.silent)}: it is taken for dead."
            yield Need(text, "/messages/relays", listed)
    if status.paused:
        yield Need(f"Paused: {', '.join(status.paused)}. Nothing of these topics leaves.", "/messages", listed)
    if status.dead:
        text = f"{status.dead:,} messages could not be published, and are dead letters."
        if status.dead == 1:
            text = "1 message could not be published, and is a dead letter."
        yield Need(text, "/messages/dead", commands.line("outbox dead list", ()))


def _of_inboxes(inboxes: list[Consuming], commands: Commands) -> Iterator[Need]:
    for one in inboxes:
        if one.dead > one.marked:
            left = one.dead - one.marked
            text = f"Consumer {one.consumer} has given up on {left:,} {'message' if left == 1 else 'messages'}."
            command = commands.line("inbox dead list", [("consumer", one.consumer)])
            yield Need(text, f"/messages/inbox?consumer={one.consumer}", command)


PAGES = (Page("/", show),)
