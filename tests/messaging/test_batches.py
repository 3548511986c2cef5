"""Batches: one transaction for many messages, and what the inbox promises of each holds as well."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from retrysafe import Boundary, ConfigurationError, Event
from retrysafe.messaging import HandleResult, InboxMessage
from tests.messaging.inboxes import World, delivery, envelope


def became(handled: list[HandleResult]) -> list[str]:
    return [one.became.value for one in handled]


def each(world: World, calls: list[str], poison: set[str]) -> Callable[[InboxMessage[Any]], None]:
    def handle(message: InboxMessage[Any]) -> None:
        calls.append(message.envelope.id)
        world.apply(message.tx, message.envelope.id)
        if message.envelope.id in poison:
            raise ValueError("poison")

    return handle


def together(world: World, calls: list[str], poison: set[str]) -> Callable[[list[InboxMessage[Any]]], None]:
    one = each(world, calls, poison)

    def handle(messages: list[InboxMessage[Any]]) -> None:
        for message in messages:
            one(message)

    return handle


BOTH = pytest.mark.parametrize("make", ["batch_handler", "set_handler"])


def handler_of(world: World, make: str, calls: list[str], poison: set[str], **options: Any) -> Any:
    inbox = world.inbox()
    function = (each if make == "batch_handler" else together)(world, calls, poison)
    return getattr(inbox, make)("stock", **options)(function)


@BOTH
@pytest.mark.fault(50)
def test_a_batch_is_applied_once_however_often_it_comes(make: str, world: World) -> None:
    calls: list[str] = []
    handler = handler_of(world, make, calls, set())
    batch = [delivery(n, n % 7) for n in range(50)]
    assert became(handler.handle_many(batch)) == ["handled"] * 50
    assert became(handler.handle_many(batch)) == ["duplicate"] * 50
    assert became(handler.handle_many([*batch[:5], delivery(50, 0), *batch[5:9]])) == [
        *(["duplicate"] * 5 + ["handled"] + ["duplicate"] * 4)
    ]
    assert world.applied() == sorted(str(n) for n in range(51))
    assert len(calls) == 51


@BOTH
@pytest.mark.fault(53)
def test_poison_ends_alone_in_the_dead_letters_and_holds_its_own_lane_only(make: str, world: World) -> None:
    handler = handler_of(world, make, [], {"3", "14"}, max_attempts=2)
    batch = [delivery(n, n % 5) for n in range(20)]
    first = became(handler.handle_many(batch))
    behind = {"8", "13", "18", "19"}  # after 3 and 14 in their lanes
    waiting = {str(n): "behind" for n in behind} | {"3": "failed", "14": "failed"}
    assert first == [waiting.get(str(n), "handled") for n in range(20)]
    left = [one for one, word in zip(batch, first, strict=True) if word != "handled"]
    assert sorted(became(handler.handle_many(left))) == ["dead"] * 2 + ["handled"] * 4
    assert world.applied() == sorted(str(n) for n in range(20) if n not in (3, 14))
    letters = [letter.arrival.envelope.id for letter in world.letters(_inbox_of(handler))]
    assert sorted(letters) == ["14", "3"]


def _inbox_of(handler: Any) -> Any:
    class Found:
        boundary = handler.setting.entry
        _letters = handler.letters

    return Found


@BOTH
def test_one_id_twice_in_a_batch_and_another_payload_under_it(make: str, world: World) -> None:
    handler = handler_of(world, make, [], set())
    batch = [delivery(1), delivery(2), delivery(1), delivery(2, payload=b'{"n":9}'), delivery("", None), delivery(3)]
    assert became(handler.handle_many(batch)) == ["handled", "handled", "duplicate", "dead", "dead", "handled"]
    assert world.applied() == ["1", "2", "3"]


@BOTH
@pytest.mark.parametrize("world", ["postgresql"], indirect=True)
def test_a_failure_at_commit_is_found_by_halves(make: str, world: World) -> None:
    with world.connected() as perform:
        perform(f"ALTER TABLE {world.table} ADD CONSTRAINT one UNIQUE (value) DEFERRABLE INITIALLY DEFERRED")
        perform(f"INSERT INTO {world.table} VALUES ('5')")
    handler = handler_of(world, make, [], set(), max_attempts=1)
    words = became(handler.handle_many([delivery(n, n) for n in range(9)]))
    assert words == ["dead" if n == 5 else "handled" for n in range(9)]
    assert world.applied() == [str(n) for n in range(9)]


@BOTH
def test_redelivered_messages_are_handled_by_themselves(make: str, world: World) -> None:
    sizes: list[int] = []
    inbox = world.inbox()

    def handle(given: Any) -> None:
        sizes.append(len(given) if isinstance(given, list) else 1)

    handler = getattr(inbox, make)("stock")(handle)
    batch = [delivery(1), delivery(2), delivery(3, redelivered=True), delivery(4), delivery(5)]
    assert became(handler.handle_many(batch)) == ["handled"] * 5
    alone = make == "batch_handler" or world.kind == "mysql"
    assert sizes == ([1] * 5 if alone else [2, 1, 2])


@pytest.mark.parametrize("world", ["postgresql"], indirect=True)
@pytest.mark.fault(50)
def test_a_batch_waits_for_nobody_who_handles_one_of_its_messages(world: World) -> None:
    inbox = world.inbox()
    inside, go = threading.Event(), threading.Event()

    @inbox.batch_handler("stock")
    def handle(message: InboxMessage[Any]) -> None:
        world.apply(message.tx, message.envelope.id)
        if message.envelope.id == "2" and not inside.is_set():
            inside.set()
            assert go.wait(60)

    first = threading.Thread(target=handle.handle, args=(delivery(2, 0).envelope,))
    first.start()
    assert inside.wait(60)
    try:
        words = became(handle.handle_many([delivery(n, n % 2) for n in range(1, 7)]))
    finally:
        go.set()
        first.join()
    assert words == ["handled", "busy", "handled", "behind", "handled", "behind"]
    assert became(handle.handle_many([delivery(n, n % 2) for n in range(1, 7)])) == [
        *("duplicate", "duplicate", "duplicate", "handled", "duplicate", "handled")
    ]
    assert world.applied() == [str(n) for n in range(1, 7)]


@pytest.mark.parametrize("world", ["sqlite"], indirect=True)
def test_a_handler_that_commits_and_begins_again_loses_no_message_silently(world: World) -> None:
    inbox = world.inbox()

    @inbox.batch_handler("stock", max_attempts=1)
    def handle(message: InboxMessage[Any]) -> None:
        world.apply(message.tx, message.envelope.id)
        if message.envelope.id == "2":
            message.tx.execute("COMMIT")
            message.tx.execute("BEGIN")

    words = became(handle.handle_many([delivery(n, n) for n in range(1, 4)]))
    assert words == ["dead"] * 3  # unknown: a person finds out which of them were applied
    assert [event.fields["error_type"] for event in world.told if event.name == "unknown"][:3] == [""] * 3
    assert world.applied() == ["1", "2"]


@pytest.mark.parametrize("world", ["postgresql"], indirect=True)
def test_a_handler_that_commits_by_itself_loses_no_message_silently(world: World) -> None:
    inbox = world.inbox()

    @inbox.batch_handler("stock", max_attempts=1)
    def handle(message: InboxMessage[Any]) -> None:
        world.apply(message.tx, message.envelope.id)
        if message.envelope.id == "2":
            message.tx.commit()

    words = became(handle.handle_many([delivery(n, n) for n in range(1, 4)]))
    assert "duplicate" not in words
    assert words.count("dead") == 3  # unknown: a person finds out which of them were applied
    assert all("OutcomeUnknown" in letter.letter.error for letter in world.letters(inbox))
    assert world.applied() == ["1", "2"]  # nothing commits what comes after


@pytest.mark.parametrize("world", ["sqlite", "postgresql"], indirect=True)
async def test_coroutine_functions_handle_batches_too(world: World) -> None:
    inbox = world.inbox()
    sizes: list[int] = []

    @inbox.set_handler("stock", max_attempts=1)
    async def handle(messages: list[InboxMessage[Any]]) -> None:
        sizes.append(len(messages))
        for message in messages:
            written = message.tx.execute(f"INSERT INTO {world.table} VALUES ('{message.envelope.id}')")
            if hasattr(written, "__await__"):
                await written

    batch = [delivery(n, n % 3) for n in range(20)]
    assert became(await handle.ahandle_many(batch)) == ["handled"] * 20
    assert became(await handle.ahandle_many(batch)) == ["duplicate"] * 20
    assert (sizes, world.applied()) == ([20], sorted(str(n) for n in range(20)))
    await world.boundaries[-1].aclose()


@BOTH
def test_an_error_of_a_setting_that_a_message_runs_into_is_that_messages(make: str, world: World) -> None:
    """Such as a payload that another boundary cannot fingerprint: the handler raised it, not its own boundary."""

    def handle(messages: Any) -> None:
        for message in messages if isinstance(messages, list) else [messages]:
            world.apply(message.tx, message.envelope.id)
            if message.envelope.id == "3":
                raise ConfigurationError("payload= cannot be encoded")

    inbox = world.inbox()
    handler = getattr(inbox, make)("stock", max_attempts=1)(handle)
    assert became(handler.handle_many([delivery(n, n) for n in range(5)])) == [*["handled"] * 3, "dead", "handled"]
    assert world.applied() == ["0", "1", "2", "4"]


def test_a_batch_needs_transactions(world: World) -> None:
    with pytest.raises(ConfigurationError, match='needs "transactional"'):
        world.inbox(effects="keyed").batch_handler("stock")
    with pytest.raises(ConfigurationError, match="max_batch="):
        world.inbox().set_handler("stock", max_batch=0)
    with pytest.raises(ConfigurationError, match="batch_bytes="):
        world.inbox().batch_handler("stock", batch_bytes=0)


@pytest.mark.parametrize("world", ["postgresql"], indirect=True)
def test_a_message_whose_transaction_is_lost_while_it_is_handled_spends_its_attempts(world: World) -> None:
    """As by idle_in_transaction_session_timeout, when its work takes longer; others in its batch go on without it."""
    calls: list[str] = []
    inbox = world.inbox()

    def lost(message: InboxMessage[Any]) -> None:
        world.apply(message.tx, message.envelope.id)
        if message.envelope.id == "7":
            calls.append(message.envelope.id)
            pid = message.tx.info.backend_pid
            with world.connected() as look:
                look(f"SELECT pg_terminate_backend({pid})")

    single = inbox.handler("stock", max_attempts=3)(lost)
    assert [single.handle(envelope("7")).became.value for _ in range(3)] == ["failed", "failed", "dead"]
    assert len(calls) == 3

    @inbox.handler("meets it", max_attempts=2)
    def meets(message: InboxMessage[Any]) -> None:
        lost(message)
        with suppress(psycopg.Error):
            world.apply(message.tx, "in vain")
        world.apply(message.tx, "in vain")

    assert [meets.handle(envelope("7")).became.value for _ in range(2)] == ["failed", "dead"]
    batch = inbox.batch_handler("batched", max_attempts=1)(lost)
    assert became(batch.handle_many([delivery(n, n) for n in range(20)])) == [
        "dead" if n == 7 else "handled" for n in range(20)
    ]
    assert world.applied() == sorted(str(n) for n in range(20) if n != 7)
    told: list[Event] = []
    hasty = f"{world.url}?options=-cidle_in_transaction_session_timeout%3D10s"
    with Boundary("hasty", store=hasty, effects="transactional", observers=[told.append]).claim("k") as claim:
        claim.result = 1
    assert [one.fields["setting"] for one in told if one.name == "store_warning"] == [
        "idle_in_transaction_session_timeout"
    ]
