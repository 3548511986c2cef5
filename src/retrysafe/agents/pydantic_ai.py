"""Tools of Pydantic AI. Needs the extra ``pydantic-ai``."""

from __future__ import annotations

from typing import Any, get_origin

from retrysafe.agents import scope
from retrysafe.extras import NeedsExtra

with NeedsExtra("pydantic-ai", "pydantic_ai"):
    from pydantic_ai import ApprovalRequired, CallDeferred, RunContext

__all__ = ["ToolGuard"]


class ToolGuard(scope.ToolGuard):
    """`retrysafe.agents.scope.ToolGuard` for tools of an agent: the context that they get is no part of a key."""

    questions = (ApprovalRequired, CallDeferred)

    def _hides(self, hint: Any) -> bool:
        return (get_origin(hint) or hint) is RunContext
