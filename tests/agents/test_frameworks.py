"""Guarded tools in the frameworks' own agents, whose models are scripted; the pages run the ordinary course."""

# ruff: noqa: F405
from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

import pytest

from retrysafe import Boundary, ConfigurationError
from tests.tables import each_row

if TYPE_CHECKING:
    from tests.agents.frameworks import *  # noqa: F403

Make = Callable[..., Boundary]


@pytest.fixture(autouse=True, scope="module")
def _frameworks() -> None:
    """Import them when the first test runs. They look for annotations of tools in this module."""
    found = import_module("tests.agents.frameworks")
    globals().update({name: value for name, value in vars(found).items() if not name.startswith("_")})


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes boundaries on a file."""
    with ExitStack() as opened:

        def made(name: str = "agent", **options: Any) -> Boundary:
            boundary = Boundary(name, store=f"sqlite:///{tmp_path / 'agent.db'}", observers=[], **options)
            opened.callback(boundary.close)
            return boundary

        yield made


# ---------------------------------------------------------------- LangGraph


def _graph(book: Any, wanted: list[int], saver: Any, **options: Any) -> Any:
    """A graph whose model books so often in each turn, for one argument, in parallel."""

    def model(state: MessagesState) -> dict[str, Any]:
        calls = [{"name": "book", "args": {"flight": "A"}, "id": f"{number}"} for number in range(wanted.pop(0))]
        return {"messages": [AIMessage("", tool_calls=calls)]}

    graph = StateGraph(MessagesState).add_node("model", model).add_node("act", ToolNode([book]), **options)
    return graph.add_edge(START, "model").add_edge("model", "act").compile(checkpointer=saver)


def _answers(state: Any) -> list[str]:
    """The answers of the last turn's tools, which have run in parallel."""
    found: list[str] = []
    for message in reversed(state["messages"]):
        if not isinstance(message, AIMessage | HumanMessage):
            found.insert(0, message.content)
        elif found:
            break
    return sorted(found)


def test_a_graph_that_is_interrupted_resumed_and_retried(make: Make, tmp_path: Path) -> None:
    """Each attempt of the node starts from the beginning of its calls; another turn of the thread is new."""
    tools = langgraph.ToolGuard(make(effects="external"))
    booked: list[str] = []

    @tool
    @tools.once
    def book(
        flight: str, config: RunnableConfig, call: Annotated[str, InjectedToolCallId], runtime: ToolRuntime
    ) -> str:
        """Books a seat."""
        if len(booked) == 1:
            granted = interrupt({"digest": tools.digest()})
            with tools.approval(granted["approval"], granted["digest"]):
                booked.append(call)
        else:
            booked.append(call)
        return f"seat {len(booked)}"

    assert [*book.args] == ["flight"]
    file, thread = str(tmp_path / "graph.db"), {"configurable": {"thread_id": "ann"}}
    with SqliteSaver.from_conn_string(file) as saver:
        asked = _graph(book, [2], saver).invoke({"messages": "two seats"}, {**thread, "max_concurrency": 1})
        (question,) = asked["__interrupt__"]
    with SqliteSaver.from_conn_string(file) as saver:  # a process that knows nothing of the attempt before
        tools._attempts.clear()
        graph = _graph(book, [1], saver)
        granted = {"approval": "7", "digest": question.value["digest"]}
        assert _answers(graph.invoke(Command(resume=granted), thread)) == ["seat 1", "seat 2"]
        assert _answers(graph.invoke({"messages": "another"}, thread)) == ["seat 3"]
    assert len(booked) == 3


def test_a_node_that_langgraph_retries_meets_its_calls(make: Make, tmp_path: Path) -> None:
    tools, booked, broken = langgraph.ToolGuard(make()), list[str](), [True]

    @tool
    @tools.once
    def book(flight: str) -> str:
        """Books a seat."""
        booked.append(flight)
        return f"seat {len(booked)}"

    @tool
    def fail(flight: str) -> str:
        """Fails once."""
        if broken:
            broken.pop()
            raise ConnectionError
        return "fine"

    def act(state: MessagesState, config: RunnableConfig) -> Any:
        first = ToolNode([book]).invoke(state, config)
        fail.invoke({"flight": "A"})
        return first

    with SqliteSaver.from_conn_string(":memory:") as saver:
        retry = RetryPolicy(initial_interval=0.001, max_attempts=2)
        graph = StateGraph(MessagesState).add_node("act", act, retry_policy=retry).add_edge(START, "act")
        calls = [{"name": "book", "args": {"flight": "A"}, "id": str(number)} for number in range(2)]
        state = graph.compile(checkpointer=saver).invoke(
            {"messages": [AIMessage("", tool_calls=calls)]}, {"configurable": {"thread_id": "ann"}}
        )
    assert (_answers(state), booked, broken) == (["seat 1", "seat 2"], ["A", "A"], [])


def test_a_graph_without_a_thread_needs_a_run(make: Make) -> None:
    tools = langgraph.ToolGuard(make())

    @tool
    @tools.once
    def book(flight: str) -> str:
        """Books a seat."""
        return flight

    with pytest.raises(ConfigurationError, match=r"tools\.run\("):
        _graph(book, [1], None).invoke({"messages": "a seat"})
    with tools.run("message"):
        assert _answers(_graph(book, [1], None).invoke({"messages": "a seat"})) == ["A"]


# ---------------------------------------------------------------- OpenAI Agents


async def test_an_openai_agent_is_told_of_a_doubt(make: Make) -> None:
    set_tracing_disabled(True)
    tools, booked = openai_agents.ToolGuard(make(effects="external")), list[tuple[str, int]]()

    @function_tool
    @tools.once
    def book(context: RunContextWrapper[int], flight: str) -> str:
        booked.append((flight, context.context))
        if flight == "B":
            raise TimeoutError
        return f"seat {len(booked)}"

    agent = OpenAIAgent[int](name="agent", model=Scripted("A", "B", "B", "A"), tools=[book])
    for number in (1, 2):  # the context of a run is no part of a key
        with tools.run("message"):
            told = str((await Runner.run(agent, "seats", context=number)).final_output).split("|")
        assert (told[0], told[3]) == ("seat 1", "seat 3")
        assert "Do NOT call it again" in told[2]
        assert ("Please try again" in told[1]) == (number == 1), "the SDK asks for what is refused then"
    assert booked == [("A", 1), ("B", 1), ("A", 1)]


# ---------------------------------------------------------------- Pydantic AI


async def test_a_pydantic_agent_asks_and_is_approved_once(make: Make) -> None:
    tools, booked = pydantic_ai.ToolGuard(make(effects="external")), list[str]()

    def model(messages: list[Any], info: Any) -> parts.ModelResponse:
        told = [part.content for message in messages for part in message.parts if part.part_kind == "tool-return"]
        if told:
            return parts.ModelResponse(parts=[parts.TextPart("|".join(told))])
        return parts.ModelResponse(parts=[parts.ToolCallPart("book", {"flight": "A"})])

    agent = Agent(FunctionModel(model), output_type=[str, DeferredToolRequests], deps_type=int)

    @agent.tool
    @tools.once
    async def book(context: RunContext[int], flight: str) -> str:
        granted = context.tool_call_metadata
        if granted is None:
            raise ApprovalRequired(metadata={"digest": tools.digest()})
        async with tools.approval(granted["approval"], granted["digest"]):
            booked.append(flight)
        return f"seat {len(booked)}"

    async def ask(message: str) -> Any:
        with tools.run(message):
            return await agent.run("a seat", deps=1)

    async def approve(message: str, asked: Any, approval: str) -> Any:
        (call,) = asked.output.approvals
        granted = {"approval": approval, **asked.output.metadata[call.tool_call_id]}
        results = DeferredToolResults(
            approvals={call.tool_call_id: ToolApproved()}, metadata={call.tool_call_id: granted}
        )
        with tools.run(message):
            answer = await agent.run(message_history=asked.all_messages(), deferred_tool_results=results, deps=2)
            return answer.output

    asked = await ask("message 1")
    assert [await approve("message 1", asked, "7") for _ in "ab"] == ["seat 1", "seat 1"]
    assert "Ask the user again" in await approve("message 2", await ask("message 2"), "7")
    assert await approve("message 2", await ask("message 2"), "8") == "seat 2"
    assert booked == ["A", "A"]


@each_row("effects, is_late", [("keyed", True), ("external", True), ("external", False)])
async def test_a_sync_tool_that_times_out_is_met_by_the_models_next_call(
    make: Make, effects: str, is_late: bool
) -> None:
    """Its thread goes on: the next call meets it while it runs (late), and after it has ended."""
    tools, booked = pydantic_ai.ToolGuard(make(f"{effects} {is_late}", effects=effects)), list[str]()
    may_end, ended, told = Event(), Event(), list[str]()

    async def model(messages: list[Any], info: Any) -> parts.ModelResponse:
        told[:] = [part.content for one in messages for part in one.parts if part.part_kind == "tool-return"]
        if any(text.startswith("seat") for text in told):
            return parts.ModelResponse(parts=[parts.TextPart("done")])
        if told and (not is_late or "running already" in told[-1]):
            may_end.set()
            await asyncio.to_thread(ended.wait, 20)
        return parts.ModelResponse(parts=[parts.ToolCallPart("book", {"flight": "A"})])

    def note_end(function: Callable[..., str]) -> Callable[..., str]:
        @functools.wraps(function)
        def noting(flight: str) -> str:
            answer = function(flight)
            if answer.startswith("seat"):
                ended.set()
            return answer

        return noting

    agent = Agent(FunctionModel(model))

    @agent.tool_plain(timeout=0.5, retries=9)
    @note_end
    @tools.once
    def book(flight: str) -> str:
        booked.append(flight)
        may_end.wait(20)
        return f"seat {len(booked)}"

    with tools.run("message"):
        await agent.run("a seat")
    assert booked == ["A"]
    assert told[0].startswith("Timed out")
    assert told[-1] == "seat 1"
    assert not is_late or "running already" in told[-2]
