"""Operations on all that a filter selects: once, resumed after a crash, cancelled, by one process at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from retrysafe.admin.operator import Batch, Operator
from retrysafe.console import Console, Principal, bulk
from retrysafe.console.bulk import step
from retrysafe.console.operations import NAME, Operation, Operations, OperationState, Plan
from retrysafe.protocol.records import Count, Page
from tests.console.conftest import ADA, Deck
from tests.console.visiting import BASE, Visitor

PLAN: Plan = {
    "id": "a" * 32,
    "verb": "keys resolve",
    "fields": [["state", "unknown"]],
    "count": 250,
    "capped": False,
    "outcome": "released",
    "result": "",
    "by": "ada",
    "reason": "",
}


class Gate:
    """Carries out batches, and lets a test stand between two of them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.dies_at = 99
        self.batches = 0
        self.reached, self.open = threading.Event(), threading.Event()
        self.open.set()

    def __call__(self, plan: Plan, cursor: str | None) -> Batch:
        self.batches += 1
        if self.batches == self.dies_at:
            step(self._console, plan, cursor)
            raise SystemExit("the process dies when the batch was made, and is not written down")
        done = step(self._console, plan, cursor)
        self.reached.set()
        assert self.open.wait(30)
        return done


@pytest.fixture
def gated(deck: Deck) -> Iterator[tuple[Operations, Gate, Console]]:
    """Operations whose batches pass a gate."""
    console = deck.console()
    gate = Gate(console)
    made = Operations(console.store, console.encryption, gate)
    yield made, gate, console
    gate.open.set()
    made.close()


def wait(operations: Operations) -> None:
    for thread in operations._threads:
        thread.join(30)


def found(deck: Deck, operations: Operations) -> Operation:
    operation = operations.find(PLAN["id"])
    assert operation is not None
    return operation


def unknown(deck: Deck) -> int:
    return len(deck.place.operator().find(states=["unknown"], limit=1000))


def audited(deck: Deck) -> int:
    return sum(entry["audit"] == "outcome" and entry["done"] for entry in deck.audited)


def test_the_same_plan_twice_is_one_operation(deck: Deck, gated: tuple[Operations, Gate, Console]) -> None:
    operations, gate, _ = gated
    deck.unknown(*(f"k{number}" for number in range(250)))
    for _ in range(3):
        operations.start(dict(PLAN))
    wait(operations)
    operations.start(dict(PLAN))
    wait(operations)
    assert found(deck, operations)[1:] == (OperationState.DONE, 250, 0, "")
    assert (unknown(deck), audited(deck), gate.batches) == (0, 250, 4), "the last one is for attempts that died"
    assert [one.plan["id"] for one in operations.recent()] == [PLAN["id"]]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_operation_goes_on_where_its_process_died(deck: Deck, gated: tuple[Operations, Gate, Console]) -> None:
    operations, gate, console = gated
    deck.unknown(*(f"k{number}" for number in range(250)))
    gate.dies_at = 2
    operations.start(dict(PLAN))
    wait(operations)
    assert unknown(deck) == 50, "its batch was made"
    assert found(deck, operations)[1:] == (OperationState.INTERRUPTED, 100, 0, "")
    other = Operations(console.store, console.encryption, gate)
    other.resume(found(deck, operations).plan)
    wait(other)
    assert found(deck, other)[1:3] == (OperationState.DONE, 150)
    assert (unknown(deck), audited(deck)) == (0, 250), "each key is settled once, and audited"
    other.close()


def test_an_operation_that_was_started_or_resumed_is_under_way(
    deck: Deck, gated: tuple[Operations, Gate, Console]
) -> None:
    """The page that is loaded next says so, and loads itself again."""
    operations, gate, console = gated
    deck.unknown("K")
    gate.open.clear()
    operations.start(dict(PLAN))
    assert found(deck, operations).state is OperationState.RUNNING
    operations._stopping.set()
    gate.open.set()
    wait(operations)
    gate.open.clear()
    other = Operations(console.store, console.encryption, gate)
    other.resume(dict(PLAN))
    assert found(deck, other).state is OperationState.RUNNING
    gate.open.set()
    other.close()


def test_a_cancelled_operation_ends_before_its_next_batch(deck: Deck, gated: tuple[Operations, Gate, Console]) -> None:
    operations, gate, console = gated
    deck.unknown(*(f"k{number}" for number in range(250)))
    gate.open.clear()
    operations.start(dict(PLAN))
    assert gate.reached.wait(30)
    elsewhere = Operations(console.store, console.encryption, gate)
    assert found(deck, elsewhere).state is OperationState.RUNNING
    elsewhere.cancel(dict(PLAN), "grace")
    gate.open.set()
    wait(operations)
    assert found(deck, elsewhere)[1:3] == (OperationState.CANCELLED, 100)
    elsewhere.resume(dict(PLAN))
    wait(elsewhere)
    assert unknown(deck) == 150
    elsewhere.close()


def test_a_console_that_is_closed_leaves_an_operation_to_be_resumed(
    deck: Deck, gated: tuple[Operations, Gate, Console]
) -> None:
    operations, gate, console = gated
    deck.unknown(*(f"k{number}" for number in range(250)))
    gate.open.clear()
    operations.start(dict(PLAN))
    assert gate.reached.wait(30)
    operations._stopping.set()
    gate.open.set()
    wait(operations)
    assert found(deck, operations)[1:3] == (OperationState.INTERRUPTED, 100)
    other = Operations(console.store, console.encryption, gate)
    other.resume(dict(PLAN))
    wait(other)
    assert found(deck, other)[1:3] == (OperationState.DONE, 250)
    other.close()


def test_one_process_at_a_time_carries_it_out(deck: Deck, gated: tuple[Operations, Gate, Console]) -> None:
    operations, gate, console = gated
    deck.unknown(*(f"k{number}" for number in range(150)))
    gate.open.clear()
    operations.start(dict(PLAN))
    assert gate.reached.wait(30)
    other = Operations(console.store, console.encryption, gate)
    other.resume(dict(PLAN))
    wait(other)
    assert gate.batches == 1, "the other one found it running"
    gate.open.set()
    wait(operations)
    assert unknown(deck) == 0
    other.close()


def test_an_operation_that_cannot_be_carried_out_says_why(deck: Deck) -> None:
    console = deck.console()
    operations = Operations(
        console.store,
        console.encryption,
        lambda plan, cursor: step(console, {**plan, "fields": [["state", "?"]]}, cursor),
    )
    deck.unknown("K")
    operations.start(dict(PLAN))
    wait(operations)
    state = found(deck, operations)
    assert (state.state, "is not a state" in state.error) == (OperationState.FAILED, True)
    operations.close()


async def test_its_page_cancels_and_resumes_it_for_who_may(deck: Deck) -> None:
    console = deck.console()
    gate = Gate(console)
    console.operations = Operations(console.store, console.encryption, gate)
    deck.unknown(*(f"k{number}" for number in range(150)))
    gate.open.clear()
    console.operations.start(dict(PLAN))
    await asyncio.to_thread(gate.reached.wait, 30)
    path = f"/operations/{PLAN['id']}"
    ada = Visitor(console)
    page = await ada.get(path)
    assert "100 changed" not in page.text
    assert 'class="chip running"' in page.html
    reader = Visitor(console)
    console.access = lambda request: Principal("rita")
    seen = await reader.get(path)
    assert not [form for form in seen.forms if form.method == "post"]
    token = (await reader.get("/")).forms[0].fields["token"]
    assert (await reader.post(f"{path}/cancel", {"token": token}, Origin=BASE)).status == 403
    assert (await reader.post(f"{path}/resume", {"token": token}, Origin=BASE)).status == 403
    console.access = lambda request: ADA
    await ada.submit(page, "/cancel")
    gate.open.set()
    await asyncio.to_thread(wait, console.operations)
    assert 'class="chip cancelled"' in (await ada.get(path)).html


async def test_a_secret_of_the_boundaries_hides_no_operation(deck: Deck) -> None:
    secret = b"of the boundaries, not of the console's own"
    deck.unknown("K", secret=secret)
    console = deck.console(key_secret=secret)
    ada = Visitor(console)
    given = {"outcome": "failed", "confirmed": "yes"}
    started = await ada.submit(await ada.get("/keys/resolve"), "/operations", given)
    assert started.status == 200
    await asyncio.to_thread(wait, console.operations)
    assert "1 changed" in (await ada.get(started.path)).text
    assert "Settle unknown keys as failed" in (await ada.get("/operations")).text
    assert unknown(deck) == 0


async def test_keys_that_the_preview_did_not_come_across_are_settled(
    deck: Deck, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stores without an index of unknown keys look for them among the others, and not for ever."""
    deck.unknown("K")
    monkeypatch.setattr(bulk, "first_page", lambda *_: Page([], "further"))
    monkeypatch.setattr(Operator, "count", lambda *_: Count(0, capped=True))
    console = deck.console()
    ada = Visitor(console)
    preview = await ada.get("/keys/resolve")
    assert "0 keys" in preview.text
    started = await ada.submit(preview, "/operations", {"outcome": "failed", "confirmed": "yes"})
    await asyncio.to_thread(wait, console.operations)
    assert "1 changed" in (await ada.get(started.path)).text
    assert unknown(deck) == 0


def test_operations_are_keys_of_a_boundary_like_any_other(deck: Deck, gated: tuple[Operations, Gate, Console]) -> None:
    operations, _, _ = gated
    deck.unknown("K")
    operations.start(dict(PLAN))
    wait(operations)
    operator = deck.place.operator()
    kinds = {record.operation for record in operator.find(boundary=NAME)}
    assert kinds == {"plan", "run", "batch", "list"}
