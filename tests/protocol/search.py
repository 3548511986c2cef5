"""Breadth-first search over everything that a few attempts at one key can do.

The steps are those of the shipping store and table, the decisions are the shipping ones, the judge is
that of the simulation. Time, delivery, loss, duplication, crashes, sweeps and the operator are choices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator
from typing import Any, NamedTuple

from retrysafe.backends.memory.store import MemoryStore
from retrysafe.protocol.decisions import Decision, decide
from retrysafe.protocol.records import ClaimRequest, Clocks, Effects, Ownership, Record, State, StoredResult
from retrysafe.protocol.transitions import Transition
from tests.laboratory.simulation.judging import Check, Judge, Violation, result_of
from tests.laboratory.simulation.messages import Message

KEY = b"key"
EPOCH = 100
_BOOKS = ("_windows", "_highest", "_claims", "_effects", "_answers", "_receipts", "_fences")
_STORE = MemoryStore()
ALL = frozenset(Check)


class Size(NamedTuple):
    """The bounds of the search."""

    effects: Effects
    attempts: int = 2
    ticks: int = 4
    duplicates: int = 1
    resends: int = 0
    jumps: tuple[int, ...] = ()
    clocks: Clocks = Clocks(lease=1, window=2, memory=2)
    later_than_memory: bool = False
    """True if a message about a record may arrive after that record was forgotten and swept."""


class World(NamedTuple):
    """One state: the record, the clock, the attempts, what is on its way, and the judge's books."""

    record: Record | None
    now: int
    attempts: tuple[tuple[Any, ...], ...]
    flight: tuple[Message, ...]
    left: tuple[int, int, int]
    books: tuple[Any, ...]


class Found(NamedTuple):
    """The outcome: how many states, how deep, and the path to the first broken promise, if any."""

    states: int
    depth: int
    violation: Violation | None
    path: tuple[str, ...]


def search(size: Size, checks: Container[Check] = ALL, most: int = 500_000) -> Found:
    """Visit every state, nearest first, until one of the ``checks`` is broken."""
    idle = (("idle", size.resends),) * size.attempts
    start = World(None, EPOCH, idle, (), (size.ticks, size.duplicates, 1), _put_away(Judge()))
    came_from: dict[World, tuple[World, str] | None] = {start: None}
    queue = deque([(start, 0)])
    depth = 0
    while queue:
        world, depth = queue.popleft()
        for what, after, judge in _steps(world, size):
            for violation in judge.violations if judge is not None else ():
                if violation.check in checks:
                    return Found(len(came_from), depth + 1, violation, (*_path(came_from, world), what))
            if after not in came_from:
                came_from[after] = (world, what)
                queue.append((after, depth + 1))
        if len(came_from) > most:
            raise AssertionError(f"more than {most} states")
    return Found(len(came_from), depth, None, ())


def _path(came_from: dict[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    path: list[str] = []
    while (before := came_from[world]) is not None:
        world, what = before
        path.append(what)
    return tuple(reversed(path))


Step = tuple[str, World, Judge | None]


def _steps(world: World, size: Size) -> Iterator[Step]:
    ticks, duplicates, jumps = world.left
    if ticks:
        yield "tick", world._replace(now=world.now + 1, left=(ticks - 1, duplicates, jumps)), None
    if jumps:
        for jump in size.jumps:
            yield f"jump {jump}", world._replace(now=world.now + jump, left=(ticks, duplicates, 0)), None
    yield from _sweep(world, size)
    yield from _operate(world)
    for number in range(size.attempts):
        yield from _act(world, size, number)
    for message in dict.fromkeys(world.flight):
        yield from _deliver(world, size, message)


# ---------------------------------------------------------------- the judge's books


def _put_away(judge: Judge) -> tuple[Any, ...]:
    return (*(tuple(getattr(judge, book).items()) for book in _BOOKS), judge._paid[KEY])


def _open(books: tuple[Any, ...]) -> Judge:
    judge = Judge()
    for name, items in zip(_BOOKS, books, strict=False):
        getattr(judge, name).update(items)
    judge._paid[KEY] = books[-1]
    return judge


# ---------------------------------------------------------------- attempts


def want_of(size: Size, number: int) -> ClaimRequest:
    """Return the claim of attempt ``number``."""
    return ClaimRequest(KEY, "b", "", "op", b"p", "abcdef"[number], size.effects, size.clocks)


def _act(world: World, size: Size, number: int) -> Iterator[Step]:
    """Yield the steps that attempt ``number`` may take by itself: send something, have its effect, or die."""
    attempt = world.attempts[number]
    name = "abcdef"[number]
    match attempt:
        case ("idle", sends):
            want = want_of(size, number)
            message = Message("claim", KEY, want, Transition.CLAIM, number)
            yield f"{name} claims", _send(world, number, ("claiming", sends), message), None
        case ("held", held):
            yield from _perform(world, size, number, held)
            message = Message("settle", KEY, held, Transition.RELEASE, number)
            yield f"{name} releases", _send(world, number, ("gone",), message), None
        case ("did", held):
            message = Message("settle", KEY, held, Transition.COMPLETE, number)
            yield f"{name} completes", _send(world, number, ("settling", held, Transition.COMPLETE), message), None
            if size.effects == "external":
                doubt = Message("settle", KEY, held, Transition.DOUBT, number)
                yield f"{name} doubts", _send(world, number, ("gone",), doubt), None
        case ("claiming" | "taking" | "suspecting", sends) if sends:
            yield f"{name} got no answer", _become(world, number, ("idle", sends - 1)), None
    if attempt[0] != "gone" and _is_in_doubt(world, name):
        yield f"{name} turns out to have crashed", _become(world, number, ("gone",)), None


def _is_in_doubt(world: World, name: str) -> bool:
    record = world.record
    return record is not None and record.state is State.UNKNOWN and record.attempt == name


def _become(world: World, number: int, attempt: tuple[Any, ...]) -> World:
    attempts = world.attempts
    return world._replace(attempts=(*attempts[:number], attempt, *attempts[number + 1 :]))


def _send(world: World, number: int, attempt: tuple[Any, ...], message: Message) -> World:
    return _become(world, number, attempt)._replace(flight=_sorted((*world.flight, message)))


def _sorted(flight: tuple[Message, ...]) -> tuple[Message, ...]:
    return tuple(sorted(flight, key=repr))


def _perform(world: World, size: Size, number: int, ownership: Ownership) -> Iterator[Step]:
    judge = _open(world.books)
    accepted = judge.effect(ownership, size.effects, "derived")
    after = _become(world, number, ("did", ownership) if accepted else ("gone",))
    yield f"{ownership.attempt} has its effect", after._replace(books=_put_away(judge)), judge


# ---------------------------------------------------------------- the store, the sweep, the operator


def _deliver(world: World, size: Size, message: Message) -> Iterator[Step]:
    """A message arrives, once or leaving a duplicate behind; its reply arrives or not.

    That a message is lost, or its sender crashes, needs no step: it is never chosen again.
    """
    flight = list(world.flight)
    flight.remove(message)
    without = world._replace(flight=tuple(flight))
    answer, applied, judge = _apply(without, size, message)
    yield f"{_name(message)} arrives, no reply", applied, judge
    yield f"{_name(message)} arrives", _reply(applied, size, message, answer, judge), judge
    ticks, duplicates, jumps = world.left
    if duplicates:
        again = applied._replace(flight=world.flight, left=(ticks, duplicates - 1, jumps))
        yield f"{_name(message)} arrives and will again", _reply(again, size, message, answer, judge), judge


def _name(message: Message) -> str:
    return f"{message.event} (by {message.request}, naming {message.named.attempt})"


def _apply(world: World, size: Size, message: Message) -> tuple[Any, World, Judge]:
    judge = _open(world.books)
    records = {} if world.record is None else {KEY: world.record}
    answer = _ask(size, message).request(records, world.now)
    after = records.get(KEY)
    if after is not world.record:
        judge.wrote(message, world.record, after, world.now)
    stored = None if after is None else after._replace(now=0)
    return answer, world._replace(record=stored, books=_put_away(judge)), judge


def _ask(size: Size, message: Message) -> Any:
    named, event = message.named, message.event
    assert event is not None
    if message.kind == "claim":
        return _STORE.claim(named)
    if message.kind == "take":
        return _STORE.take(want_of(size, message.request), named)
    if message.kind == "settle":
        own = result_of(named.attempt, named.token) if event is Transition.COMPLETE else None
        return _STORE.settle(named, event, own)
    result = StoredResult(b"operator", "t", 1) if event is Transition.RESOLVE_COMPLETED else None
    return _STORE.resolve(named, event, result, size.clocks)


def _reply(world: World, size: Size, message: Message, answer: Any, judge: Judge) -> World:
    """Apply an answer to its sender, if that still waits for it."""
    number = message.request
    if number < 0:
        return world
    match message.kind, world.attempts[number]:
        case "claim", ("claiming", sends):
            return _decide(world, size, number, sends, answer, judge)
        case "take", ("taking", sends):
            if answer is None:
                return _become(world, number, ("idle", sends - 1) if sends else ("gone",))
            return _become(world, number, ("held", _hold(size, number, answer)))
        case "resolve", ("suspecting", sends):
            return _become(world, number, ("idle", sends - 1) if sends else ("gone",))
        case "settle", ("settling", held, Transition.COMPLETE):
            if answer:
                judge.answered(held.attempt, held.token, result_of(held.attempt, held.token))
            return _become(world, number, ("gone",))._replace(books=_put_away(judge))
    return world


def _hold(size: Size, number: int, record: Record) -> Ownership:
    return Ownership(KEY, want_of(size, number).attempt, record.token, size.clocks, False)


def _decide(world: World, size: Size, number: int, sends: int, record: Record, judge: Judge) -> World:
    decision = decide(record, want_of(size, number))
    if decision is Decision.MINE:
        return _become(world, number, ("held", _hold(size, number, record)))
    if decision is Decision.TAKE:
        return _send(world, number, ("taking", sends), Message("take", KEY, record, Transition.CLAIM, number))
    if decision is Decision.SUSPECT:
        message = Message("resolve", KEY, record, Transition.SUSPECT, number)
        return _send(world, number, ("suspecting", sends), message)
    if decision is Decision.BUSY and sends:
        return _become(world, number, ("idle", sends - 1))
    if decision is Decision.REPLAY:
        judge.answered(record.attempt, record.token, record.result)
        world = world._replace(books=_put_away(judge))
    return _become(world, number, ("gone",))


def _sweep(world: World, size: Size) -> Iterator[Step]:
    if world.record is None:
        return
    records = {KEY: world.record}
    for ask in _STORE.sweep(1):
        ask.request(records, world.now)
    if not records:
        judge = _open(world.books)
        judge.wrote(Message("sweep", KEY, None, Transition.SWEEP, -1), world.record, None, world.now)
        in_time = world.flight if size.later_than_memory else _unnamed(world.flight)
        yield "sweep", world._replace(record=None, flight=in_time, books=_put_away(judge)), judge


def _unnamed(flight: tuple[Message, ...]) -> tuple[Message, ...]:
    return tuple(message for message in flight if message.kind not in ("take", "resolve"))


def _operate(world: World) -> Iterator[Step]:
    """The operator settles by the truth, once the attempt is gone."""
    if world.record is None or world.record.state is not State.UNKNOWN:
        return
    if world.attempts["abcdef".index(world.record.attempt)][0] != "gone":
        return
    if any(message.kind == "resolve" and message.request < 0 for message in world.flight):
        return
    happened = _open(world.books).happened(world.record)
    event = Transition.RESOLVE_COMPLETED if happened else Transition.RESOLVE_RELEASED
    message = Message("resolve", KEY, world.record, event, -1)
    yield "operator settles", world._replace(flight=_sorted((*world.flight, message))), None
