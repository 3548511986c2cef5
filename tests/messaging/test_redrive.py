"""Dead letters of a key are handled again in its order, whoever does it and however many there are."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from retrysafe import current
from retrysafe.backends.sql.inbox import SqlInbox
from retrysafe.claims import heartbeat
from retrysafe.errors import StoreUnavailable
from retrysafe.messaging import DeadLetterFilter, Handler, Inbox, InboxMessage, InboxOperator
from retrysafe.messaging.inbox import procedures
from retrysafe.messaging.inbox.dead_letters import Letters
from tests.faults.helpers import DEADLINE
from tests.messaging.inboxes import World, envelope
from tests.tables import each_row

MANY = 130
"""More than one page has."""


def strict(world: World, inbox: Inbox, broken: list[bool]) -> Handler[..., Any]:
    """A consumer of strict sequences."""

    @inbox.handler(f"prices-{inbox.boundary.name}", max_attempts=1, max_gaps=1)
    def handle(message: InboxMessage[Any]) -> None:
        if broken:
            raise ValueError("broken")
        number = message.envelope.sequence
        assert number is not None
        if inbox.apply_if_newer(message.tx, str(message.envelope.key), number, strict=True):
            world.apply(message.tx, f"{number:04}")

    return handle


def buried(handle: Handler[..., Any], numbers: Any, payload: bytes = b'{"n":1}') -> None:
    for number in numbers:
        assert handle.handle(envelope(number, "k", payload, sequence=number)).became == "dead"


def redriven(world: World, handle: Handler[..., Any]) -> int:
    with InboxOperator(world.url, observers=()) as operator:
        return operator.redrive(DeadLetterFilter(consumer=handle.consumer))


@pytest.mark.slow
@pytest.mark.fault(55)
def test_one_redrive_is_enough_for_a_key_with_many_letters_and_several_consumers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retrysafe.backends.sql.inbox.PAGE_BYTES", 4000)
    inbox, broken = world.inbox(), [True]
    handle = strict(world, inbox, broken)
    buried(handle, reversed(range(1, MANY + 1)), b'"' + b"x" * 300 + b'"')
    broken.clear()
    assert redriven(world, handle) == MANY

    def consume(_: int) -> int:
        done = 0
        while any(one.marked for one in world.letters(inbox)):
            done += len(handle.handle_marked())
        return done

    with ThreadPoolExecutor(3) as pool:
        assert sum(pool.map(consume, range(3))) == MANY
    assert world.applied() == [f"{number:04}" for number in range(1, MANY + 1)]
    assert world.letters(inbox) == []


def test_while_one_consumer_handles_them_another_one_leaves_them_alone(world: World) -> None:
    inbox, broken = world.inbox(effects="keyed"), [True]
    others: list[Any] = []

    @inbox.handler(f"prices-{inbox.boundary.name}", max_attempts=1)
    def handle(message: InboxMessage[Any]) -> None:
        if broken:
            raise ValueError("broken")
        others.append(handle.handle_marked())

    buried(handle, (2, 1))
    broken.clear()
    redriven(world, handle)
    assert [one.became for one in handle.handle_marked()] == ["handled", "handled"]
    assert others == [[], []]


async def test_so_it_is_on_an_event_loop(world: World) -> None:
    inbox, broken = world.inbox(effects="keyed"), [True]
    others: list[Any] = []

    @inbox.handler(f"prices-{inbox.boundary.name}", max_attempts=1)
    async def handle(message: InboxMessage[Any]) -> None:
        if broken:
            raise ValueError("broken")
        others.append(await handle.ahandle_marked())

    for number in (2, 1):
        await handle.ahandle(envelope(number, sequence=number))
    broken.clear()
    redriven(world, handle)
    assert [one.became for one in await handle.ahandle_marked()] == ["handled", "handled"]
    assert (others, world.letters(inbox)) == ([[], []], [])
    await inbox.boundary.aclose()


def test_letters_behind_one_that_has_to_come_again_wait_for_it(world: World) -> None:
    inbox = world.inbox()
    away = [LookupError("away")]

    @inbox.handler(f"prices-{inbox.boundary.name}", max_attempts=1, unavailable=LookupError)
    def handle(message: InboxMessage[Any]) -> None:
        if message.tx is None or not handle.ready:  # type: ignore[attr-defined]
            raise ValueError("broken")
        if away and message.envelope.id == "1":
            raise away.pop()
        world.apply(message.tx, message.envelope.id)

    handle.ready = False  # type: ignore[attr-defined]
    for number, key in ((1, "k"), (2, "k"), (3, "other")):
        assert handle.handle(envelope(number, key)).became == "dead"
    handle.ready = True  # type: ignore[attr-defined]
    redriven(world, handle)
    assert [one.became for one in handle.handle_marked()] == ["stalled", "handled"]
    assert world.applied() == ["3"]
    assert [one.became for one in handle.handle_marked()] == ["handled", "handled"]
    assert world.applied() == ["1", "2", "3"]


@pytest.mark.fault(55)
def test_a_letter_that_meets_a_gap_stays_marked_while_what_it_waits_for_is_marked_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before it is marked when it has been taken."""
    inbox, broken = world.inbox(), [True]

    def reopen(*of: Any) -> Any:
        world.mark(inbox)
        return reopened(*of)

    reopened = procedures.reopen
    monkeypatch.setattr(procedures, "reopen", reopen)
    handle = strict(world, inbox, broken)
    buried(handle, (2, 1))
    broken.clear()
    with InboxOperator(world.url, observers=()) as operator:
        assert operator.redrive(DeadLetterFilter(consumer=handle.consumer), limit=1) == 1
    assert [one.became for one in handle.handle_marked()] == ["gap"]
    monkeypatch.undo()
    assert [one.became for one in handle.handle_marked()] == ["handled", "handled"]
    assert (world.applied(), world.letters(inbox)) == (["0001", "0002"], [])


def test_a_letter_whose_gap_nobody_fills_stays_dead(world: World) -> None:
    inbox, broken = world.inbox(), [True]
    handle = strict(world, inbox, broken)
    buried(handle, (2,))
    broken.clear()
    redriven(world, handle)
    assert [one.became for one in handle.handle_marked()] == ["dead"]
    assert handle.handle_marked() == []


@pytest.mark.fault(55)
@each_row("colour", ["sync", "async"])
async def test_a_consumer_that_has_lost_the_lease_handles_no_more_of_them(
    colour: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox, broken = world.inbox(effects="keyed", lease="10m"), [True]
    real, seen = heartbeat.clock, []

    def take(message: InboxMessage[Any]) -> None:
        if broken:
            raise ValueError("broken")
        seen.append(message.envelope.id)
        monkeypatch.setattr(heartbeat, "clock", lambda: real() + 31)

    async def atake(message: InboxMessage[Any]) -> None:
        take(message)

    make = inbox.handler(f"prices-{inbox.boundary.name}", max_attempts=1)
    handle: Handler[..., Any] = make(take if colour == "sync" else atake)
    for number in (1, 2):
        assert (await handle.ahandle(envelope(number, sequence=number))).became == "dead"
    broken.clear()
    redriven(world, handle)
    for number in (1, 2):
        assert [one.became for one in await handle.ahandle_marked()] == ["handled"]
        assert len(seen) == number
        monkeypatch.undo()
    assert world.letters(inbox) == []
    await inbox.boundary.aclose()


class CutOff:
    """The take of one dead letter that a consumer cannot know the end of: it is performed all the same."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cancels: asyncio.Task[Any] | None = None
        """The task to cancel when it was performed, before it is answered; otherwise the answer is lost."""
        self.answered = False
        self._taking = False
        take, run, arun = SqlInbox.take, Letters.run, Letters.arun

        def taking(inbox: SqlInbox, identity: bytes) -> Any:
            self._taking = True
            monkeypatch.setattr(SqlInbox, "take", take)
            return take(inbox, identity)

        def running(letters: Letters, steps: Any) -> Any:
            is_take, self._taking = self._taking, False
            found = run(letters, steps)
            if is_take:
                raise StoreUnavailable("The connection was cut.")
            return found

        async def arunning(letters: Letters, steps: Any) -> Any:
            is_take, self._taking = self._taking, False
            found = await arun(letters, steps)
            if is_take:
                await self._cut_off()
            return found

        monkeypatch.setattr(SqlInbox, "take", taking)
        monkeypatch.setattr(Letters, "run", running)
        monkeypatch.setattr(Letters, "arun", arunning)

    async def _cut_off(self) -> None:
        if self.cancels is None:
            raise StoreUnavailable("The connection was cut.")
        self.cancels.cancel()
        await asyncio.sleep(0)
        self.answered = True


@pytest.mark.fault(55)
@each_row(("colour", "how"), [("sync", "lost"), ("async", "lost"), ("async", "cancelled")])
async def test_a_letter_whose_taking_is_cut_off_is_handled_before_what_follows_it(
    world: World, colour: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was unmarked and not handled, and the next look handled the letter behind it."""
    inbox, broken, handled = world.inbox(effects="keyed"), [True], list[str]()

    def take(message: InboxMessage[Any]) -> None:
        if broken:
            raise ValueError("broken")
        handled.append(message.envelope.id)

    async def atake(message: InboxMessage[Any]) -> None:
        take(message)

    make = inbox.handler(f"prices-{inbox.boundary.name}", max_attempts=1)
    handle: Handler[..., Any] = make(take if colour == "sync" else atake)
    for number in (1, 2):
        assert (await handle.ahandle(envelope(number, sequence=number))).became == "dead"
    broken.clear()
    redriven(world, handle)
    cut_off = CutOff(monkeypatch)
    looking = asyncio.create_task(handle.ahandle_marked())
    cut_off.cancels = looking if how == "cancelled" else None
    with pytest.raises(asyncio.CancelledError if how == "cancelled" else StoreUnavailable):
        await looking
    assert cut_off.answered == (how == "cancelled"), "it may be performed when the letter has been marked again"
    assert ([one.marked for one in world.letters(inbox)], handled) == ([True, True], [])
    assert [one.became for one in await handle.ahandle_marked()] == ["handled", "handled"]
    assert (handled, world.letters(inbox)) == (["1", "2"], [])
    await inbox.boundary.aclose()


async def test_a_cancellation_while_a_plain_function_handles_one_begins_no_other(world: World) -> None:
    """Its thread went on with all that were marked, and whoever had cancelled it waited for them."""
    inbox, broken, handled = world.inbox(effects="keyed"), [True], list[str]()
    begun, go_on = threading.Event(), threading.Event()

    @inbox.handler(f"prices-{inbox.boundary.name}", max_attempts=1)
    def handle(message: InboxMessage[Any]) -> None:
        if broken:
            raise ValueError("broken")
        begun.set()
        assert go_on.wait(DEADLINE)
        handled.append(message.envelope.id)

    for number in (1, 2):
        assert (await handle.ahandle(envelope(number, f"k{number}"))).became == "dead"
    broken.clear()
    redriven(world, handle)
    looking = asyncio.create_task(handle.ahandle_marked())
    assert await asyncio.to_thread(begun.wait, DEADLINE)
    looking.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await looking
    assert (len(handled), [one.marked for one in world.letters(inbox)]) == (1, [True])
    assert [one.became for one in await handle.ahandle_marked()] == ["handled"]
    assert (sorted(handled), world.letters(inbox)) == (["1", "2"], [])
    await inbox.boundary.aclose()


@pytest.mark.parametrize("world", ["sqlite"], indirect=True)
def test_all_letters_that_a_person_chose_are_marked_or_none(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a consumer could meet a gap between those that are marked, and bury them once more."""
    monkeypatch.setattr(procedures, "AT_ONCE", 1)
    inbox = world.inbox()
    handle = strict(world, inbox, [True])
    buried(handle, (1, 2))
    with world.connected() as perform:
        marked = "EXISTS (SELECT 1 FROM retrysafe_inbox_dead WHERE redrive IS NOT NULL)"
        refused = f"WHEN {marked} BEGIN SELECT RAISE(ABORT, 'one is marked'); END"
        perform(f"CREATE TRIGGER one BEFORE UPDATE ON retrysafe_inbox_dead {refused}")
    with pytest.raises(sqlite3.Error, match="one is marked"):
        redriven(world, handle)
    assert [one.marked for one in world.letters(inbox)] == [False, False]


@each_row(
    ("given_up", "undo", "after"),
    [
        ("after errors", False, ["charge", "label"]),
        ("after errors", True, ["charge", "label"]),
        ("for good", True, ["charge", "refund", "charge", "label"]),
    ],
)
def test_work_in_steps_goes_on_behind_those_that_are_done(
    world: World, given_up: str, undo: bool, after: list[str]
) -> None:
    """Unless it has gone back, after which it is new work, with keys of its own for the calls downstream."""
    inbox, broken = world.inbox(effects="keyed", permanent=ValueError), [True]
    calls: list[tuple[str, str]] = []

    def call(name: str) -> None:
        calls.append((name, current().key_for("bank")))

    @inbox.handler(f"shipping-{inbox.boundary.name}", max_attempts=1)
    def handle(message: InboxMessage[Any]) -> None:
        assert message.claim is not None
        message.claim.step("charge", call, "charge", undo=(lambda _: call("refund")) if undo else None)
        if broken:
            raise (ValueError if given_up == "for good" else OSError)("the printer")
        message.claim.step("label", call, "label")

    assert handle.handle(envelope(1)).became == "dead"
    broken.clear()
    redriven(world, handle)
    assert [one.became for one in handle.handle_marked()] == ["handled"]
    assert [name for name, _ in calls] == after
    charges = [key for name, key in calls if name == "charge"]
    assert len(set(charges)) == len(charges)
