"""Tools of an MCP server of the official SDK, each call of which has its effect once. Needs the extra ``mcp``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from retrysafe.agents.tool_calls import META, ProtocolError, Result, ToolCalls
from retrysafe.boundary import Boundary
from retrysafe.claims.key_spaces import origin_of_caller
from retrysafe.extras import NeedsExtra
from retrysafe.http import principals

with NeedsExtra("mcp", "mcp", "mcp_types"):
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from mcp.server.extension import Extension
    from mcp.server.request_state import authenticated_principal
    from mcp.shared.exceptions import MCPError
    from mcp_types import CallToolRequestParams
    from pydantic import BaseModel

__all__ = ["META", "OnceTools", "subject"]

Context = ServerRequestContext[Any, Any]


def subject(context: Context) -> str | None:
    """Return the user of a call: by the token of the SDK's ``auth=``, or on stdio the one user that there is.

    None, with which the call is refused, over HTTP without a token.
    """
    return authenticated_principal(context) or ("stdio" if context.request is None else None)


class OnceTools(Extension):
    """Guards tools of a server: ``MCPServer("air", extensions=[OnceTools(bookings, principal=subject, book="id")])``.

    The schema that a model sees stays as it is. The key of a call is ``dev.retrysafe/idempotencyKey`` of its ``_meta``
    (or ``idempotencyKey`` of anyone else's prefix), else the argument named here. A call without a key is refused, or
    runs unguarded if the boundary has ``on_missing="pass"``. The claim is `current()` inside the tool.

    A tool that raises frees its key if effects are "keyed", and leaves it *unknown* if they are "external", unless it
    has called ``current().not_executed()``. A question to the user, and arguments that do not fit the schema, free it.

    Arguments:
        boundary: the boundary that does each call once.
        principal: a function of the request's context that returns whose call it is, such as `subject`; or "shared",
            if all callers are one.
        tools: for each guarded tool the argument that names the intent, or None if only ``_meta`` has a key.

    Put the object itself in ``middleware=`` too, and tools/list has ``idempotentHint`` for these tools.
    Raises `ConfigurationError` for invalid arguments.
    """

    identifier = "dev.retrysafe/idempotency"

    def __init__(
        self,
        boundary: Boundary,
        *,
        principal: Callable[[Context], Any] | Literal["shared"] = principals.UNSAID,
        **tools: str | None,
    ) -> None:
        principals.check(principal, "principal=subject,  # of retrysafe.agents.mcp: the user of the token")
        self._calls = ToolCalls(boundary, tools, self, origin_of_caller(1))
        self._principal = principal
        self._window = boundary.window

    def settings(self) -> dict[str, Any]:
        """The capability that clients see: they may call again, with which key, and for how many seconds."""
        return {"meta": META, "tools": sorted(self._calls.tools), "windowSeconds": self._window}

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: Context, call_next: CallNext
    ) -> HandlerResult:
        """Call the tool inside its claim; the hook of the SDK."""
        if params.name not in self._calls.tools:
            return await call_next(ctx)

        async def call() -> Result:
            try:
                result = await call_next(ctx)
            except MCPError as error:
                raise ProtocolError(error.error.model_dump(mode="json", exclude_none=True)) from error
            if isinstance(result, BaseModel):
                return result.model_dump(mode="json", by_alias=True, exclude_none=True)
            return result or {}

        principal = (
            self._principal if isinstance(self._principal, str) else await principals.afind(self._principal, ctx)
        )
        try:
            return await self._calls.run(params.name, params.arguments or {}, dict(ctx.meta or {}), principal, call)
        except ProtocolError as error:
            raise error.__cause__ or error from None

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Say in the answer to tools/list that guarded tools are idempotent; a middleware of the SDK."""
        result = await call_next(ctx)
        if ctx.method == "tools/list" and isinstance(result, dict):
            self._calls.annotate(result)
        return result
