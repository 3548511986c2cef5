"""R: the layer among its neighbours: compression, CORS, the OpenAPI document."""

from __future__ import annotations

import gzip
import json
from typing import Any

from retrysafe.conformance.bench import KEY, MARKER, Bench, Call, Inapplicable, render
from retrysafe.conformance.cases.registry import case
from retrysafe.conformance.wire import Request, Response

ORIGIN = ("Origin", "https://conformance.example")
_TEXT = '{"text":"' + "compressible-" * 200 + '"}'


@case("R26")
def encoding_by_request(bench: Bench) -> None:
    features = bench.capabilities.features
    if not features & {"compression", "cors"}:
        raise Inapplicable("the server has neither compression nor CORS")
    packed = Call(fields=(("Accept-Encoding", "gzip"),))
    plain = Call(fields=(("Accept-Encoding", "identity"),))
    if "compression" in features:
        first = bench.first(packed, text=_TEXT, headers=[["Content-Type", "application/json"]])
        bench.expect(_plain(first) == _TEXT.encode(), "the first response, decoded", first)
        again = bench.again(plain)
        encoded = again.one("Content-Encoding")
        bench.expect(encoded in (None, "identity"), "no Content-Encoding for who takes none", f"{encoded}")
        bench.expect(again.body == _TEXT.encode(), "the identity bytes on the replay", again)
        bench.expect(_plain(bench.again(packed)) == _TEXT.encode(), "a replay that gzip decodes", again)
    if "cors" in features:
        _expect_allowed(bench, bench.again(Call(fields=(ORIGIN,))), "the replay")
        _expect_allowed(bench, bench.again(Call(body=b'{"n":2}', fields=(ORIGIN,))), "a refusal")


def _plain(response: Response) -> bytes:
    try:
        return gzip.decompress(response.body) if response.one("Content-Encoding") == "gzip" else response.body
    except (OSError, EOFError):
        return b""


def _expect_allowed(bench: Bench, response: Response, what: str) -> None:
    found = response.one("Access-Control-Allow-Origin")
    bench.expect(found in ("*", ORIGIN[1]), f"Access-Control-Allow-Origin on {what}", f"{found}; {render(response)}")


@case("R27")
def cors(bench: Bench) -> None:
    fields = (
        ORIGIN,
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "authorization,content-type,fixture-script,idempotency-key"),
    )
    preflight = bench.exchange(Request("OPTIONS", f"{bench.to.prefix}/act", fields))
    allowed = preflight.tokens("Access-Control-Allow-Headers")
    bench.expect(preflight.status in (200, 204), "200 or 204 for the preflight", preflight)
    bench.expect(bool(allowed & {"*", KEY.lower()}), f"{KEY} in Access-Control-Allow-Headers", f"{sorted(allowed)}")
    exposed = bench.first(Call(fields=(ORIGIN,))).tokens("Access-Control-Expose-Headers")
    missing = {MARKER.lower(), "retry-after"} - exposed
    bench.expect(not missing or "*" in exposed, f"{MARKER} and Retry-After exposed", f"{sorted(exposed)}")


@case("R29")
def openapi_document(bench: Bench) -> None:
    path = bench.capabilities.openapi
    if path is None:
        raise Inapplicable("no OpenAPI document is declared")
    response = bench.exchange(Request("GET", f"{bench.to.prefix}{path}"))
    try:
        document: Any = json.loads(response.body)
        operations = [one["post"] for name, one in document["paths"].items() if "/act" in name and "post" in one]
    except (ValueError, KeyError, TypeError, AttributeError):
        operations = []
    bench.expect(bool(operations), "an OpenAPI document with POST /act", response._replace(body=response.body[:100]))
    for operation in operations:
        names = {
            str(one.get("name", "")).lower() for one in operation.get("parameters", []) if one.get("in") == "header"
        }
        bench.expect(KEY.lower() in names, f"the header parameter {KEY}", f"{sorted(names)}")
        missing = {"400", "409", "422"} - set(operation.get("responses", {}))
        bench.expect(not missing, "the responses 400, 409 and 422", f"{', '.join(sorted(missing))} missing")
