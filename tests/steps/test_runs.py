"""Runs in steps: killed at every pair of boundaries, in async code, with other code and other input, and in doubt."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from retrysafe import (
    Boundary,
    Claim,
    ConfigurationError,
    Keyring,
    LeaseLost,
    OutcomeUnknown,
    Postponed,
    ResultNotEncodable,
    ResultUnreadable,
    StoredFailure,
    current,
)
from retrysafe.cancellation import run_to_completion
from retrysafe.claims import step_programs
from tests.proving.effort import effort
from tests.steps.conftest import Make
from tests.steps.kills import Killed, Killer, World, elsewhere, key, pairs, settle, stall


def test_a_checkout_killed_at_every_pair_of_boundaries_does_each_step_once(make: Make) -> None:
    boundary = make(effects="keyed", lease="30s")
    on_server = boundary.entrypoint.backend.kind in ("postgresql", "mysql", "dynamodb")
    for plan in list(pairs(9))[:: effort(4, 1) if on_server else 1]:
        world, order = World(), key()

        def checkout(kill: Killer, world: World = world, order: str = order) -> Any:
            with boundary.claim(order) as claim:
                if claim.replayed:
                    return claim.result
                made = []
                for name in ("charge", "stock"):
                    kill()
                    made.append(claim.step(name, lambda name=name: (world.call(name), kill())[0]))
                for line in ("red", "blue"):
                    kill()
                    made.append(claim.step("label", world.call, line, each=line))
                    kill()
                with claim.step("mail", effects="external", probe=lambda step: probe(world, step)) as step:
                    if not step.replayed:
                        step.result = world.call("mail")
                        kill()
                claim.result = [*made, step.result]
                return claim.result

        def probe(world: World, step: Any) -> None:
            if "mail" in world.names():
                step.result = "mail"
                step.committed()
            else:
                step.not_executed()

        assert settle(checkout, plan) == ["charge", "stock", "red", "blue", "mail"], plan
        for name in ("charge", "stock", "red", "blue", "mail"):
            assert len(world.keys_of(name)) == 1, f"{plan}: repeated calls of {name} carry one key"
        assert world.names().count("mail") == 1, f"{plan}: an external step is done at most once"


async def test_steps_of_async_code_run_beside_each_other_and_are_replayed(on_sqlite: Make) -> None:
    boundary = on_sqlite(effects="keyed")
    calls: list[str] = []

    async def call(name: str) -> str:
        assert current().key_for("x")
        calls.append(name)
        await asyncio.sleep(0)
        return name.upper()

    async def attempt(order: str, *, fails: bool) -> Any:
        async with boundary.claim(order) as claim:
            both = await asyncio.gather(claim.step("a", call, "a"), claim.step("b", call, "b"))
            async with claim.step("c", effects="external") as step:
                if not step.replayed:
                    step.result = await call("c")
            if fails:
                raise KeyError
            claim.result = [*both, step.result]
            return claim.result

    order = key()
    with pytest.raises(KeyError):
        await attempt(order, fails=True)
    assert await attempt(order, fails=False) == ["A", "B", "C"]
    assert sorted(calls) == ["a", "b", "c"]
    with pytest.raises(ConfigurationError, match="nothing of it was run: step 'b'"):
        async with boundary.claim(key()) as claim:
            await claim.step("a", call, "a")
            claim.step("b", call, "b").close()  # without await
    await boundary.aclose()


async def test_an_external_step_that_is_cancelled_before_its_work_is_in_no_doubt(
    on_sqlite: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    boundary, sent, order = on_sqlite(effects="external"), list[str](), key()

    async def send() -> None:
        sent.append("mail")

    async def attempt() -> None:
        async with boundary.claim(order) as claim:
            claim.not_executed()
            await claim.step("mail", send)

    async def cancel(work: Any) -> Any:
        monkeypatch.undo()
        doomed.cancel()
        return await run_to_completion(work)

    monkeypatch.setattr(step_programs, "run_to_completion", cancel)
    doomed = asyncio.create_task(attempt())
    with pytest.raises(asyncio.CancelledError):
        await doomed
    assert sent == []
    await attempt()
    assert sent == ["mail"]
    await boundary.aclose()


def _attempts(boundary: Boundary, *attempts: Callable[[Claim], Any]) -> list[Any]:
    """The outcome of each attempt at one key: its error, or its result."""
    order, found = key(), []
    for number, attempt in enumerate(attempts, 1):
        try:
            with boundary.claim(order) as claim:
                found.append(attempt(claim))
                if number < len(attempts):
                    raise Killed
        except Killed:
            pass
        except Exception as error:  # noqa: BLE001 - it is looked at
            found.append(error)
    return found


def test_code_that_changed_is_told_before_it_runs(on_sqlite: Make) -> None:
    boundary, ran = on_sqlite(effects="keyed"), list[str]()

    def step(claim: Claim, name: str, **options: Any) -> str:
        return claim.step(name, lambda: ran.append(name) or name, **options)

    def both(one: str, other: str, **options: Any) -> Callable[[Claim], Any]:
        return lambda claim: [step(claim, one, **options), step(claim, other)]

    one_step = lambda claim: step(claim, "pay")  # noqa: E731 - a table of them is below
    cases: list[tuple[Callable[[Claim], Any], Any, list[str]]] = [
        (both("pay", "ship"), ["pay", "ship"], ["pay", "ship"]),
        (both("charge", "ship", was="pay"), ["pay", "ship"], ["pay", "ship"]),
        (both("check", "pay", new=True), ["check", "pay"], ["pay", "check"]),
        (both("charge", "ship"), "'charge'.*'pay'", ["pay"]),
        (both("check", "pay"), "'check'.*'pay'", ["pay"]),
        (both("pay", "ship", each=1), r"'pay' \(1\) was asked for as 'pay',.*leave out each=", ["pay"]),
        (both("pay", "ship", each=1, new=True), ["pay", "ship"], ["pay", "pay", "ship"]),
    ]
    each: list[tuple[Callable[[Claim], Any], Any, list[str]]] = [
        (both("pay", "ship"), r"'pay' was asked for as 'pay' \(1\),.*give each=", ["pay"]),
        (both("pay", "ship", each=1), ["pay", "ship"], ["pay", "ship"]),
    ]

    def asleep(claim: Claim) -> None:
        with suppress(Postponed):
            claim.sleep("nap", "1h")

    slept: list[tuple[Callable[[Claim], Any], Any, list[str]]] = [
        (both("check", "pay", new=True), ["check", "pay"], ["check", "pay"]),
        (both("check", "pay"), r"'check'.*the sleep 'nap'.*run\. For .*new=True", []),
        (both("check", "pay", was="nap"), "'nap' was a sleep.*new=True", []),
        (both("nap", "pay"), "'nap' was a sleep.*new=True", []),
    ]
    for first, changed, expected, done in (
        *((one_step, *one) for one in cases),
        *((asleep, *one) for one in slept),
        *((lambda claim: step(claim, "pay", each=1), *one) for one in each),
    ):
        ran.clear()
        _, found = _attempts(boundary, first, changed)
        if isinstance(found, Exception):
            assert isinstance(found, ConfigurationError)
            with pytest.raises(ConfigurationError, match=expected):
                raise found
        else:
            assert found == expected
        assert ran == done
    grown = [lambda claim, n=n: [claim.step("bill", str, c, each=c) for c in range(n)] for n in (1, 3)]
    assert _attempts(boundary, *grown) == [["0"], ["0", "1", "2"]], "more of the data is no other code"


def test_a_row_serves_its_own_input_and_place_alone(on_sqlite: Make, tmp_path: Path) -> None:
    def charge(amount: int, currency: str) -> int:
        return amount

    boundary = on_sqlite(effects="keyed")
    same = lambda claim: claim.step("charge", charge, 5, "EUR")  # noqa: E731
    other = lambda claim: claim.step("charge", charge, 6, "EUR")  # noqa: E731
    assert _attempts(boundary, same, same) == [5, 5]
    found = _attempts(boundary, same, other)[1]
    assert isinstance(found, ConfigurationError)
    assert "which differ in: amount. Nothing of it was run" in found.detail

    sealing = on_sqlite(name="sealing", effects="keyed", encryption=Keyring({"k": bytes(32)}))

    def swap(claim: Claim) -> None:
        with closing(sqlite3.connect(tmp_path / "store.db")) as db, db:
            for name, new in (("a", "c"), ("b", "a"), ("c", "b")):
                db.execute("UPDATE retrysafe_steps SET name = ? WHERE name = ?", (new, name))

    def steps(claim: Claim) -> list[str]:
        return [claim.step(name, lambda name=name: name) for name in ("a", "b")]

    assert _attempts(sealing, steps, steps)[-1] == ["a", "b"]
    found = _attempts(sealing, steps, lambda claim: (swap(claim), steps(claim)))[-1]
    assert isinstance(found, ResultUnreadable)


def test_an_external_step_in_doubt_is_unknown_unless_its_probe_tells(on_sqlite: Make) -> None:
    boundary, sent = on_sqlite(effects="keyed"), list[int]()

    def die(claim: Claim) -> None:
        def send() -> None:
            sent.append(1)
            raise Killed

        claim.step("mail", send, effects="external")

    def probe(says: str) -> Callable[[Any], None]:
        def ask(step: Any) -> None:
            step.result = "probed"
            if says == "fail":
                step.fail(ValueError("bounced"))
            elif says != "nothing":
                getattr(step, says)()

        return ask

    def again(says: str | None) -> Callable[[Claim], Any]:
        options: Any = {} if says is None else {"probe": probe(says)}
        return lambda claim: claim.step("mail", lambda: sent.append(2) or "sent", effects="external", **options)

    for says, expected in {
        None: OutcomeUnknown,
        "nothing": OutcomeUnknown,
        "committed": "probed",
        "not_executed": "sent",
        "fail": ValueError,
    }.items():
        sent.clear()
        found = _attempts(boundary, die, again(says))[-1]
        assert found == expected or type(found) is expected
        assert sent == ([1, 2] if says == "not_executed" else [1])

    def free(claim: Claim) -> None:
        with pytest.raises(KeyError), claim.step("mail", effects="external") as step:
            step.not_executed()
            raise KeyError

    assert _attempts(boundary, free, again(None))[-1] == "sent", "what did not happen may be done again"

    @boundary.once(key="order")
    def place(order: str) -> None:
        with current().step("charge") as step:  # type: ignore[attr-defined]
            step.fail(ValueError("no funds"))

    with pytest.raises(ValueError, match="no funds"):
        place(order := key())
    with pytest.raises(StoredFailure, match="no funds"):
        place(order)


def test_a_step_that_cannot_be_one_is_refused_when_it_is_asked_for(on_sqlite: Make) -> None:
    keyed = on_sqlite(effects="keyed")
    own = on_sqlite(name="own", effects="transactional")

    def inside(claim: Claim) -> None:
        with claim.step("outer"):
            claim.step("inner", str)

    def twice(claim: Claim) -> None:
        claim.step("a", str, 1)
        claim.step("a", str, 1)

    async def later() -> None: ...

    refused: list[tuple[Boundary, Callable[[Claim], Any], str]] = [
        (own, lambda claim: claim.step("a", str), "one step already"),
        (keyed, inside, "inside step 'outer'"),
        (keyed, twice, "asked for twice"),
        (keyed, lambda claim: claim.step("", str), r"step\(''\): give it a name, as in step\("),
        (keyed, lambda claim: claim.wait_for(""), r"wait_for\(''\): give it a name, as in wait_for\("),
        (keyed, lambda claim: claim.sleep("", "1s"), r"sleep\(''\): give it a name, as in sleep\("),
        (keyed, lambda claim: claim.step("a", str, effects="transactional"), "'keyed' or 'external'"),
        (keyed, lambda claim: claim.step("a", str, object()), "plain values"),
        (keyed, lambda claim: claim.step("a", lambda: later()), "returned an awaitable"),
        (keyed, lambda claim: claim.step("a", later).close(), "nothing of it was run: step 'a'"),  # in sync code
        (keyed, lambda claim: claim.step("a", str, tx="postgresql://x"), "tx= is a URL"),
        (keyed, lambda claim: claim.step("a", str, tries=3), "step\\(\\) takes"),
        (keyed, lambda claim: claim.sleep("long", "48h"), "window="),
        (keyed, lambda claim: claim.ordered([1, -1], key=abs), "same key"),
    ]
    for boundary, attempt, told in refused:
        with pytest.raises(ConfigurationError, match=told), boundary.claim(key()) as claim:
            attempt(claim)
    with pytest.raises(ResultNotEncodable, match=r"(?s)Step 'a': .*a retry does it again"), keyed.claim(key()) as claim:
        claim.step("a", object)
    with keyed.claim(order := key()) as claim:
        claim.result = 1
    with pytest.raises(ConfigurationError, match="in a replay"), keyed.claim(order) as claim:
        claim.step("a", str)
    with pytest.raises(ConfigurationError, match="after the `with` block ended"):
        claim.step("a", str)


@pytest.mark.slow
def test_a_stale_attempt_gets_the_first_result_and_can_record_none(on_sqlite: Make) -> None:
    """It begins no further one, either."""
    boundary = on_sqlite(effects="keyed", lease="250ms")
    order = key()

    def take_over() -> None:
        with boundary.claim(order) as claim:
            claim.step("a", lambda: "owner")
            claim.result = 1

    def late() -> str:
        stall(stale)
        elsewhere(take_over)
        return "stale"

    with pytest.raises(LeaseLost), boundary.claim(order) as stale:
        assert stale.step("a", late) == "owner"
        stale.step("b", lambda: pytest.fail("begun"))


def test_chance_is_the_same_on_every_attempt(on_sqlite: Make) -> None:
    def draw(claim: Claim) -> list[Any]:
        return [
            claim.now(),
            claim.uuid("a"),
            claim.uuid("b"),
            claim.random("dice").random(),
            claim.ordered({"b", "a"}, key=str),
        ]

    first, second = _attempts(on_sqlite(effects="keyed"), draw, draw)
    assert first == second
    assert first[1] != first[2]
    assert first[4] == ["a", "b"]
