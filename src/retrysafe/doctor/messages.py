"""Checks of the messages in a store: whether they leave, and whether some were given up."""

from __future__ import annotations

from typing import Any

from retrysafe.admin.rendering import duration
from retrysafe.backends.backend import Backend
from retrysafe.messaging.needs import STALLED, Messages, messages_of
from retrysafe.protocol.checks import Check, Facts, Severity
from retrysafe.protocol.requests import Program


def gather(backend: Backend) -> Program[dict[str, Any]]:
    """The facts of a store whose schema is up to date."""
    return {"messages": (yield from messages_of(backend))}


def _stall(facts: Facts) -> str | None:
    found: Messages | None = facts.get("messages")
    if found is None or found.outbox is None or found.outbox.oldest_due <= STALLED:
        return None
    relays = f"{found.outbox.alive} relays run" if found.outbox.alive else "no relay is running"
    late = [one for one in found.outbox.backlog if one.oldest_due > STALLED and one.error]
    said = next((f" Topic {one.topic}: {one.error}" for one in late), "")
    due = f"{found.outbox.due:,} messages of the outbox are due, for up to {duration(found.outbox.oldest_due)}"
    return f"{due}; {relays}.{said}"


def _dead(facts: Facts) -> str | None:
    found: Messages | None = facts.get("messages")
    if found is None:
        return None
    outbox = found.outbox
    told = [f"{outbox.dead:,} of the outbox"] if outbox is not None and outbox.dead else []
    told += [f"{outbox.parked:,} at the head of a parked lane"] if outbox is not None and outbox.parked else []
    told += [f"{one.dead:,} of consumer {one.consumer}" for one in found.inboxes]
    return f"Dead letters: {', '.join(told)}." if told else None


CHECKS = (
    Check(
        "outbox-stalled",
        "Do messages leave within a minute after they are due?",
        Severity.WARNING,
        "{program} outbox status --store {store}  shows the relays; start one with  retrysafe relay --store {store} "
        "--broker URL, or read in the log of those that run why the broker takes nothing",
        "how-to/relay.md",
        _stall,
    ),
    Check(
        "dead-letters",
        "Has every message been published and handled?",
        Severity.WARNING,
        "{program} outbox dead list --store {store}  and  {program} inbox dead list --store {store}; then redrive them",
        "how-to/inbox.md",
        _dead,
    ),
)
