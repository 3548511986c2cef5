"""The keys of an agent's calls: wanted equal calls are two, a retry is one, and a doubt stops the model."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Boundary, ConfigurationError, current, wait
from retrysafe.admin.describe import describe
from retrysafe.agents.scope import ToolGuard
from retrysafe.agents.texts import NotApproved
from tests.tables import each_row

Made = Callable[..., tuple[ToolGuard, Callable[..., Any], list[str]]]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    """Makes a guard and a tool, which fails with the errors that it is given first, and writes down its calls."""
    with ExitStack() as opened:

        def make(*fails: Exception, effects: str = "keyed", **options: Any) -> Any:
            boundary = Boundary(
                f"agent-{len(fails)}-{effects}",
                store=f"sqlite:///{tmp_path / 'agent.db'}",
                effects=effects,  # type: ignore[arg-type]
                observers=[],
            )
            opened.callback(boundary.close)
            tools, done, errors = ToolGuard(boundary), list[str](), [*fails]

            @tools.once(operation="remind", **options)
            def remind(who: str, at: str = "noon") -> str:
                done.append(who)
                if errors:
                    raise errors.pop()
                return f"reminder {len(done)}"

            return tools, remind, done

        yield make


def test_wanted_equal_calls_are_two_and_a_run_that_starts_again_meets_them(made: Made) -> None:
    tools, remind, done = made()
    with tools.run("message 1"):
        assert [remind("A"), remind("A", at="noon"), remind("B")] == ["reminder 1", "reminder 2", "reminder 3"]
    with tools.run("message 1"):
        again = [remind(who="A"), remind("B"), remind("A"), remind("A")]
    assert again == ["reminder 1", "reminder 3", "reminder 2", "reminder 4"]
    with tools.run("message 2"):
        assert remind("A") == "reminder 5"
    assert done == ["A", "A", "B", "A", "A"]


@each_row("effects", ["keyed", "external"])
def test_a_call_that_failed_is_met_by_the_models_next_try(made: Made, effects: str) -> None:
    tools, remind, done = made(TimeoutError(), effects=effects)
    with tools.run("message"):
        with pytest.raises(TimeoutError):
            remind("A")
        second = remind("A")
        assert second == "reminder 2" if effects == "keyed" else "Do NOT call it again" in second
    assert len(done) == (2 if effects == "keyed" else 1)


def test_equal_calls_in_parallel_are_two(made: Made) -> None:
    tools, remind, done = made()
    for _ in range(2):
        with tools.run("message"), ThreadPoolExecutor(2) as pool:
            both = [pool.submit(contextvars.copy_context().run, remind, "A") for _ in "ab"]
            assert sorted(one.result() for one in both) == ["reminder 1", "reminder 2"]
    assert done == ["A", "A"]


def test_an_argument_that_names_the_intent_needs_no_run(made: Made) -> None:
    _, remind, done = made(key="who")
    assert [remind("A"), remind("A")] == ["reminder 1", "reminder 1"]
    assert "other arguments (at)" in remind("A", at="night")
    assert done == ["A"]


async def test_tools_that_are_coroutine_functions(tmp_path: Path) -> None:
    boundary = Boundary("agent", store=f"sqlite:///{tmp_path / 'agent.db'}", concurrency=wait("20s"), observers=[])
    tools, done = ToolGuard(boundary), list[str]()

    @tools.once
    async def book(flight: str) -> dict[str, str]:
        done.append(current().key_for("airline"))
        await asyncio.sleep(0)
        return {"flight": flight}

    for _ in "ab":
        with tools.run(7):
            assert await asyncio.gather(book("A"), book("A")) == [{"flight": "A"}] * 2
    assert len(set(done)) == len(done) == 2
    await boundary.aclose()


def test_a_tool_outside_a_run_is_refused(made: Made) -> None:
    _, remind, done = made()
    with pytest.raises(ConfigurationError, match=r"tools\.run\("):
        remind("A")
    assert done == []


@each_row("effects", ["keyed", "external"])
def test_an_approval_is_for_one_call(tmp_path: Path, effects: Any) -> None:
    boundary = Boundary(effects, store=f"sqlite:///{tmp_path / 'agent.db'}", effects=effects, observers=[])
    tools, booked, fails = ToolGuard(boundary), list[str](), [True]
    asked: list[str] = []

    @tools.once(operation="book")
    def book(flight: str) -> str:
        if not asked:
            asked.append(tools.digest())
            current().not_executed()
            raise PermissionError
        with tools.approval("approval 7", asked[0]):
            if fails and effects == "keyed":
                fails.pop()
                raise TimeoutError
            booked.append(flight)
        return f"ticket for {flight}"

    with tools.run("message"):
        with pytest.raises(PermissionError):
            book("A")
        assert "Ask the user again" in book("B"), "it was asked for other arguments"
        if effects == "keyed":
            with pytest.raises(TimeoutError):
                book("A")
        assert book("A") == "ticket for A", "a retry may use it again"
        assert "Ask the user again" in book("A"), "it is used up"
    with tools.run("message"):
        assert book("A") == "ticket for A"
    assert booked == ["A"]
    assert NotApproved.effect_happened == "no"
    boundary.close()


def test_a_description_says_what_a_key_is_made_of() -> None:
    boundary = Boundary("described", store="memory://")
    tools = ToolGuard(boundary)
    tools.once(operation="a")(lambda order: order)
    tools.once(operation="b", key="order")(lambda order: order)
    made_of = [(one["key"], one["payload"]) for one in describe(boundary)["operations"]]
    apart = "run (in LangGraph: thread and checkpoint), tool, arguments, and number among equal calls"
    assert made_of == [(apart, "arguments"), ("order", "arguments")]
    boundary.close()
