"""Tools of the OpenAI Agents SDK. Needs the extra ``openai-agents``."""

from __future__ import annotations

from typing import Any, get_origin

from retrysafe.agents import scope
from retrysafe.extras import NeedsExtra

with NeedsExtra("openai-agents", "agents"):
    from agents import RunContextWrapper

__all__ = ["ToolGuard"]


class ToolGuard(scope.ToolGuard):
    """`retrysafe.agents.scope.ToolGuard` for function tools: the context that they get is no part of a key."""

    def _hides(self, hint: Any) -> bool:
        kind = get_origin(hint) or hint
        return isinstance(kind, type) and issubclass(kind, RunContextWrapper)
