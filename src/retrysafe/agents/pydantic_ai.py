"""Tools of Pydantic AI. Needs the extra ``pydantic-ai``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_origin

from retrysafe.agents import scope
from retrysafe.extras import NeedsExtra

with NeedsExtra("pydantic-ai", "pydantic_ai"):
    from pydantic_ai import ApprovalRequired, CallDeferred, RunContext

try:  # anyio.from_thread tells of a call only in the thread that runs it
    from anyio._core._eventloop import threadlocals
except ImportError:  # another AnyIO: nothing tells of a thread that was given up, as in the other frameworks
    threadlocals = None  # type: ignore[assignment]

__all__ = ["ToolGuard"]


class ToolGuard(scope.ToolGuard):
    """`retrysafe.agents.scope.ToolGuard` for tools of an agent: the context that they get is no part of a key."""

    questions = (ApprovalRequired, CallDeferred)

    def _waiting(self) -> Callable[[], bool]:
        innermost: Any = getattr(threadlocals, "current_cancel_scope", None)  # of a sync tool's thread

        def is_given_up() -> bool:
            scope = innermost
            while scope is not None and not scope.cancel_called and not scope.shield:
                scope = getattr(scope, "_parent_scope", None)
            return scope is not None and scope.cancel_called

        return is_given_up

    def _hides(self, hint: Any) -> bool:
        return (get_origin(hint) or hint) is RunContext
