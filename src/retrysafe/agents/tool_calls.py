"""Calls of MCP tools inside their claims, for a server's own hook and for the gateway in front of one.

The protocol of 2026-07-28 cannot resume a stream: a client whose stream broke sends the call again, as a new request
with a new id, and no field of it says that it is the same. So the key comes from the client (``_meta``), or from an
argument that names the intent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from retrysafe.agents.texts import REFUSED_CODES, refuses_arguments, tell
from retrysafe.boundary import Boundary, require_boundary
from retrysafe.cancellation import run_to_completion
from retrysafe.claims.claim import Claim
from retrysafe.claims.codec import JSONCodec
from retrysafe.claims.decorator import fingerprint_of
from retrysafe.claims.key_spaces import Origin
from retrysafe.claims.observers import logger
from retrysafe.entrypoint import UNUSABLE
from retrysafe.errors import ConfigurationError, InvalidKey, Postponed, RetrysafeError
from retrysafe.http import principals
from retrysafe.protocol import keys
from retrysafe.protocol.outcomes import Answered
from retrysafe.protocol.records import StoredResult

Result = dict[str, Any]
"""The result of a tool call, as it is on the wire."""
PREFIX = "dev.retrysafe/"
META = f"{PREFIX}idempotencyKey"
"""The name in ``_meta`` that our own clients write. Others are read too: none has been standardised."""
_REFUSED = Answered.ELSEWHERE
"""For a tool that was not run: the model corrects the arguments, and means the same intent."""
_NAMES = ("idempotencyKey", "idempotency_key")


class _ResultCodec(JSONCodec):
    """Results of tool calls; of any other JSON that a person gives for one it makes a result."""

    def decode_given(self, stored: StoredResult, annotation: Any) -> Any:
        given = json.loads(json.dumps(self.decode(stored, annotation), default=str))
        if _is_result(given):
            return {"resultType": "complete", **given}
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        content = [] if given is None else [{"type": "text", "text": text}]
        structured = given if isinstance(given, dict) else {"result": given}
        return {"resultType": "complete", "content": content, "structuredContent": structured}


def _is_result(given: Any) -> bool:
    if not isinstance(given, dict) or not isinstance(given.get("_meta", {}), dict):
        return False
    parts = given.get("content")
    return isinstance(parts, list) and all(isinstance(one, dict) and "type" in one for one in parts)


_CODEC = _ResultCodec()


class ProtocolError(Exception):
    """A tool call was answered with a JSON-RPC error, which ``error`` is."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error.get("message"))
        self.error = error

    @property
    def is_refusal(self) -> bool:
        """True if the tool was not run."""
        return self.error.get("code") in REFUSED_CODES


class ToolCalls:
    """The guarded tools of one MCP server.

    Arguments:
        boundary: the boundary that does each call once.
        tools: the name of each guarded tool, with the argument that names the intent (an order, a booking), or None if
            only ``_meta`` brings a key.
        owner, origin: of the keys, see `EntryPoint.take_operation`.
    """

    def __init__(self, boundary: Boundary, tools: Mapping[str, str | None], owner: object, origin: Origin) -> None:
        if not tools:
            raise ConfigurationError("No tool is guarded: name each with the argument that names the intent.")
        self.tools = dict(tools)
        self._unseen = {*tools}
        """Guarded tools that no answer to tools/list had so far."""
        self._entry = require_boundary(boundary).entrypoint
        for tool, argument in self.tools.items():
            source = "_meta" if argument is None else f"_meta, or the argument {argument}"
            self._entry.take_operation(f"mcp {tool}", owner, origin=origin, key=source, codec=_CODEC)

    async def run(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        meta: Mapping[str, Any],
        principal: object,
        call: Callable[[], Coroutine[Any, Any, Result]],
    ) -> Result:
        """Call a tool once per key, and return the result for the client, when the claim has been left.

        If the client gives up, by a time-out or a stream that breaks, the tool goes on to its end all the same: its
        result is what the client gets when it calls again. An error of ours becomes the result of a tool that failed,
        with a text for the model. Raises the `ProtocolError` of ``call``.
        """
        refusal: ProtocolError | None = None
        cancelled: BaseException | None = None
        try:
            scope = self._scope_of(principal)
            key = self._key_of(tool, arguments, meta)
            printed = fingerprint_of(dict(arguments))
            if (named := self.tools[tool]) is not None and key not in (None, "") and key is arguments.get(named):
                printed = printed.with_text(named, keys.parse(key))  # 42 and "42" are one key

            def make() -> Claim:
                return self._entry.open(key, operation=f"mcp {tool}", fingerprint=printed, scope=scope, codec=_CODEC)

            async def work(claim: Claim) -> None:
                nonlocal refusal, cancelled
                try:
                    if self._entry.effects == "transactional":  # it is rolled back, and no other task may use it
                        result = await call()
                    else:
                        result, cancelled = await run_to_completion(call())
                except ProtocolError as error:
                    if not error.is_refusal:
                        raise
                    refusal = error
                    claim._take_answer(_REFUSED, None)
                else:
                    _conclude(claim, result)

            claim = await self._entry.arun(make, work)
        except (RetrysafeError, Postponed) as error:
            if isinstance(error, UNUSABLE):
                logger().error("A call of the tool %r was refused: %s", tool, error)
            return _result_of(error)
        if refusal is not None or cancelled is not None:
            raise refusal or cancelled or AssertionError
        answer: Result = claim.result
        if claim.replayed:
            return {**answer, "_meta": {**answer.get("_meta", {}), f"{PREFIX}replayed": True}}
        return answer

    def _key_of(self, tool: str, arguments: Mapping[str, Any], meta: Mapping[str, Any]) -> Any:
        given = [value for name, value in meta.items() if name.rpartition("/")[2] in _NAMES]
        if len(given) > 1 and any(one != given[0] for one in given):
            raise InvalidKey("_meta names two different idempotency keys.")
        argument = self.tools[tool]
        key = given[0] if given else None if argument is None else arguments.get(argument)
        if key in (None, "") and self._entry.settings.on_missing == "error":
            raise InvalidKey(f"{tool} needs {f'{argument}, or ' if argument else ''}{META} in _meta.")
        return key

    def _scope_of(self, principal: object) -> str | None:
        if principal == principals.SHARED:
            return None
        if not principals.is_named(principal):
            raise InvalidKey("It is not known which user calls: principal= found none.")
        return principals.make_scope(self._entry.tenant(), principal)

    def annotate(self, listed: dict[str, Any]) -> None:
        """Set ``idempotentHint`` of the guarded tools in an answer to tools/list: it is true now.

        After the last page, guarded tools that the server does not have are told in the log, once.
        """
        for tool in listed.get("tools", []):
            self._unseen.discard(tool.get("name"))
            if tool.get("name") in self.tools:
                tool["annotations"] = {**(tool.get("annotations") or {}), "idempotentHint": True}
        if self._unseen and not listed.get("nextCursor"):
            logger().warning("The server has no tool %s, so that its guard does nothing.", ", ".join(self._unseen))
            self._unseen.clear()


def _conclude(claim: Claim, result: Result) -> None:
    """Say what a result means. A question to the user is not the answer, and the tool that asks has done nothing."""
    if result.get("resultType", "complete") != "complete":
        claim._take_answer(Answered.NOT_EXECUTED, result, "input required")
    elif result.get("isError"):
        text = next((part.get("text", "") for part in result.get("content", ())), "")
        claim._take_answer(_REFUSED if refuses_arguments(text) else Answered.FAILED, result, text[:200] or "isError")
    else:
        claim._take_answer(Answered.DONE, result)


def _result_of(error: RetrysafeError | Postponed) -> Result:
    content = [{"type": "text", "text": tell(error)}]
    meta = {f"{PREFIX}error": type(error).__name__}
    return {"resultType": "complete", "isError": True, "content": content, "_meta": meta}
