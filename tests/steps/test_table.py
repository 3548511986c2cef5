"""The rows of steps: what each request does in each state, on every store, and who may."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrysafe import LeaseLost, RetryTransaction, wait
from retrysafe.backends.driver import run
from retrysafe.backends.steps import steps_of
from retrysafe.protocol.records import StoredResult
from retrysafe.protocol.requests import Ask, ask
from retrysafe.protocol.steps import MEETS, Act, Aim, At, StepRow, StepState, Work, change, insert, read, sweep, table
from tests.steps.conftest import Make
from tests.steps.kills import key, stalled

REFERENCE = Path(__file__).parents[2] / "docs" / "how-to" / "steps.md"


def test_the_table_has_a_rule_for_every_aim_and_row_and_is_the_page() -> None:
    assert len(MEETS) == len(Aim) * (len(StepState) + 1)
    assert {act for (state, _), act in MEETS.items() if state is StepState.STARTED} == {Act.FIND_OUT, Act.DOUBT}
    assert table() in REFERENCE.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.every_value
def test_each_write_keeps_its_condition(make: Make) -> None:
    boundary = make(effects="keyed", lease="250ms", memory="24h", concurrency=wait("9s"))
    backend, settings = boundary.entrypoint.backend, boundary._settings
    store = steps_of(backend)
    if backend.kind in ("sqlite", "postgresql", "mysql"):
        backend.tables.provide("steps")

    def put(request: Ask) -> object:  # type: ignore[type-arg]
        return run(ask(request), backend.client())

    def rows_of(work: Work) -> list[StepRow]:
        return run(read(store, work), backend.client())

    def work_of(claim: object) -> Work:
        held = claim._held  # type: ignore[attr-defined]
        return Work(held.ownership.key, held.record.created, settings.clocks.memory, held.ownership)

    result = StoredResult(b"1", "text/plain", 1)
    with stalled(boundary, name := key()) as first, boundary.claim(name) as second:
        zombie, owner = work_of(first), work_of(second)
        assert zombie.generation == owner.generation, "a takeover is the same work"
        done = StepRow(At("a", "1"), StepState.DONE, 3, True, b"print", result)

        assert not put(store.insert(zombie, done, joined=False)), "the key was taken over"
        with pytest.raises(LeaseLost):
            run(insert(store, zombie, done), backend.client())
        assert run(insert(store, owner, done), backend.client()) is None
        assert run(insert(store, owner, done), backend.client()) is None, "its own row: the reply was lost"
        assert run(insert(store, owner, done._replace(place=9)), backend.client()) == done._replace(token=owner.token)
        with pytest.raises(RetryTransaction):
            run(insert(store, owner, done, joined=True), backend.client())
        assert rows_of(owner) == [done._replace(token=owner.token)]
        assert rows_of(owner._replace(generation=1)) == [], "other work"

        started = StepRow(At("b"), StepState.STARTED)
        assert put(store.insert(owner, started, joined=False))
        assert not put(store.drop(zombie, started.at)), "it was started by another attempt"
        assert not put(store.change(zombie, started._replace(state=StepState.DONE), StepState.STARTED)), "a later one"
        assert put(store.drop(owner, started.at))
        assert put(store.find(owner, started.at)) == (None, True)
        assert put(store.find(zombie, started.at)) == (None, False)
        assert put(store.insert(owner, started, joined=False))
        ended = started._replace(state=StepState.DONE, result=result)
        assert run(change(store, owner, ended, StepState.STARTED), backend.client()) == ended._replace(
            token=owner.token
        )
        assert run(change(store, owner, ended, StepState.STARTED), backend.client()), "again: the reply was lost"
        undone = ended._replace(state=StepState.UNDONE)
        late = owner._replace(ownership=owner.ownership and owner.ownership._replace(attempt="another"))
        assert not put(store.change(late, undone, StepState.DONE)), "what is undone must be the claim's"
        assert put(store.change(owner, undone, StepState.DONE))
        assert {row.at: row.state for row in rows_of(owner)}[started.at] is StepState.UNDONE

        free = owner._replace(ownership=None)
        assert put(store.signal(free, StepRow(At("signal x"), StepState.DONE, -1)))
        assert not put(store.signal(free, StepRow(At("signal x"), StepState.DONE, -1)))
        assert run(sweep(store, 10), backend.client()) == 0, "the work is under way"
    assert not put(store.signal(free, StepRow(At("signal y"), StepState.DONE, -1))), "the work has ended"
    for request in store.conclude(owner):
        put(request)


@pytest.mark.slow
@pytest.mark.every_value
def test_rows_leave_with_their_record_and_new_work_has_none_of_them(make: Make) -> None:
    boundary = make(effects="keyed", window="2s", memory="2s", lease="1s")
    did: list[int] = []

    def work(name: str) -> tuple[int, object, str]:
        with boundary.claim(name) as claim:
            if not claim.replayed:
                made = claim.step("count", lambda: did.append(1) or len(did))
                claim.result = [made, claim.now().isoformat(), claim.key_for("x")]
            return tuple(claim.result)

    first = work(name := key())
    assert work(name) == first, "within the window it is a replay"
    import time

    time.sleep(2.1)
    second = work(name)
    assert (first[0], second[0]) == (1, 2), "after it, new work: its steps are done again"
    assert first[1] < second[1], "and it has begun anew"  # type: ignore[operator]
    time.sleep(2.1)
    backend = boundary.entrypoint.backend
    if boundary.entrypoint.address == "memory://":
        return
    from retrysafe.admin.sweeper import Sweeper

    Sweeper(
        boundary.entrypoint.address if backend.access.alias is None else backend.access.alias, observers=[]
    ).run_once()
    left = run(sweep(steps_of(backend), 10), backend.client())
    assert left == 0, "the sweeper has removed them"


@pytest.mark.slow
def test_a_claim_without_steps_imports_nothing_of_them(on_sqlite: Make) -> None:
    import subprocess
    import sys

    program = (
        "import sys\nfrom retrysafe import Boundary\nboundary = Boundary('b', store=sys.argv[1], observers=[])\n"
        "with boundary.claim('k') as claim:\n    claim.result = 1\n"
        "print([name for name in sys.modules if name.endswith('steps')])"
    )
    url = on_sqlite().entrypoint.address
    found = subprocess.run([sys.executable, "-c", program, url], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
