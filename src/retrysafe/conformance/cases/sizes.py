"""R: what is too large to be kept."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from retrysafe.conformance.cases.registry import case
from retrysafe.conformance.harness import FixtureAct, Inapplicable, ServerHarness, render
from retrysafe.conformance.wire import WireReply

REQUEST = 2 * 1024 * 1024
"""Bytes of a request that most servers don't keep in memory, where none is declared."""


@case("R11")
def large_responses(harness: ServerHarness) -> None:
    able = harness.capabilities
    limit = able.limits.get("response")
    looked = False
    if limit is not None:
        looked = True
        _expect_omission(harness, "a response over the limit", repeat=int(limit) // 10 + 1, text="0123456789")
    if "stream" in able.features:
        looked = True
        event: dict[str, Any] = {
            "text": "data: 1\n\n",
            "repeat": 3,
            "stream": True,
            "headers": [["Content-Type", "text/event-stream"]],
        }
        _expect_omission(harness, "an event stream", **event)
        if "gate" in able.features and not _refuses(harness):
            _live(harness, **event)
    if not looked:
        raise Inapplicable("no limit is declared, and the fixture doesn't stream")
    if limit is None:
        harness.notes.append("no limit is declared: only event streams were looked at")


def _refuses(harness: ServerHarness) -> bool:
    return harness.capabilities.transactional or harness.capabilities.choice("on_large") == "error"


def _expect_omission(harness: ServerHarness, what: str, **script: Any) -> None:
    harness.key, harness.id = str(uuid4()), uuid4().hex
    first = harness.act(**script)
    if _refuses(harness):
        harness.expect(first.status == 501, f"501 for {what}", first)
        return
    whole = script["text"].encode() * script["repeat"]
    arrived = first.whole and first.status == 200 and first.body == whole
    came = f"{first.status} with {len(first.body)} bytes"
    harness.expect(arrived, f"{what} to arrive whole, {len(whole)} bytes", came)
    again = harness.again(**script)
    harness.ran(1, f"no second execution for {what}", _head_of(again))
    kept = (again.status, again.body, again.one("Idempotency-Replay")) == (200, b"", "omitted")
    harness.expect(kept, f"200 without content and Idempotency-Replay: omitted for a retry of {what}", _head_of(again))


def _head_of(response: WireReply) -> WireReply:
    return response._replace(body=response.body[:20])


def _live(harness: ServerHarness, **script: Any) -> None:
    """The first event arrives while the handler still waits to send the others."""
    harness.key, harness.id = str(uuid4()), uuid4().hex
    request = harness.request(gate="between", **script)
    with harness.connection() as connection:
        connection.send(request.encode(connection.host))
        begun = connection.begin()
        piece = next(connection.pieces(), b"")
        harness.note(request, render(begun._replace(body=piece)))
        harness.expect(bool(piece), "the first event while the stream goes on", "the end of the response")
        harness.release()
        rest = b"".join(connection.pieces())
    harness.expect(connection.whole and piece + rest == b"data: 1\n\n" * 3, "the whole stream", f"{piece + rest!r}")


@case("R12")
def large_requests(harness: ServerHarness) -> None:
    limits = harness.capabilities.limits
    most = limits.get("request")
    size = int(2 * limits["request_memory"]) if "request_memory" in limits else REQUEST
    body = b"x" * (size if most is None else min(size, int(most)))
    call = FixtureAct(body=body, content_type="application/octet-stream")
    first = harness.first(call, text='{"large":true}')
    harness.expect_replay(first, call)
    harness.expect_distinction("another last byte of a large body", call._replace(body=body[:-1] + b"y"))
    if most is None:
        harness.notes.append("no hard limit is declared")
        return
    beyond = call._replace(body=b"x" * (int(most) + 1))
    harness.expect_refusal(413, f"a body of {int(most) + 1} bytes", beyond, key=str(uuid4()), id=uuid4().hex)
