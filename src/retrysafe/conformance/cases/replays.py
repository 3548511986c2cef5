"""R: a replay is the response that the first request got."""

from __future__ import annotations

import base64
from typing import Any
from uuid import uuid4

from retrysafe.conformance.cases.registry import case
from retrysafe.conformance.harness import MARKER, FixtureAct, ServerHarness, is_marked
from retrysafe.conformance.wire import WireReply

_END_TO_END = (
    ("Content-Language", "de"),
    ("Content-Type", "application/json"),
    ("Vary", "Accept"),
    ("X-Order", "A-17"),
)


def _expect_kept(harness: ServerHarness, first: WireReply, again: WireReply, name: str) -> None:
    """A replay has the same lines of a field as the first response had."""
    lines, found = first.all(name), again.all(name)
    harness.expect(found == lines, f"{name}: {lines} on the replay", f"{name}: {found}")


@case("R2")
def status_body_fields_marker(harness: ServerHarness) -> None:
    allowed = harness.capabilities.choice("headers")
    first = harness.first(status=201, headers=_END_TO_END, text='{"n" : 1.0}')
    harness.expect(first.one(MARKER) is None, f"no {MARKER} on the first response", first)
    again = harness.expect_replay(first, status=201)
    harness.expect(is_marked(again), f"{MARKER}: true on the replay", again)
    for name, _ in _END_TO_END:
        if allowed == "all" or name in allowed:
            _expect_kept(harness, first, again, name)


@case("R4")
def several_lines(harness: ServerHarness) -> None:
    lines = ["</a>; rel=next", "</b>; rel=prev"]
    first = harness.first(headers=[["Link", line] for line in lines])
    harness.expect(_links(first) == lines, f"the lines Link: {lines} on the first response", f"{first.all('Link')}")
    again = harness.expect_replay(first)
    harness.expect(_links(again) == lines, f"the lines Link: {lines} on the replay", f"{again.all('Link')}")


def _links(response: WireReply) -> list[str]:
    return [line for line in response.all("Link") if "describedby" not in line]


@case("R5")
def hop_by_hop(harness: ServerHarness) -> None:
    old = "Thu, 01 Jan 2015 00:00:00 GMT"
    fields = [["Connection", "X-Hop"], ["X-Hop", "1"], ["Keep-Alive", "timeout=77"], ["Date", old]]
    first = harness.first(headers=fields, text='{"n":1}')
    again = harness.expect_replay(first)
    harness.expect(
        again.one("X-Hop") is None, "no field that Connection named on the replay", f"X-Hop: {again.all('X-Hop')}"
    )
    kept = [line for line in again.all("Keep-Alive") if "77" in line]
    harness.expect(not kept, "no Keep-Alive of the first connection on the replay", f"Keep-Alive: {kept}")
    harness.expect(old not in again.all("Date"), "a renewed Date on the replay", f"Date: {again.all('Date')}")
    length = again.all("Content-Length")
    harness.expect(length in ([], ["7"]), "Content-Length 7, once", f"Content-Length: {length}")


@case("R6")
def cookies(harness: ServerHarness) -> None:
    fields = [["Set-Cookie", "a=1"], ["Set-Cookie", "b=2"], ["WWW-Authenticate", "Bearer"]]
    first = harness.first(headers=fields, text='{"n":1}')
    again = harness.expect_replay(first)
    for name in ("Set-Cookie", "WWW-Authenticate"):
        wanted = first.all(name) if harness.capabilities.choice("cookies") == "replay" else []
        harness.expect(again.all(name) == wanted, f"{name}: {wanted} on the replay", f"{name}: {again.all(name)}")


@case("R7")
def unusual_bodies(harness: ServerHarness) -> None:
    binary = base64.b64encode(bytes(range(256))).decode()
    location = [["Location", "/elsewhere"]]
    scripts: tuple[dict[str, Any], ...] = (
        {"status": 204},
        {"status": 303, "headers": location, "text": ""},
        {"text": ""},
        {"base64": binary, "headers": [["Content-Type", "application/octet-stream"]]},
    )
    for script in scripts:
        id, key = uuid4().hex, str(uuid4())
        first = harness.first(id=id, key=key, **script)
        harness.expect_replay(first, id=id, key=key)


@case("R10")
def chunks(harness: ServerHarness) -> None:
    first = harness.first(stream=True, text='{"piece":1}\n', repeat=3, headers=[["Content-Type", "application/json"]])
    harness.expect_replay(first)


@case("R13")
def whole_stream(harness: ServerHarness) -> None:
    response = harness.act(stream=True, text="0123456789", repeat=50)
    whole = response.whole and response.body == b"0123456789" * 50
    harness.expect(whole, "500 bytes in pieces, whole", response)


@case("R22")
def snapshot(harness: ServerHarness) -> None:
    first = harness.first(status=201, text='{"state":"new"}')
    harness.expect_replay(first, status=410, text='{"state":"gone"}')


@case("R23")
def preconditions(harness: ServerHarness) -> None:
    call = FixtureAct(fields=(("If-Match", '"v1"'),))
    first = harness.first(call, headers=[["ETag", '"v2"']], text='{"version":2}')
    harness.expect_replay(first, call, status=412)


@case("R24")
def never_not_modified(harness: ServerHarness) -> None:
    call = FixtureAct(fields=(("If-None-Match", '"v1"'),))
    first = harness.first(call, status=201, headers=[["ETag", '"v1"'], ["Location", "/orders/1"]], text='{"n":1}')
    again = harness.expect_replay(first, call, status=201)
    for name in ("ETag", "Location"):
        _expect_kept(harness, first, again, name)


@case("R30")
def not_for_caches(harness: ServerHarness) -> None:
    first = harness.first(headers=[["Cache-Control", "max-age=60"]], text='{"n":1}')
    again = harness.expect_replay(first)
    control = again.tokens("Cache-Control")
    harness.expect(
        "no-store" in control, "Cache-Control: no-store on the replay", f"Cache-Control: {again.all('Cache-Control')}"
    )
