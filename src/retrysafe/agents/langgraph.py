"""Tools of LangGraph, whose scope is found by itself. Needs the extra ``langgraph``."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, get_args, get_origin

from retrysafe.agents import scope
from retrysafe.agents.scope import Attempt
from retrysafe.boundary import Boundary
from retrysafe.extras import NeedsExtra
from retrysafe.runtime import new_lock

with NeedsExtra("langgraph", "langgraph", "langchain_core"):
    from langchain_core.runnables import RunnableConfig
    from langchain_core.tools import InjectedToolArg
    from langgraph.errors import GraphBubbleUp
    from langgraph.prebuilt import ToolRuntime
    from langgraph.runtime import get_runtime

__all__ = ["ToolGuard"]
_MOST = 4096
"""The number of attempts of nodes that are remembered: far more than run at a time."""


class ToolGuard(scope.ToolGuard):
    """`retrysafe.agents.scope.ToolGuard` for tools that nodes of a graph call.

    The scope is thread and ``checkpoint_ns``: the same when a node runs again, after a crash, an error or an interrupt,
    and another in the next turn. Without a checkpointer there is none: use `run`.
    """

    questions = (GraphBubbleUp,)

    def __init__(self, boundary: Boundary) -> None:
        super().__init__(boundary)
        self._attempts: OrderedDict[int, tuple[object, Attempt]] = OrderedDict()
        self._lock = new_lock()

    def _attempt(self) -> Attempt:
        try:
            node = get_runtime().execution_info
        except (RuntimeError, KeyError):  # outside a graph
            node = None
        if node is None or node.thread_id is None:
            return super()._attempt()
        with self._lock:
            made = Attempt("langgraph", node.thread_id, node.checkpoint_ns)
            _, attempt = self._attempts.setdefault(id(node), (node, made))
            while len(self._attempts) > _MOST:
                self._attempts.popitem(last=False)
        return attempt

    def _hides(self, hint: Any) -> bool:
        for kind in (hint, get_origin(hint), *get_args(hint)):
            given = kind if isinstance(kind, type) else type(kind)
            if kind is RunnableConfig or issubclass(given, InjectedToolArg | ToolRuntime):
                return True
        return False
