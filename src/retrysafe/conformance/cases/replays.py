"""R: a replay is the response that the first request got."""

from __future__ import annotations

import base64
from typing import Any
from uuid import uuid4

from retrysafe.conformance.bench import MARKER, Bench, Call, is_marked
from retrysafe.conformance.cases.registry import case
from retrysafe.conformance.wire import Response

_END_TO_END = (
    ("Content-Language", "de"),
    ("Content-Type", "application/json"),
    ("Vary", "Accept"),
    ("X-Order", "A-17"),
)


def _expect_kept(bench: Bench, first: Response, again: Response, name: str) -> None:
    """A replay has the same lines of a field as the first response had."""
    lines, found = first.all(name), again.all(name)
    bench.expect(found == lines, f"{name}: {lines} on the replay", f"{name}: {found}")


@case("R2")
def status_body_fields_marker(bench: Bench) -> None:
    allowed = bench.capabilities.choice("headers")
    first = bench.first(status=201, headers=_END_TO_END, text='{"n" : 1.0}')
    bench.expect(first.one(MARKER) is None, f"no {MARKER} on the first response", first)
    again = bench.expect_replay(first, status=201)
    bench.expect(is_marked(again), f"{MARKER}: true on the replay", again)
    for name, _ in _END_TO_END:
        if allowed == "all" or name in allowed:
            _expect_kept(bench, first, again, name)


@case("R4")
def several_lines(bench: Bench) -> None:
    lines = ["</a>; rel=next", "</b>; rel=prev"]
    first = bench.first(headers=[["Link", line] for line in lines])
    bench.expect(_links(first) == lines, f"the lines Link: {lines} on the first response", f"{first.all('Link')}")
    again = bench.expect_replay(first)
    bench.expect(_links(again) == lines, f"the lines Link: {lines} on the replay", f"{again.all('Link')}")


def _links(response: Response) -> list[str]:
    return [line for line in response.all("Link") if "describedby" not in line]


@case("R5")
def hop_by_hop(bench: Bench) -> None:
    old = "Thu, 01 Jan 2015 00:00:00 GMT"
    fields = [["Connection", "X-Hop"], ["X-Hop", "1"], ["Keep-Alive", "timeout=77"], ["Date", old]]
    first = bench.first(headers=fields, text='{"n":1}')
    again = bench.expect_replay(first)
    bench.expect(
        again.one("X-Hop") is None, "no field that Connection named on the replay", f"X-Hop: {again.all('X-Hop')}"
    )
    kept = [line for line in again.all("Keep-Alive") if "77" in line]
    bench.expect(not kept, "no Keep-Alive of the first connection on the replay", f"Keep-Alive: {kept}")
    bench.expect(old not in again.all("Date"), "a renewed Date on the replay", f"Date: {again.all('Date')}")
    length = again.all("Content-Length")
    bench.expect(length in ([], ["7"]), "Content-Length 7, once", f"Content-Length: {length}")


@case("R6")
def cookies(bench: Bench) -> None:
    fields = [["Set-Cookie", "a=1"], ["Set-Cookie", "b=2"], ["WWW-Authenticate", "Bearer"]]
    first = bench.first(headers=fields, text='{"n":1}')
    again = bench.expect_replay(first)
    for name in ("Set-Cookie", "WWW-Authenticate"):
        wanted = first.all(name) if bench.capabilities.choice("cookies") == "replay" else []
        bench.expect(again.all(name) == wanted, f"{name}: {wanted} on the replay", f"{name}: {again.all(name)}")


@case("R7")
def unusual_bodies(bench: Bench) -> None:
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
        first = bench.first(id=id, key=key, **script)
        bench.expect_replay(first, id=id, key=key)


@case("R10")
def chunks(bench: Bench) -> None:
    first = bench.first(stream=True, text='{"piece":1}\n', repeat=3, headers=[["Content-Type", "application/json"]])
    bench.expect_replay(first)


@case("R13")
def whole_stream(bench: Bench) -> None:
    response = bench.act(stream=True, text="0123456789", repeat=50)
    whole = response.whole and response.body == b"0123456789" * 50
    bench.expect(whole, "500 bytes in pieces, whole", response)


@case("R22")
def snapshot(bench: Bench) -> None:
    first = bench.first(status=201, text='{"state":"new"}')
    bench.expect_replay(first, status=410, text='{"state":"gone"}')


@case("R23")
def preconditions(bench: Bench) -> None:
    call = Call(fields=(("If-Match", '"v1"'),))
    first = bench.first(call, headers=[["ETag", '"v2"']], text='{"version":2}')
    bench.expect_replay(first, call, status=412)


@case("R24")
def never_not_modified(bench: Bench) -> None:
    call = Call(fields=(("If-None-Match", '"v1"'),))
    first = bench.first(call, status=201, headers=[["ETag", '"v1"'], ["Location", "/orders/1"]], text='{"n":1}')
    again = bench.expect_replay(first, call, status=201)
    for name in ("ETag", "Location"):
        _expect_kept(bench, first, again, name)


@case("R30")
def not_for_caches(bench: Bench) -> None:
    first = bench.first(headers=[["Cache-Control", "max-age=60"]], text='{"n":1}')
    again = bench.expect_replay(first)
    control = again.tokens("Cache-Control")
    bench.expect(
        "no-store" in control, "Cache-Control: no-store on the replay", f"Cache-Control: {again.all('Cache-Control')}"
    )
