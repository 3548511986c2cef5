"""The frameworks' names that test_frameworks.py uses. Their import takes seconds, which collecting tests shall not."""

# ruff: noqa: F401
from __future__ import annotations

import json
from typing import Any

from agents import Agent as OpenAIAgent
from agents import Model, ModelResponse, RunContextWrapper, Runner, Usage, function_tool, set_tracing_disabled
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, ToolRuntime
from langgraph.types import Command, RetryPolicy, interrupt
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from pydantic_ai import Agent, ApprovalRequired, DeferredToolRequests, DeferredToolResults, RunContext, ToolApproved
from pydantic_ai import messages as parts
from pydantic_ai.models.function import FunctionModel

from retrysafe.agents import langgraph, openai_agents, pydantic_ai


class Scripted(Model):
    """Calls the tool with each argument, one turn after the other, and says what it was told."""

    def __init__(self, *arguments: str) -> None:
        self.arguments = arguments

    async def get_response(self, system_instructions: Any, input: Any, *rest: Any, **options: Any) -> ModelResponse:
        told = [item["output"] for item in input if "output" in item]
        if len(told) < len(self.arguments):
            arguments = json.dumps({"flight": self.arguments[len(told)]})
            call = ResponseFunctionToolCall(
                type="function_call", name="book", call_id=f"{id(self)}-{len(told)}", arguments=arguments
            )
            return ModelResponse(output=[call], usage=Usage(), response_id=None)
        text = ResponseOutputText(type="output_text", text="|".join(told), annotations=[])
        message = ResponseOutputMessage(id="1", content=[text], type="message", role="assistant", status="completed")
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    def stream_response(self, *rest: Any, **options: Any) -> Any:
        raise NotImplementedError
