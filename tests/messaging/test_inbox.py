"""An inbox applies a message once, tries a failing one within bounds, and keeps what it gives up."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from retrysafe import Boundary, ConfigurationError, Keyring, StoreUnavailable
from retrysafe.messaging import (
    Envelope,
    Handler,
    HandleResult,
    Inbox,
    InboxMessage,
    MessageOutcome,
    MessageUnreadable,
    SequenceGap,
)
from retrysafe.protocol.messages import milliseconds_of, uuid7
from retrysafe.webhooks import Receiver, WebhookEvent
from tests.boundary.shops import Shop
from tests.messaging.inboxes import World, delivery, envelope
from tests.ports import free_port
from tests.tables import each_row
from tests.webhooks.providers import NOW, STANDARD

SETTLED = (MessageOutcome.HANDLED, MessageOutcome.DUPLICATE, MessageOutcome.DEAD, MessageOutcome.PASSED)


def became(*handled: HandleResult) -> list[str]:
    assert all((one.again is None) == (one.became in SETTLED) for one in handled)
    return [one.became.value for one in handled]


# ---------------------------------------------------------------- once


@pytest.mark.fault(9)
@pytest.mark.fault(50)
async def test_the_write_and_the_record_commit_together_on_every_store(shop: Shop) -> None:
    inbox = Inbox(shop.boundary(effects="transactional", observers=()))
    fail = [True]

    @inbox.handler("inventory", max_attempts=2)
    def reserve(message: InboxMessage[Any]) -> None:
        shop.execute(message.tx, f"INSERT INTO {shop.goods} VALUES ('{message.data['n']}')")
        if fail:
            raise ValueError(fail.pop())

    @inbox.handler("ainventory", max_attempts=2)
    async def areserve(message: InboxMessage[Any]) -> None:
        await shop.insert(message.tx, str(message.data["n"]))
        if fail:
            raise ValueError(fail.pop())

    handler: Any = reserve if shop.sync else areserve
    first = await handler.ahandle(envelope(1), redelivered=False)
    assert (became(first), shop.rows()) == (["failed"], [])
    again = [await handler.ahandle(envelope(1)) for _ in range(3)]
    assert (became(*again), shop.rows()) == (["handled", "duplicate", "duplicate"], ["1"])


@pytest.mark.slow
@pytest.mark.parametrize("make", ["handler", "set_handler"])
async def test_sequences_and_batches_work_in_the_transactions_of_every_store(make: str, shop: Shop) -> None:
    inbox = Inbox(shop.boundary(effects="transactional", observers=()))
    entity = f"{make} {shop.goods}"

    def reserve(messages: Any) -> None:
        for message in messages if isinstance(messages, list) else [messages]:
            if inbox.apply_if_newer(message.tx, entity, message.data["n"], strict=True):
                shop.execute(message.tx, f"INSERT INTO {shop.goods} VALUES ('{message.data['n']}')")

    async def areserve(messages: Any) -> None:
        for message in messages if isinstance(messages, list) else [messages]:
            if await inbox.aapply_if_newer(message.tx, entity, message.data["n"], strict=True):
                await shop.insert(message.tx, str(message.data["n"]))

    handler: Any = getattr(inbox, make)("inventory")(reserve if shop.sync else areserve)
    found = await handler.ahandle_many([delivery(n, "k", b'{"n":%d}' % n) for n in (1, 3, 2)])
    last = "handled" if make == "handler" else "behind"
    assert (became(*found), shop.rows()) == (["handled", "gap", last], ["1", "2"] if last == "handled" else ["1"])
    found = await handler.ahandle_many([delivery(n, "k", b'{"n":%d}' % n) for n in (2, 3, 1)])
    assert (became(*found)[1:], shop.rows()) == (["handled", "duplicate"], ["1", "2", "3"])


def test_two_consumers_each_handle_a_message_and_one_name_is_given_once(world: World) -> None:
    inbox = world.inbox()

    def handle(message: InboxMessage[Any]) -> None:
        world.apply(message.tx, message.envelope.id)

    stock, mail = inbox.handler("stock")(handle), inbox.handler("mail")(handle)
    assert became(stock.handle(envelope(1)), mail.handle(envelope(1)), mail.handle(envelope(1))) == [
        *("handled", "handled", "duplicate")
    ]
    assert world.applied() == ["1", "1"]
    with pytest.raises(ConfigurationError, match="handler 'mail' already"):
        inbox.handler("mail")
    with pytest.raises(ConfigurationError, match="attemps= is no option"):
        inbox.handler("other", attemps=3)(handle)  # type: ignore[call-arg]


def test_messages_of_two_sources_may_have_one_id(world: World) -> None:
    handler = world.inbox().handler("stock")(lambda message: world.apply(message.tx, message.envelope.source))
    one, other = envelope("b1", source="a"), envelope("1", source="ab")
    assert became(handler.handle(one), handler.handle(other), handler.handle(one)) == [
        *("handled", "handled", "duplicate")
    ]
    assert world.applied() == ["a", "ab"]


def test_one_id_with_another_payload_is_a_dead_letter_of_its_own(world: World) -> None:
    inbox = world.inbox()
    handler = inbox.handler("stock")(lambda message: world.apply(message.tx, message.data["n"]))
    assert became(handler.handle(envelope(1)), handler.handle(envelope(1, payload=b'{"n":2}'))) == ["handled", "dead"]
    assert became(handler.handle(envelope(1, payload=b'{"n":2}')), handler.handle(envelope(1))) == ["dead", "duplicate"]
    [letter] = world.letters(inbox)
    assert (letter.arrival.envelope.payload, world.applied()) == (b'{"n":2}', ["1"])
    assert "KeyReused" in letter.letter.error


def test_another_payload_under_a_used_id_is_no_attempt_at_its_message(world: World) -> None:
    """Each would count as the end of a consumer, after which the message is given up that has only failed once."""
    raising = [ValueError]

    def apply(message: InboxMessage[Any]) -> None:
        if raising:
            raise raising.pop()

    handler = world.inbox(effects="keyed").handler("stock")(apply)
    others = [envelope(1, payload=b'{"n":%d}' % n) for n in (2, 3, 4)]
    assert became(*map(handler.handle, (envelope(1), *others, envelope(1)))) == ["failed", *["dead"] * 3, "handled"]
    assert became(*map(handler.handle, (*others, envelope(1)))) == [*["dead"] * 3, "duplicate"]


def test_without_the_digest_another_payload_is_a_duplicate(world: World) -> None:
    handler = world.inbox().handler("stock", digest=False)(lambda message: None)
    assert became(handler.handle(envelope(1)), handler.handle(envelope(1, payload=b"2"))) == ["handled", "duplicate"]


@each_row("redelivered", [True, False])
def test_a_duplicate_is_one_also_when_its_stored_answer_cannot_be_read(redelivered: bool, tmp_path: Path) -> None:
    """After a rotation that took the old key away too early; else it would come again for as long as it is kept."""
    found = []
    for name in ("old", "new"):
        keyring = Keyring({name: Keyring.generate()})
        store = f"sqlite:///{tmp_path}/shop.db"
        boundary = Boundary("shop", store=store, effects="transactional", encryption=keyring, observers=())
        handler = Inbox(boundary).handler("inventory")(lambda message: None)
        found.append(handler.handle(envelope(1), redelivered=redelivered))
        boundary.close()
    assert became(*found) == ["handled", "duplicate"]


@each_row("redelivered", [True, False])
def test_a_failure_that_cannot_be_read_is_no_success(redelivered: bool, tmp_path: Path) -> None:
    """Its consumer was killed between the record of the failure and the dead letter, which would never be written."""
    found, store = [], f"sqlite:///{tmp_path}/shop.db"
    for name in ("old", "new"):
        keyring = Keyring({name: Keyring.generate()})
        effects: Any = {"effects": "transactional", "permanent": [KeyError]}
        boundary = Boundary("shop", store=store, encryption=keyring, observers=(), **effects)
        handler = Inbox(boundary).handler("inventory")(lambda message: message.data["missing"])
        found.append(handler.handle(envelope(1), redelivered=redelivered))
        boundary.close()
        with contextlib.closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as connection:
            assert connection.execute("DELETE FROM retrysafe_inbox_dead").rowcount == 1, "it is a dead letter"
            connection.execute("DELETE FROM retrysafe_inbox_attempts")
    assert became(*found) == ["dead", "dead"]


def test_a_message_without_an_id_is_given_up_or_passes_by_choice(world: World) -> None:
    strict, lax = world.inbox(), world.inbox(on_missing="pass")
    seen: list[Any] = []
    dead, passed = strict.handler("stock")(seen.append), lax.handler("stock")(seen.append)
    assert became(dead.handle(envelope("")), passed.handle(envelope("")), passed.handle(envelope(""))) == [
        *("dead", "passed", "passed")
    ]
    assert (len(seen), len(world.letters(strict)), world.letters(lax)) == (2, 1, [])


@pytest.mark.parametrize("world", ["postgresql", "mysql"], indirect=True)  # SQLite has one writer, who is waited for
def test_a_message_that_another_consumer_handles_comes_again_and_counts_no_attempt(world: World) -> None:
    inbox = world.inbox()
    inside, go = threading.Event(), threading.Event()

    @inbox.handler("stock", max_crashes=2)
    def handle(message: InboxMessage[Any]) -> None:
        inside.set()
        assert go.wait(60)

    first = threading.Thread(target=handle.handle, args=(envelope(1),))
    first.start()
    assert inside.wait(60)
    try:
        rivals = [handle.handle(envelope(1)) for _ in range(4)]
        assert world.unfinished(handle, envelope(1)) == 1  # the first one's
    finally:
        go.set()
        first.join()
    assert became(*rivals) == ["busy"] * 4
    assert world.letters(inbox) == []
    assert became(handle.handle(envelope(1))) == ["duplicate"]


# ---------------------------------------------------------------- failures


@pytest.mark.fault(53)
def test_a_failing_message_is_tried_so_often_and_then_kept_with_its_last_error(world: World) -> None:
    inbox = world.inbox()
    calls: list[str] = []

    @inbox.handler("stock", max_attempts=3, backoff_base="1s", backoff_max="1m")
    def handle(message: InboxMessage[Any]) -> None:
        calls.append(message.envelope.id)
        world.apply(message.tx, "never")
        raise ValueError(f"no {len(calls)}")

    tried = [handle.handle(envelope(1), redelivered=again) for again in (False, True, True, True, False)]
    assert became(*tried) == ["failed", "failed", "dead", "dead", "dead"]
    assert (len(calls), world.applied()) == (3, [])
    assert [one.again for one in tried[:2]] == [pytest.approx(0.75, abs=0.26), pytest.approx(1.5, abs=0.51)]
    [letter] = world.letters(inbox)
    assert (letter.letter.started, letter.letter.finished, letter.letter.error) == (3, 3, "ValueError: no 3")
    assert world.names().count("dead_lettered") == 3


AWAY: dict[str, Callable[[], object]] = {
    "the store of another boundary": lambda: _raise(StoreUnavailable("the other one")),
    "a connection that ended": lambda: _raise(ConnectionResetError("gone")),
    "a network without a way": lambda: _raise(OSError(errno.EHOSTUNREACH, "no way")),
    "what the handler names": lambda: _raise(LookupError("no service")),
    "a task group of them": lambda: _raise(ExceptionGroup("two", [ConnectionResetError(), StoreUnavailable("x")])),
    "PostgreSQL that is down": lambda: psycopg.connect(f"postgresql://127.0.0.1:{free_port()}/x"),
    "MySQL that is down": lambda: pymysql.connect(host="127.0.0.1", port=free_port()),
}


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.slow
@pytest.mark.fault(53)
@pytest.mark.parametrize("away", AWAY)
@pytest.mark.parametrize("make", ["handler", "batch_handler", "set_handler"])
@pytest.mark.parametrize("world", ["sqlite"], indirect=True)
def test_services_of_a_handler_may_be_away_for_any_time(make: str, away: str, world: World) -> None:
    inbox = world.inbox()
    gone = [True]

    @getattr(inbox, make)("stock", max_attempts=1, max_crashes=1, unavailable=LookupError)
    def handle(given: Any) -> None:
        for message in given if isinstance(given, list) else [given]:
            world.apply(message.tx, message.envelope.id)
        if gone:
            AWAY[away]()

    def handled(*ids: int) -> list[HandleResult]:
        return asyncio.run(handle.ahandle_many([delivery(n, key=n, redelivered=n == 1) for n in ids]))

    for _ in range(3):
        tried = handled(1, 2, 3)
        assert became(*tried) == ["stalled"] * 3
    assert (world.letters(inbox), world.applied()) == ([], [])
    assert world.names().count("message_stalled") == 9
    gone.clear()
    assert became(*handled(1, 2, 3)) == ["handled"] * 3
    assert world.applied() == ["1", "2", "3"]


@pytest.mark.fault(53)
@pytest.mark.parametrize("world", ["postgresql", "mysql"], indirect=True)
def test_a_connection_that_the_database_ends_costs_no_attempt(world: World) -> None:
    inbox = world.inbox()
    end = ["SELECT pg_terminate_backend(pg_backend_pid())" if world.kind == "postgresql" else "KILL CONNECTION_ID()"]

    @inbox.handler("stock", max_attempts=1)
    def handle(message: InboxMessage[Any]) -> None:
        world.apply(message.tx, message.envelope.id)
        while end:
            execute = getattr(message.tx, "query", None) or message.tx.execute
            execute(end.pop())

    assert became(handle.handle(envelope(1))) == ["stalled"]
    assert became(handle.handle(envelope(1))) == ["handled"]
    assert (world.letters(inbox), world.applied()) == ([], ["1"])


@pytest.mark.parametrize("world", ["sqlite"], indirect=True)
def test_a_stalled_message_comes_again_ever_more_rarely_and_each_by_itself(world: World) -> None:
    bad = {"1"}

    @world.inbox().handler("stock")
    def handle(message: InboxMessage[Any]) -> None:
        if message.envelope.id in bad:
            raise ConnectionRefusedError

    pauses = []
    for n in range(10):
        pauses.append(handle.handle(envelope(1)).again or 0.0)
        assert became(handle.handle(envelope(f"beside {n}"))) == ["handled"], "what others need is there"
    assert all(0.25 * 2**n <= one <= 0.5 * 2**n for n, one in enumerate(pauses[:6]))
    assert all(15.0 <= one <= 30.0 for one in pauses[6:])
    bad.clear()
    assert became(handle.handle(envelope(1))) == ["handled"]


@pytest.mark.parametrize("world", ["sqlite"], indirect=True)
def test_errors_that_may_be_the_messages_own_spend_attempts(world: World) -> None:
    inbox = world.inbox(permanent=ConnectionAbortedError)
    raised: list[Exception] = [
        *(TimeoutError(), OSError(errno.ENOSPC, "full"), sqlite3.OperationalError("no such table: x")),
        *(ConnectionAbortedError(), ExceptionGroup("mixed", [ConnectionResetError(), ValueError()])),
    ]

    @inbox.handler("stock")
    def handle(message: InboxMessage[Any]) -> None:
        raise raised[int(message.envelope.id)]

    tried = [handle.handle(envelope(n)) for n in range(len(raised))]
    assert became(*tried) == ["failed", "failed", "failed", "dead", "failed"]
    with pytest.raises(ConfigurationError, match=r"unavailable= takes .*, not 'OSError'\."):
        inbox.handler("other", unavailable="OSError")(handle)  # type: ignore[arg-type]


def test_a_message_that_another_delivery_has_handled_meanwhile_is_no_dead_letter(world: World) -> None:
    inbox = world.inbox()

    def handle(message: InboxMessage[Any]) -> None:
        world.apply(message.tx, message.envelope.id)

    async def ahandle(message: InboxMessage[Any]) -> None: ...

    for number, handler in enumerate((inbox.handler("stock")(handle), inbox.handler("astock")(ahandle))):
        tried = [asyncio.run(handler.ahandle(envelope(number))), asyncio.run(handler.agive_up(envelope(number), "E"))]
        assert (became(*tried), world.letters(inbox)) == (["handled", "duplicate"], [])
    assert "dead_lettered" not in world.names()


@pytest.mark.parametrize("world", ["sqlite"], indirect=True)
def test_a_dead_letter_that_is_redriven_into_an_outage_stays_to_be_handled(world: World) -> None:
    inbox = world.inbox()
    errors: list[Exception] = [ConnectionResetError("gone"), ValueError("bad")]

    @inbox.handler("stock", max_attempts=1)
    def handle(message: InboxMessage[Any]) -> None:
        if errors:
            raise errors.pop()

    assert became(handle.handle(envelope(1))) == ["dead"]
    world.mark(inbox)
    assert became(*handle.handle_marked()) == ["stalled"]
    assert [one.letter.error for one in world.letters(inbox)] == ["ValueError: bad"]
    assert became(*handle.handle_marked()) == ["handled"]
    assert world.letters(inbox) == []


def test_a_permanent_failure_and_an_unreadable_payload_are_given_up_at_once(world: World) -> None:
    inbox = world.inbox(permanent=KeyError)

    @inbox.handler("stock")
    def handle(message: InboxMessage[Any]) -> None:
        if message.envelope.id == "2":
            message.claim.fail(LookupError("unknown"))
        else:
            raise KeyError("x")

    bad, nan = envelope(3, payload=b"{"), envelope(4, payload=b'{"n":NaN}')
    for _ in range(2):
        assert became(*(handle.handle(one) for one in (envelope(1), envelope(2), bad, nan))) == ["dead"] * 4
        errors = {one.letter.envelope.id: one.letter.error.split(":")[0] for one in world.letters(inbox)}
        assert errors == dict(zip("1234", ("KeyError", "LookupError", *["MessageUnreadable"] * 2), strict=True))


async def test_a_group_of_errors_is_judged_by_what_is_in_it(world: World) -> None:
    inbox = world.inbox(permanent=KeyError)
    raised: dict[str, BaseException] = {
        "1": ExceptionGroup("unhandled errors in a TaskGroup", [KeyError("x")]),
        "2": ExceptionGroup("two", [KeyError("x"), ExceptionGroup("inner", [MessageUnreadable("y")])]),
        "3": ExceptionGroup("a gap", [SequenceGap("late", last=1)]),
        "4": ExceptionGroup("mixed", [KeyError("x"), OSError("z")]),
        "5": BaseExceptionGroup("cancelled by itself", [asyncio.CancelledError(), KeyError("x")]),
    }

    def fail(message: InboxMessage[Any]) -> None:
        raise raised[message.envelope.id]

    async def afail(message: InboxMessage[Any]) -> None:
        fail(message)

    handler: Any = inbox.handler("stock")(afail if world.kind == "postgresql" else fail)
    handled = [await handler.ahandle(envelope(n)) for n in raised]
    assert [one.became.value for one in handled] == ["dead", "dead", "gap", "failed", "failed"]
    texts = {one.letter.envelope.id: one.letter.error for one in world.letters(inbox)}
    assert texts == {"1": "KeyError: 'x'", "2": "ExceptionGroup: KeyError: 'x'; MessageUnreadable: y"}
    assert handled[3].error == "ExceptionGroup: KeyError: 'x'; OSError: z"
    await inbox.boundary.aclose()


def test_an_interruption_in_a_group_is_no_messages_failure(world: World) -> None:
    handler = world.inbox(permanent=Exception).handler("stock")(_interrupted)
    with pytest.raises(BaseExceptionGroup):
        handler.handle(envelope(1))
    assert world.letters(Inbox(world.boundaries[-1])) == []


def _interrupted(message: InboxMessage[Any]) -> None:
    raise BaseExceptionGroup("two", [KeyError("x"), KeyboardInterrupt()])


ODD: dict[str, dict[str, str]] = {
    "a NUL in the error": {},
    "half a character in the error": {},
    "a NUL in its id": {"id": "a\0b"},
    "a NUL in its key": {"key": "a\0b"},
    "half a character in its key": {"key": "a\ud83d"},
    "half a character in its id": {"id": "a\ud83d"},
    "a NUL in its source": {"source": "/\0"},
    "a long topic": {"topic": "t" * 300},
    "a long media type": {"media_type": "m" * 300},
}


@pytest.mark.slow
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.fault(53)
def test_messages_that_no_database_can_keep_end_as_dead_letters(odd: str, world: World) -> None:
    inbox = world.inbox()
    failing = [True]
    error = {"a NUL in the error": "plain \0", "half a character in the error": "plain \ud83d"}.get(odd, "plain")

    @inbox.handler("stock", max_attempts=2)
    def handle(message: InboxMessage[Any]) -> None:
        world.apply(message.tx, "once")
        if failing:
            raise ValueError(error)

    message = envelope("1")._replace(**ODD[odd])
    assert became(*(handle.handle(message) for _ in range(3))) == ["failed", "dead", "dead"]
    (letter,) = world.letters(inbox)
    assert letter.letter.error.startswith("ValueError: plain")
    failing.clear()
    world.mark(inbox)
    assert became(*handle.handle_marked()) == ["handled"]
    assert became(handle.handle(message)) == ["duplicate"]
    assert (world.applied(), world.letters(inbox)) == (["once"], [])


@each_row("make", ["handler", "batch_handler", "set_handler"])
async def test_a_handler_that_is_cancelled_by_itself_has_failed(make: str, world: World) -> None:
    inbox = world.inbox()

    async def gives_up(message: Any) -> None:
        inner = asyncio.ensure_future(asyncio.sleep(60))
        inner.cancel()
        await inner

    handle = getattr(inbox, make)("stock", max_attempts=2, backoff_base="1ms")(gives_up)
    for expected in ("failed", "dead"):
        found = await handle.ahandle_many([delivery(1), delivery(2, "other")])
        assert became(*found) == [expected, expected]
    assert {one.letter.error.partition(":")[0] for one in world.letters(inbox)} == {"RuntimeError"}
    await world.boundaries[-1].aclose()


def test_a_duplicate_of_a_dead_message_does_not_change_its_letter(world: World) -> None:
    inbox = world.inbox()
    calls: list[str] = []

    @inbox.handler("stock", max_attempts=1)
    def handle(message: InboxMessage[Any]) -> None:
        calls.append(message.envelope.id)
        raise ValueError("the cause")

    handle.handle(envelope(1))
    [before] = world.letters(inbox)
    assert became(*(handle.handle(envelope(1), redelivered=again) for again in (False, True))) == ["dead", "dead"]
    with world.connected() as perform:  # as when the window has passed
        perform(f"DELETE FROM retrysafe_records WHERE boundary = '{inbox.boundary.name}'")
    assert became(handle.handle(envelope(1))) == ["dead"]
    assert world.letters(inbox)[0].letter._replace(now=0) == before.letter._replace(now=0)
    assert len(calls) == 1


@pytest.mark.fault(53)
def test_a_message_whose_every_attempt_ended_with_its_process_is_given_up_untried(world: World) -> None:
    inbox = world.inbox()
    calls: list[str] = []
    handle = inbox.handler("stock", max_crashes=3)(lambda message: calls.append(message.envelope.id))
    attempt = envelope(1)

    for _ in range(3):  # begun, and nothing more
        world.begin(handle, attempt)
    assert became(handle.handle(attempt)) == ["busy"]  # they may have come together
    world.age_attempts()
    assert became(handle.handle(attempt)) == ["dead"]
    [letter] = world.letters(inbox)
    assert (
        calls,
        letter.letter.started - letter.letter.finished > 1,
        "end of its consumer" in letter.letter.error,
    ) == ([], True, True)
    assert became(handle.handle(attempt, redelivered=False)) == ["dead"]


@pytest.mark.fault(50)
def test_duplicates_that_come_together_are_not_taken_for_crashes(world: World) -> None:
    handle = world.inbox().handler("stock", max_crashes=1)(lambda message: world.apply(message.tx, "1"))
    world.begin(handle, envelope(1))
    assert became(handle.handle(envelope(1))) == ["busy"]
    world.withdraw(handle, envelope(1))
    assert became(handle.handle(envelope(1)), handle.handle(envelope(1))) == ["handled", "duplicate"]
    assert world.applied() == ["1"]


def test_an_interruption_is_no_crash(world: World) -> None:
    calls: list[int] = []

    @world.inbox().handler("stock", max_crashes=1)
    def handle(message: InboxMessage[Any]) -> None:
        calls.append(1)
        if len(calls) < 4:
            raise KeyboardInterrupt

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            handle.handle(envelope(1))
    assert became(handle.handle(envelope(1))) == ["handled"]


@pytest.mark.parametrize("world", ["sqlite", "postgresql"], indirect=True)
async def test_a_cancelled_handler_is_no_crash_and_leaves_nothing(world: World) -> None:
    calls: list[int] = []
    inside = asyncio.Event()

    @world.inbox().handler("stock", max_crashes=1)
    async def handle(message: InboxMessage[Any]) -> None:
        calls.append(1)
        if len(calls) < 4:
            inside.set()
            await asyncio.Event().wait()

    for _ in range(3):
        task = asyncio.create_task(handle.ahandle(envelope(1)))
        await asyncio.wait_for(inside.wait(), 60)
        inside.clear()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert became(await handle.ahandle(envelope(1))) == ["handled"]
    await world.boundaries[-1].aclose()


def test_an_error_of_the_setting_is_raised_and_no_message_is_blamed(world: World) -> None:
    inbox = world.inbox()

    @inbox.handler("stock", max_attempts=1)
    async def handle(message: InboxMessage[Any]) -> None: ...

    with pytest.raises(ConfigurationError, match="coroutine function"):
        handle.handle(envelope(1))
    assert world.letters(inbox) == []


def test_a_store_without_transactions_needs_a_place_for_letters(tmp_path: Any) -> None:
    boundary = Boundary("inbox", store="memory://", observers=())
    with pytest.raises(ConfigurationError, match="dead_letter_store="):
        Inbox(boundary)
    inbox = Inbox(boundary, dead_letter_store=f"sqlite:///{tmp_path / 'letters.db'}")
    handle = inbox.handler("stock", max_attempts=1)(lambda message: 1 / message.data["n"])
    assert became(handle.handle(envelope(1)), handle.handle(envelope(1))) == ["handled", "duplicate"]
    assert became(handle.handle(envelope(2, payload=b'{"n":0}'))) == ["dead"]
    boundary.close()


def test_an_external_effect_in_doubt_waits_for_a_person(world: World) -> None:
    inbox = world.inbox(effects="external")
    handle = inbox.handler("mail")(lambda message: 1 / 0)
    assert became(handle.handle(envelope(1)), handle.handle(envelope(1))) == ["failed", "dead"]
    assert "OutcomeUnknown" in world.letters(inbox)[0].letter.error


# ---------------------------------------------------------------- redrive


@pytest.mark.fault(59)
def test_a_dead_letter_is_handled_again_once_and_stays_when_it_fails(world: World) -> None:
    inbox = world.inbox()
    fail = [1, 1]

    @inbox.handler("stock", max_attempts=1)
    def handle(message: InboxMessage[Any]) -> None:
        if fail:
            raise ValueError(fail.pop())
        world.apply(message.tx, message.envelope.id)

    assert became(handle.handle(envelope(1))) == ["dead"]
    assert handle.handle_marked() == []
    world.mark(inbox)
    assert became(*handle.handle_marked()) == ["dead"]
    assert (handle.handle_marked(), world.letters(inbox)[0].marked) == ([], False)
    world.mark(inbox)
    assert became(*handle.handle_marked()) == ["handled"]
    assert (world.applied(), world.letters(inbox)) == (["1"], [])
    assert became(handle.handle(envelope(1))) == ["duplicate"]


@pytest.mark.fault(59)
def test_messages_after_the_window_are_told_to_be_late(world: World) -> None:
    inbox = world.inbox(window="1h")
    late: list[bool] = []
    handle = inbox.handler("stock")(lambda message: late.append(message.late))
    old, new = uuid7(1_000_000, bytes(10)), "7"
    assert milliseconds_of(old) == 1_000_000
    assert milliseconds_of(new) is None
    assert became(handle.handle(envelope(old)), handle.handle(envelope(new))) == ["handled", "handled"]
    assert (late, world.names().count("message_late")) == ([True, False], 1)


# ---------------------------------------------------------------- sequences


def test_the_latest_wins(world: World) -> None:
    inbox = world.inbox()

    @inbox.handler("stock")
    def handle(message: InboxMessage[Any]) -> None:
        if inbox.apply_if_newer(message.tx, "sku \0 \ud83d", message.data["n"]):
            world.apply(message.tx, message.data["n"])

    for id, n in enumerate((3, 1, 5, 4, 5, 6)):
        assert became(handle.handle(envelope(id, payload=b'{"n":%d}' % n))) == ["handled"]
    assert world.applied() == ["3", "5", "6"]


@pytest.mark.slow
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("sequence", [None, "5", True, 2**63, -(2**63)])
def test_invalid_sequences_are_refused_and_never_taken_for_old_ones(sequence: Any, strict: bool, world: World) -> None:
    inbox = world.inbox()

    @inbox.handler("stock", max_attempts=1)
    def handle(message: InboxMessage[Any]) -> None:
        if inbox.apply_if_newer(message.tx, "sku \0", sequence, strict=strict):
            world.apply(message.tx, "applied")

    assert became(handle.handle(envelope(1))) == ["dead"]
    assert "whole number" in world.letters(inbox)[0].letter.error
    assert world.applied() == []


@pytest.mark.fault(55)
def test_strict_sequences_wait_for_what_is_missing_and_are_parked_if_it_does_not_come(world: World) -> None:
    inbox = world.inbox()

    @inbox.handler("stock", max_gaps=3, max_attempts=1)
    def handle(message: InboxMessage[Any]) -> None:
        if inbox.apply_if_newer(message.tx, "sku", message.data["n"], strict=True):
            world.apply(message.tx, message.data["n"])

    def come(n: int, copy: str = "") -> str:
        return became(handle.handle(envelope(f"{n}{copy}", payload=b'{"n":%d}' % n)))[0]

    assert [come(2), come(1), come(3), come(2), come(3), come(2, "b")] == [
        *("gap", "handled", "gap", "handled", "handled", "handled")
    ]
    assert world.applied() == ["1", "2", "3"]
    assert [come(9), come(9), come(9)] == ["gap", "gap", "dead"]


def strict_prices(world: World, inbox: Inbox) -> Handler[..., Any]:
    """A consumer that applies every sequence but 2, and 2 only once it is mended."""

    @inbox.handler("prices", max_attempts=1, max_gaps=5)
    def handle(message: InboxMessage[Any]) -> None:
        number = message.envelope.sequence
        assert number is not None
        if inbox.apply_if_newer(message.tx, str(message.envelope.key), number, strict=True):
            if message.data["n"] == 2:
                raise ValueError("poison")
            world.apply(message.tx, number)

    return handle


def price(n: int, key: str = "k") -> Envelope:
    return envelope(f"{key}{n}", key, payload=b'{"n":%d}' % n, sequence=n)


def test_messages_behind_a_poison_one_are_parked_after_one_attempt_and_redriven_after_it_is_skipped(
    world: World,
) -> None:
    inbox = world.inbox()
    handle = strict_prices(world, inbox)
    words = [became(handle.handle(price(n)))[0] for n in range(1, 6)]
    assert words == ["handled", "dead", "dead", "dead", "dead"]
    assert became(handle.handle(price(1, "other")))[0] == "handled"

    assert inbox.skip("prices", "k", 2, actor="ann", reason="wrong") is True
    assert inbox.skip("prices", "k", 2) is False
    assert became(handle.handle(price(6)))[0] == "dead"  # 3 still lies in the dead letters
    world.mark(inbox)
    while handle.handle_marked():
        pass
    assert world.applied() == ["1", "1", "3", "4", "5", "6"]
    assert became(handle.handle(price(7)))[0] == "handled"
    (skipped,) = (one for one in world.told if one.name == "sequence_skipped")
    assert (skipped.fields["sequence"], skipped.fields["actor"]) == (2, "ann")


def test_a_gap_that_was_waited_for_in_vain_parks_what_follows_at_once(world: World) -> None:
    inbox = world.inbox()
    handle = strict_prices(world, inbox)
    late = [became(handle.handle(price(2)))[0] for _ in range(5)]
    assert late == [*["gap"] * 4, "dead"]
    assert [became(handle.handle(price(n)))[0] for n in (3, 4)] == ["dead", "dead"]
    assert became(handle.handle(price(1)))[0] == "handled"


async def test_a_sequence_is_skipped_on_an_event_loop(world: World) -> None:
    inbox = world.inbox()
    assert await inbox.askip("prices", "new", 3) is True
    assert became(strict_prices(world, inbox).handle(price(4, "new")))[0] == "handled"
    await inbox.boundary.aclose()


def test_consumers_keep_sequences_of_their_own_and_outside_of_one_it_is_named(world: World) -> None:
    inbox = world.inbox()
    seen: list[bool] = []
    for name in ("stock", "mail"):
        handle = inbox.handler(name)(lambda message: seen.append(inbox.apply_if_newer(message.tx, "sku", 1)))
        handle.handle(envelope(1))
    assert seen == [True, True]
    with pytest.raises(ConfigurationError, match="consumer="):
        inbox.apply_if_newer(None, "sku", 1)


def test_a_claim_inside_a_handler_keeps_no_sequences_of_its_own(world: World) -> None:
    """The sequences are those of the consumer whose handler runs, whatever it has claimed inside."""
    inbox = world.inbox()
    inner = Boundary("pay", store=world.url, effects="transactional", observers=())
    seen: list[bool] = []

    def apply(message: InboxMessage[Any]) -> None:
        with inner.claim(f"{message.envelope.id} {len(seen)}", tx=message.tx) as claim:
            seen.append(inbox.apply_if_newer(message.tx, "sku", 1))
            claim.result = None

    for name in ("stock", "mail"):
        inbox.handler(name)(apply).handle(envelope(1))
    assert seen == [True, True]
    assert inbox.skip("stock", "sku", 2) is True
    inner.close()


@pytest.mark.parametrize("make", ["handler", "batch_handler"])
@pytest.mark.parametrize("world", ["postgresql", "postgresql-18"], indirect=True)
def test_a_handler_that_hides_an_error_of_its_transaction_spends_an_attempt(make: str, world: World) -> None:
    """PostgreSQL can commit nothing after it: no consumer ends by that, and the other messages go on."""
    inbox = world.inbox()

    def hides(message: InboxMessage[Any]) -> None:
        world.apply(message.tx, message.envelope.id)
        if message.envelope.id == "2":
            with contextlib.suppress(psycopg.Error):
                message.tx.execute("SELECT 1/0")

    handle = getattr(inbox, make)("stock", max_attempts=1)(hides)
    deliveries = [delivery(n, n) for n in (1, 2, 3)]
    found = (
        handle.handle_many(deliveries)
        if make == "batch_handler"
        else [handle.handle(one.envelope) for one in deliveries]
    )
    assert became(*found) == ["handled", "dead", "handled"]
    assert world.applied() == ["1", "3"]


@each_row("make", ["handler", "batch_handler"])
def test_a_handler_that_rolls_back_by_itself_spends_an_attempt(make: str, world: World) -> None:
    inbox = world.inbox()

    def undo(message: InboxMessage[Any]) -> None:
        world.apply(message.tx, message.envelope.id)
        message.tx.rollback()

    handle = getattr(inbox, make)("stock", max_attempts=2, backoff_base="1ms")(undo)
    for expected in ("failed", "dead"):
        if make == "batch_handler":
            found = became(*handle.handle_many([delivery(1)]))
        else:
            found = became(handle.handle(envelope(1)))
        assert found == [expected]
    assert world.applied() == []


def test_a_failing_message_with_attributes_of_any_length_is_a_dead_letter(world: World) -> None:
    """Any attributes of other publishers; the next message in its lane goes on."""
    inbox = world.inbox()
    handle = inbox.handler("stock", max_attempts=1)(lambda message: 1 / message.data["n"])
    long = "x" * 70_000
    sent = envelope(long, long, payload=b'{"n":0}', type=long, source=long, headers={"x": long})
    assert became(handle.handle(sent)) == ["dead"]
    (kept,) = world.letters(inbox)
    found = kept.letter.envelope
    assert (found.id, found.key, found.type, found.source, found.headers) == (long, long, long, long, {"x": long})


def test_a_gap_error_names_the_last_one_applied(world: World) -> None:
    inbox = world.inbox()
    found: list[int | None] = []

    @inbox.handler("stock")
    def handle(message: InboxMessage[Any]) -> None:
        inbox.apply_if_newer(message.tx, "sku", 7, strict=True, first=7)
        try:
            inbox.apply_if_newer(message.tx, "sku", 9, strict=True)
        except SequenceGap as gap:
            found.append(gap.last)

    handle.handle(envelope(1))
    assert found == [7]


# ---------------------------------------------------------------- beside webhooks


def test_a_webhook_and_the_queue_retry_of_its_event_share_a_key(world: World) -> None:
    inbox = world.inbox()
    receiver = Receiver(inbox.boundary, STANDARD.receiver_scheme(), clock=lambda: NOW)

    @receiver.otherwise
    def paid(event: WebhookEvent[Any]) -> None:
        world.apply(event.tx, event.id)

    @inbox.handler("webhook retries")
    def retry(message: InboxMessage[Any]) -> None:
        receiver.handle(WebhookEvent.load(message.data))

    def queued(id: str, message: str) -> HandleResult:
        event = receiver.verify(*_wire(id))
        assert isinstance(event, WebhookEvent)
        return retry.handle(envelope(message, payload=json.dumps(event.dump()).encode()))

    assert receiver.receive(*_wire("e1")).status < 300
    assert became(queued("e1", "m1"), queued("e2", "m2"), queued("e2", "m3")) == ["handled"] * 3
    assert receiver.receive(*_wire("e2")).status < 300
    assert world.applied() == ["e1", "e2"]


def _wire(id: str) -> tuple[Any, bytes]:
    delivered = STANDARD.deliver(id)
    return delivered.headers, delivered.body
