"""What a gateway promises, in words, before it serves."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from retrysafe.gateway.guards import Guarded, Guards
from retrysafe.gateway.settings import Claims, Settings, TrustedHeader

PROMISES = {
    "external": "sent once; if its answer is lost, the key is unknown until it is settled",
    "keyed": "sent again after a lost answer, with the same derived key: once, if the upstream recognises keys",
}
PASSED_BY = "a route that requires keys is passed by /path/, /Path and /path;x, if the service takes them for /path"


def summary(settings: Settings, guards: Guards) -> Iterator[str]:
    """Line by line: where, whose, and what a retry of each route can rely on."""
    yield f"upstream     {_without_password(settings.upstream)}"
    yield f"store        {guards.boundary.entrypoint.address}"
    yield f"boundary     {settings.name}"
    yield f"principal    {_principal(settings)}"
    yield f"workers      {settings.workers}, {settings.grace:g} s to finish when stopped"
    yield "routes       the first that matches counts"
    for one in guards.all[:-1]:
        yield from _route(one, one.route.match)
    yield from _route(guards.defaults, f"all others ({', '.join(sorted(guards.defaults.guard.policy.methods))})")
    if guards.defaults.route.key != "required" and any(one.route.key == "required" for one in guards.all):
        yield f"warning      {PASSED_BY}"


def _route(one: Guarded, where: str) -> Iterator[str]:
    route, guard = one
    if route.key == "off":
        yield f"  {where}: not guarded"
        return
    duplicate = "409" if route.concurrency is None else f"waits {route.concurrency:g} s"
    yield (
        f"  {where}: key {route.key}, window {guard.boundary.window:g} s, duplicate {duplicate}, "
        f"effects {route.effects}, derived key {'not sent' if route.forward_key == 'off' else route.forward_key}"
    )
    yield f"    {PROMISES[route.effects]}"


def _principal(settings: Settings) -> str:
    match settings.principal:
        case TrustedHeader(header, trusted):
            return f"header {header}, from {', '.join(map(str, trusted))}"
        case Claims() as claims:
            return f"claim {claims.claim} of a token in {claims.header} ({', '.join(claims.algorithms)})"
        case _:
            return "none: all clients share their keys"


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
