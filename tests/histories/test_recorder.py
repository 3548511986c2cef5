"""The recorder: what it notes of answers, failures, cancellations and batches, in memory and in a file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retrysafe.backends.driver import arun, run
from retrysafe.backends.memory.store import AsyncMemoryClient, MemoryClient, MemoryStore
from retrysafe.backends.sql.sqlite import SqliteStore
from retrysafe.errors import StoreUnavailable
from retrysafe.protocol.procedures import Won, claim, read, renew, settle, sweep
from retrysafe.protocol.records import ClaimRequest, Clocks, Ownership, StoredResult
from retrysafe.protocol.transitions import Transition
from tests.laboratory.histories import UNKNOWN, History, HistoryFile, Operation, Recorder, merged
from tests.laboratory.linearizability import check
from tests.tables import each_row

CLOCKS = Clocks(lease=10, window=1000, memory=1000)


def want(key: bytes = b"key", attempt: str = "a") -> ClaimRequest:
    return ClaimRequest(key, "b", "", "o", b"\x00p", attempt, "keyed", CLOCKS)


def ticking() -> Callable[[], int]:
    now = [1_000_000]

    def clock() -> int:
        now[0] += 1
        return now[0]

    return clock


def play(history: History) -> list[Any]:
    """Every kind of step, on a memory store; returns the outcomes."""
    client, recorder = MemoryClient(ticking()), Recorder(history, "me")
    store, execute = recorder.store(MemoryStore()), recorder.executor(client)
    won = run(claim(store, want()), execute)
    assert isinstance(won, Won)
    return [
        won,
        run(renew(store, [won.ownership]), execute),
        run(settle(store, won.ownership, Transition.COMPLETE, StoredResult(b"\xff", "t", 1)), execute),
        run(read(store, b"key"), execute),
        run(claim(store, want(attempt="b")), execute),
        run(sweep(store, 5), execute),
        run(settle(store, won.ownership, Transition.FAIL, None), execute),
    ]


def test_every_step_is_noted_with_its_arguments_and_its_answer() -> None:
    history = History(ticking())
    outcomes = play(history)
    operations = history.operations()
    assert [one.kind for one in operations] == ["claim", "renew", "settle", "read", "claim", "sweep", "settle", "read"]
    assert [one.key for one in operations] == [b"" if one.kind == "sweep" else b"key" for one in operations]
    assert operations[1].answer == {one.key for one in outcomes[1]} == {b"key"}
    assert operations[3].answer == outcomes[3]
    assert all(one.ended is not None and one.made < one.begun < one.ended for one in operations)
    assert {one.actor for one in operations} == {"me"}
    assert check(operations) == []


def test_a_file_holds_the_same_and_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    written, plain = HistoryFile(tmp_path / "one"), History()
    play(written)
    play(plain)
    written.close()

    def essence(operations: list[Operation]) -> list[tuple[Any, ...]]:
        return [(one.actor, one.kind, one.key, one.arguments, one.answer) for one in operations]

    assert essence(merged([tmp_path / "one"])) == essence(plain.operations())
    whole = (tmp_path / "one").read_bytes()
    (tmp_path / "torn").write_bytes(whole[:-10])
    torn = merged([tmp_path / "torn"])
    assert torn[-1] == merged([tmp_path / "one"])[-1]._replace(ended=None, answer=UNKNOWN)


@each_row("unsent", [True, False])
def test_unsent_steps_did_not_happen_and_unanswered_ones_may_have(unsent: bool) -> None:
    history = History()
    recorder = Recorder(history)

    def down(request: Any, /) -> Any:
        raise StoreUnavailable("down", unsent=unsent)

    with pytest.raises(StoreUnavailable):
        run(claim(recorder.store(MemoryStore()), want()), recorder.executor(down))
    found = history.operations()
    assert [(one.ended, one.answer) for one in found] == [] if unsent else [(None, UNKNOWN)] * 2


async def test_a_cancelled_step_may_have_happened() -> None:
    history, client = History(), MemoryClient()
    recorder, hangs = Recorder(history), asyncio.Event()

    async def answers_late(request: Any, /) -> Any:
        answer = await AsyncMemoryClient(client)(request)
        hangs.set()
        await asyncio.Event().wait()
        return answer

    store = recorder.store(MemoryStore())
    asked = asyncio.ensure_future(arun(claim(store, want()), recorder.async_executor(answers_late)))
    await hangs.wait()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert await arun(read(store, b"key"), recorder.async_executor(AsyncMemoryClient(client)))
    lost, look = history.operations()
    assert (lost.kind, lost.answer, lost.ended) == ("claim", UNKNOWN, None)
    assert check([lost, look]) == []
    assert check([look]) != []


def test_renewals_of_several_keys_in_one_ask_are_noted_apart() -> None:
    history = History()
    store = Recorder(history).store(SqliteStore())
    ownerships = [Ownership(key, "a", 1, CLOCKS, False) for key in (b"one", b"two")]
    (ask,) = store.renew(ownerships)
    execute = Recorder(history).executor(lambda request: _rows([(b"two",)]))
    assert ask.parse(execute(ask.request)) == {b"two"}
    assert [(one.key, one.answer) for one in history.operations()] == [(b"one", set()), (b"two", {b"two"})]


def _rows(rows: list[tuple[Any, ...]]) -> Any:
    from retrysafe.protocol.requests import Rows

    return Rows(rows, len(rows))


def test_other_requests_pass_unrecorded() -> None:
    history = History()
    store, execute = Recorder(history).store(SqliteStore()), Recorder(history).executor(lambda request: request.sql)
    assert execute(store.begin().request) == "BEGIN IMMEDIATE"
    assert store.capabilities.name == "sqlite"
    assert history.operations() == []
