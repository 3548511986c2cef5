"""R: the layer among its neighbours: compression, CORS, the OpenAPI document."""

from __future__ import annotations

import gzip
import json
from typing import Any

from retrysafe.conformance.cases.registry import case
from retrysafe.conformance.harness import MARKER, FixtureAct, Inapplicable, ServerHarness, render
from retrysafe.conformance.wire import WireReply, WireRequest

ORIGIN = ("Origin", "https://conformance.example")
_TEXT = '{"text":"' + "compressible-" * 200 + '"}'


@case("R26")
def encoding_by_request(harness: ServerHarness) -> None:
    features = harness.capabilities.features
    if not features & {"compression", "cors"}:
        raise Inapplicable("the server has neither compression nor CORS")
    packed = FixtureAct(fields=(("Accept-Encoding", "gzip"),))
    plain = FixtureAct(fields=(("Accept-Encoding", "identity"),))
    if "compression" in features:
        first = harness.first(packed, text=_TEXT, headers=[["Content-Type", "application/json"]])
        harness.expect(_plain(first) == _TEXT.encode(), "the first response, decoded", first)
        again = harness.again(plain)
        encoded = again.one("Content-Encoding")
        harness.expect(encoded in (None, "identity"), "no Content-Encoding for who takes none", f"{encoded}")
        harness.expect(again.body == _TEXT.encode(), "the identity bytes on the replay", again)
        harness.expect(_plain(harness.again(packed)) == _TEXT.encode(), "a replay that gzip decodes", again)
    if "cors" in features:
        _expect_allowed(harness, harness.again(FixtureAct(fields=(ORIGIN,))), "the replay")
        _expect_allowed(harness, harness.again(FixtureAct(body=b'{"n":2}', fields=(ORIGIN,))), "a refusal")


def _plain(response: WireReply) -> bytes:
    try:
        return gzip.decompress(response.body) if response.one("Content-Encoding") == "gzip" else response.body
    except (OSError, EOFError):
        return b""


def _expect_allowed(harness: ServerHarness, response: WireReply, what: str) -> None:
    found = response.one("Access-Control-Allow-Origin")
    harness.expect(found in ("*", ORIGIN[1]), f"Access-Control-Allow-Origin on {what}", f"{found}; {render(response)}")


@case("R27")
def cors(harness: ServerHarness) -> None:
    fields = (
        ORIGIN,
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", f"authorization,content-type,fixture-script,{harness.header.lower()}"),
    )
    preflight = harness.exchange(WireRequest("OPTIONS", f"{harness.to.prefix}/act", fields))
    allowed = preflight.tokens("Access-Control-Allow-Headers")
    harness.expect(preflight.status in (200, 204), "200 or 204 for the preflight", preflight)
    wanted = {"*", harness.header.lower()}
    harness.expect(bool(allowed & wanted), f"{harness.header} in Access-Control-Allow-Headers", f"{sorted(allowed)}")
    exposed = harness.first(FixtureAct(fields=(ORIGIN,))).tokens("Access-Control-Expose-Headers")
    missing = {MARKER.lower(), "retry-after"} - exposed
    harness.expect(not missing or "*" in exposed, f"{MARKER} and Retry-After exposed", f"{sorted(exposed)}")


@case("R29")
def openapi_document(harness: ServerHarness) -> None:
    path = harness.capabilities.openapi
    if path is None:
        raise Inapplicable("no OpenAPI document is declared")
    response = harness.exchange(WireRequest("GET", f"{harness.to.prefix}{path}"))
    try:
        document: Any = json.loads(response.body)
        operations = [one["post"] for name, one in document["paths"].items() if "/act" in name and "post" in one]
    except (ValueError, KeyError, TypeError, AttributeError):
        operations = []
    harness.expect(bool(operations), "an OpenAPI document with POST /act", response._replace(body=response.body[:100]))
    for operation in operations:
        names = {
            str(one.get("name", "")).lower() for one in operation.get("parameters", []) if one.get("in") == "header"
        }
        harness.expect(harness.header.lower() in names, f"the header parameter {harness.header}", f"{sorted(names)}")
        missing = {"400", "409", "422"} - set(operation.get("responses", {}))
        harness.expect(not missing, "the responses 400, 409 and 422", f"{', '.join(sorted(missing))} missing")
