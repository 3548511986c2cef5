"""Workers that ask a real store for anything they may, on a handful of keys, while their answers are recorded.

A worker is a generator of acts, so that threads, tasks and processes do the same.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple, cast

from retrysafe.backends.driver import arun, run
from retrysafe.errors import RetrysafeError
from retrysafe.protocol.client import AsyncExecutor, Executor
from retrysafe.protocol.procedures import Won, claim, expire, read, renew, resolve, settle, sweep
from retrysafe.protocol.records import ClaimRequest, Clocks, EffectiveState, Ownership, Record, StoredResult
from retrysafe.protocol.requests import Program, ask
from retrysafe.protocol.store import Store
from retrysafe.protocol.transitions import RESOLUTIONS, RULES, Guard, Transition
from retrysafe.testing.time_travel import age
from tests.laboratory.histories import History, Recorder

LEASE = 30_000_000
OWNER = tuple(event for event, rule in RULES.items() if rule.guard is Guard.OWNER and event is not Transition.RENEW)


class Elapse(NamedTuple):
    """An act: let the lease of a key lapse."""

    key: bytes


Acts = Generator[Program[Any] | Elapse, Any, None]


class Stage:
    """The state shared by workers: their keys, and holds and wants that others may come with again, late."""

    def __init__(self, keys: Sequence[bytes], store: Store) -> None:
        self.keys = keys
        self.store = store
        self.clocks = Clocks(LEASE, 3_600_000_000, 7_200_000_000, store.capabilities.margin)
        self.sweeps = store.capabilities.name not in ("redis", "dynamodb")
        self.held: list[Ownership] = []
        self.wants: list[ClaimRequest] = []
        self.faults: Counter[str] = Counter()

    def elapse(self, recorder: Recorder, key: bytes) -> Program[None]:
        """Let the lease of a key lapse, if anybody has it; noted as a step of the history.

        Only the first ask of ageing, which moves the record: what follows is for tests that are alone.
        """
        micros = self.clocks.lease + self.clocks.margin + 1_000_000
        self.faults["frozen beyond the lease"] += 1
        number = recorder.history.begin(recorder.actor, "elapse", key, (key, micros))
        yield from ask(next(iter(age(self.store, [key], micros))))
        recorder.history.end(number, None)


def worker(stage: Stage, name: str, store: Store, chance: Random, acts: int) -> Acts:
    """Do so many things, each on a key of its own choice."""
    for number in range(acts):
        key = chance.choice(stage.keys)
        attempt = f"{name}-{number}"
        what = chance.random()
        if what < 0.5:
            yield from _claim(stage, store, chance, key, attempt)
        elif what < 0.7:
            yield from _look(stage, store, chance, key, attempt)
        elif what < 0.85 and stage.held:
            held = chance.choice(stage.held[-12:])
            stage.faults["old completion"] += 1
            yield settle(store, held, chance.choice(OWNER), _result(attempt))
        elif what < 0.92 and stage.held:
            yield renew(store, chance.sample(stage.held[-6:], min(2, len(stage.held[-6:]))))
        elif what < 0.96:
            yield Elapse(key)
        elif stage.sweeps:
            yield sweep(store, 100)


def _claim(stage: Stage, store: Store, chance: Random, key: bytes, attempt: str) -> Acts:
    want = ClaimRequest(key, "histories", "", "o", b"p", attempt, ("keyed", "external")[key[0] % 2], stage.clocks)  # type: ignore[arg-type]
    if stage.wants and chance.random() < 0.1:
        want = chance.choice(stage.wants[-8:])
        stage.faults["duplicate"] += 1
    stage.wants.append(want)
    outcome = yield claim(store, want)
    if not isinstance(outcome, Won):
        return
    stage.held.append(outcome.ownership)
    if chance.random() < 0.3:
        yield renew(store, [outcome.ownership])
    if chance.random() < 0.3:
        yield Elapse(want.key)
    event = chance.choice(
        (Transition.COMPLETE, Transition.RELEASE, Transition.RELEASE, Transition.FAIL, Transition.DOUBT)
    )
    yield settle(store, outcome.ownership, event, None if event is Transition.RELEASE else _result(attempt))


def _look(stage: Stage, store: Store, chance: Random, key: bytes, attempt: str) -> Acts:
    """Read, as an operator does, and settle doubts or end windows."""
    record = cast("Record | None", (yield read(store, key)))
    if record is None or chance.random() < 0.3:
        return
    if record.effective_state is EffectiveState.UNKNOWN:
        event = chance.choice(tuple(RESOLUTIONS.values()))
        yield resolve(
            store, record, event, None if event is Transition.RESOLVE_RELEASED else _result(attempt), stage.clocks
        )
    elif record.effective_state in RULES[Transition.EXPIRE].sources:
        yield expire(store, record, forget=chance.random() < 0.4)


def _result(who: str) -> StoredResult:
    return StoredResult(who.encode(), "text/plain", 1)


# ---------------------------------------------------------------- threads and tasks


def work(stage: Stage, recorder: Recorder, execute: Executor, direct: Executor, chance: Random, acts: int) -> None:
    """One worker in this thread; ``direct`` leads to the store past every fault, and lets time pass."""
    doing = worker(stage, recorder.actor, recorder.store(stage.store), chance, acts)
    recorded = recorder.executor(execute)
    _drive(doing, lambda put: run(put, recorded), lambda put: run(stage.elapse(recorder, put.key), direct))


def _drive(doing: Acts, perform: Callable[[Any], Any], elapse: Callable[[Elapse], None]) -> None:
    answer: Any = None
    while True:
        try:
            put = doing.send(answer)
        except StopIteration:
            return
        answer = None
        try:
            answer = elapse(put) if isinstance(put, Elapse) else perform(put)
        except RetrysafeError:
            answer = None  # the history knows its outcome


async def awork(
    stage: Stage, recorder: Recorder, execute: AsyncExecutor, direct: AsyncExecutor, chance: Random, acts: int
) -> None:
    """One worker in this task; now and then what it asks is cancelled."""
    doing = worker(stage, recorder.actor, recorder.store(stage.store), chance, acts)
    recorded = recorder.async_executor(execute)
    answer: Any = None
    while True:
        try:
            put = doing.send(answer)
        except StopIteration:
            return
        answer = None
        if isinstance(put, Elapse):
            with suppress(RetrysafeError):
                await arun(stage.elapse(recorder, put.key), direct)
            continue
        task = asyncio.ensure_future(arun(put, recorded))
        if chance.random() < 0.1:
            for _ in range(chance.randrange(12)):
                await asyncio.sleep(0)
            if task.cancel():
                stage.faults["cancelled"] += 1
        (given,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(given, BaseException):
            if not isinstance(given, (RetrysafeError, asyncio.CancelledError)):
                raise given
        else:
            answer = given


def on_threads(
    stage: Stage, history: History, clients: Sequence[Executor], direct: Executor, chance: Random, acts: int
) -> None:
    """A worker on a thread for each client; what one raises, the test raises."""
    errors: list[BaseException] = []

    def one(number: int, execute: Executor, own: Random) -> None:
        try:
            work(stage, Recorder(history, f"w{number}"), execute, direct, own, acts)
        except BaseException as error:  # noqa: BLE001 - told by the thread of the test
            errors.append(error)

    threads = [
        threading.Thread(target=one, args=(number, execute, Random(chance.random())))
        for number, execute in enumerate(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


async def on_tasks(
    stage: Stage,
    history: History,
    client: AsyncExecutor,
    direct: AsyncExecutor,
    workers: int,
    chance: Random,
    acts: int,
) -> None:
    """So many workers as tasks of one loop, on one client."""
    async with asyncio.TaskGroup() as group:
        for number in range(workers):
            recorder = Recorder(history, f"w{number}")
            group.create_task(awork(stage, recorder, client, direct, Random(chance.random()), acts))
