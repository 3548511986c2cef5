"""A message that its store is too small for is given up all the same, and what can be kept of it is kept."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from retrysafe import StoreUnavailable
from retrysafe.messaging import InboxMessage
from retrysafe.messaging.inbox.attempts import InboxAttempt
from retrysafe.messaging.inbox.procedures import bury
from retrysafe.protocol.redelivery_policy import Counts
from tests.messaging.inboxes import World, envelope

BODY = b"x" * (20 << 20)
"""More than MariaDB takes in a statement by default; MySQL takes 64 MiB."""


def make_small(world: World) -> None:
    """SQLite takes a gigabyte: let it refuse less, as another one does."""
    with world.connected() as perform:
        refused = "WHEN length(NEW.payload) > 1000 BEGIN SELECT RAISE(ABORT, 'too large'); END"
        perform(f"CREATE TRIGGER small BEFORE INSERT ON retrysafe_inbox_dead {refused}")


@pytest.mark.fault(53)
@pytest.mark.parametrize("world", ["sqlite", "mysql"], indirect=True)
def test_a_message_too_large_for_its_store_becomes_a_dead_letter_without_its_body(world: World) -> None:
    if world.kind == "sqlite":
        make_small(world)
    inbox = world.inbox()

    @inbox.handler("stock", max_attempts=1)
    def handle(message: InboxMessage[Any]) -> None:
        raise ValueError("no")

    large = envelope(1, "k", BODY, media_type="text/plain", headers={"tenant": "a"})
    handled = handle.handle(large, redelivered=False)
    assert handled.became == "dead"
    assert handle.handle(large).became == "dead"
    (found,) = world.letters(inbox)
    kept = found.arrival.envelope
    assert (kept.id, kept.key, kept.topic, kept.headers["tenant"], kept.payload) == ("1", "k", "orders", "a", b"")
    assert kept.headers["retrysafe-bytes"] == str(len(BODY))
    assert kept.headers["retrysafe-sha256"] == hashlib.sha256(BODY).hexdigest()
    assert found.letter.error == "ValueError: no (its body was not kept: the store refused it)"
    told = [one.fields["error"] for one in world.told if one.name == "dead_lettered"]
    assert told == [found.letter.error, "It is in the dead letters."]
    world.mark(inbox)
    assert [one.became for one in handle.handle_marked()] == ["dead"]
    assert "cannot be handled again" in world.letters(inbox)[0].letter.error


@pytest.mark.fault(53)
@pytest.mark.parametrize("world", ["sqlite"], indirect=True)
def test_an_outage_costs_a_large_message_no_body(world: World) -> None:
    """A store that does not answer has refused nothing: the message comes again, as it is."""
    handle = world.inbox().handler("stock")(lambda message: None)
    attempt = InboxAttempt(handle.setting, envelope(1, "k", BODY, media_type="text/plain"))
    steps = bury(handle.letters.inbox, attempt.arrival, Counts(1, 1), "ValueError: no")
    next(steps)
    steps.throw(ConnectionError("lost"))
    with pytest.raises(StoreUnavailable):
        steps.throw(StoreUnavailable("away"))
