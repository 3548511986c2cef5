"""The rules of the HTTP contract, as data: what a server must do, where that comes from, what of it shows outside.

D§ is a section of draft-ietf-httpapi-idempotency-key-header-07, H§ of RFC 9110; SF is RFC 9651, structured fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from retrysafe.conformance.capabilities import MODES, Mode


class Rule(NamedTuple):
    """One rule.

    Attributes:
        text: What a server must do, in one sentence.
        source: The standard or the reason that it comes from.
        visible: Whether a client can see it kept or broken.
        modes: The modes in which it means something.
        should: Whether it is a SHOULD; all others are MUST.
        unseen: What of the rule can't be seen from outside, and why; empty if all of it can.
        needs: The fixture's features without which it can't be checked.
    """

    text: str
    source: str
    visible: bool = True
    modes: frozenset[Mode] = frozenset(MODES)
    should: bool = False
    unseen: str = ""
    needs: frozenset[str] = frozenset()


_LEASED: frozenset[Mode] = frozenset({"leased"})
_TRANSACTIONAL: frozenset[Mode] = frozenset({"transactional"})


def _needs(*features: str) -> frozenset[str]:
    return frozenset(features)


RULES: Mapping[str, Rule] = {
    "K1": Rule('The quotes of `"k"` are not part of the key, and parameters after it are ignored.', "D§2.1, SF"),
    "K2": Rule(
        'The bare form `k` names the same key as `"k"`, or is refused where only the quoted form is taken.', "D§2.1"
    ),
    "K3": Rule("Two field lines, or a bare value with a comma, get 400.", "H§5.3"),
    "K4": Rule(
        "An empty key, one longer than 255, or one outside printable ASCII gets 400 before the body is read.",
        "SF",
        unseen="that the store isn't touched either",
    ),
    "K5": Rule("A malformed structured string gets 400, and never runs unprotected.", "SF"),
    "K6": Rule("A request without a key gets 400 where one is required, and passes through elsewhere.", "D§2.7"),
    "K7": Rule(
        "Safe methods are untouched; the declared methods, by default POST and PATCH, are guarded.",
        "H§9.2.1",
        unseen="websockets and lifespan, which are not requests",
    ),
    "K8": Rule(
        "Two principals with the same key have records of their own; a request without a principal is refused.",
        "security",
        needs=_needs("principals"),
    ),
    "K9": Rule("The same principal with a refreshed token gets the replay.", "D§2.2"),
    "K10": Rule(
        "The lookup is by a keyed hash of boundary, scope, operation and key; the raw key is never logged.",
        "security",
        visible=False,
        should=True,
        unseen="how a key is stored and logged happens inside the server",
    ),
    "K11": Rule(
        "Guessable keys are refused when the policy says so.",
        "D§2.4",
        should=True,
        unseen="rate limits and quotas, whose size only the server knows",
    ),
    "F1": Rule(
        "The fingerprint covers method, path, query, Content-Type, Content-Encoding, body, If-Match and If-None-Match.",
        "D§2.4",
        unseen="that it is stored at claim time; F6 sees its effect",
    ),
    "F2": Rule("`/a%2Fb` is not `/a/b`, `/a/` is not `/a`, and `a=1&a=2` is not `a=2&a=1`.", "H§4.2.3"),
    "F3": Rule(
        "JSON is compared byte by byte; a canonical form neither equates 0.1 with 0.1000000000000000055 nor takes "
        "duplicate members.",
        "RFC 8785",
    ),
    "F4": Rule("A multipart body with a fresh boundary is the same request.", "RFC 2046 §5.1", should=True),
    "F5": Rule("Date, User-Agent and trace fields are not part of the fingerprint.", "D§2.4"),
    "F6": Rule(
        "A mismatch gets 422, in leased mode even while the original runs, and leaves the stored record unchanged.",
        "D§2.6",
    ),
    "R1": Rule(
        "Of several at once exactly one runs; the others wait, or get 409 with a Retry-After of whole seconds ≥ 1.",
        "D§2.6",
        needs=_needs("gate"),
    ),
    "R2": Rule(
        "A completed request gets the same status, body and fields, plus `Idempotent-Replayed: true`, which the first "
        "response lacks.",
        "D§2.6",
    ),
    "R3": Rule(
        "Refusals are problem+json with type, title, status, detail, code and safe_new_key, and a link describedby.",
        "RFC 9457",
        should=True,
        unseen="that each type resolves, which would need the network",
    ),
    "R4": Rule("Field lines are an ordered list: two Link lines stay two.", "H§5.3"),
    "R5": Rule(
        "Hop-by-hop fields are not stored; Date is renewed and Content-Length recomputed.",
        "H§7.6.1",
        needs=_needs("hop"),
    ),
    "R6": Rule("Set-Cookie and WWW-Authenticate are not replayed, or verbatim if allowed.", "security"),
    "R7": Rule("204, 303, empty and binary bodies replay.", "D§2.6"),
    "R8": Rule(
        "The record is committed before a client can see a complete response: a retry on its heels gets the replay.",
        "D§2.6",
        unseen="a race that the server wins every time; the case runs it 20 times",
    ),
    "R9": Rule(
        "If the store can't be reached to record the result, the true response is sent, and the claim is kept.",
        "durability",
        modes=_LEASED,
        unseen="the alert event",
        needs=_needs("gate", "store"),
    ),
    "R10": Rule("A response in several chunks is captured on the way and replayed.", "D§2.6", needs=_needs("stream")),
    "R11": Rule(
        "A response over the limit, or an event stream, is streamed live, and a retry gets its status, no content and "
        "`Idempotency-Replay: omitted`; in transactional mode it is refused with 501.",
        "memory",
    ),
    "R12": Rule("A request too large for memory is still protected; one over the hard limit gets 413.", "H§15.5.14"),
    "R13": Rule(
        "A response that is streamed after the request body was read arrives whole.", "ASGI", needs=_needs("stream")
    ),
    "R14": Rule(
        "Server extensions that bypass the layer are removed; interim responses are forwarded, never stored.",
        "ASGI",
        visible=False,
        unseen="extensions are between server and application, and HTTP has no way to ask for an interim response",
    ),
    "R15": Rule(
        "Work after the response that raises leaves the record complete, and doesn't run on replay.",
        "ASGI",
        needs=_needs("background"),
    ),
    "R16": Rule(
        "After an exception or a 5xx the failure policy decides, and a partial response is never replayed.",
        "D§2.6",
    ),
    "R17": Rule(
        "When the client disconnects while the handler runs, the result is recorded.", "D§1", needs=_needs("gate")
    ),
    "R18": Rule(
        "A cancelled handler leaves a valid state.",
        "asyncio",
        visible=False,
        unseen="cancellation happens inside the process; R17 sees its commonest cause",
    ),
    "R19": Rule(
        "A lease is renewed while the handler runs.",
        "leases",
        modes=_LEASED,
        unseen="takeover after a crash, and fencing, which need a process to die",
        needs=_needs("gate"),
    ),
    "R20": Rule(
        "An original that lost its lease isn't sent as a success.",
        "leases",
        visible=False,
        modes=_LEASED,
        should=True,
        unseen="a lease is lost only by a pause of the process that no request can cause",
    ),
    "R21": Rule(
        "After its window a key runs anew, or is refused as expired; it never conflicts for ever.",
        "D§2.5",
        needs=_needs("elapse"),
    ),
    "R22": Rule("A late retry gets the original snapshot, whatever the resource became since.", "D§2.6"),
    "R23": Rule("A retry that carries If-Match gets the replay, not 412.", "H§13.1.1"),
    "R24": Rule("A replay never turns into 304, and keeps the original ETag and Location.", "H§15.4.5"),
    "R25": Rule(
        "The layer's own refusals are never stored; without its store it answers 503 with Retry-After.", "D§2.7"
    ),
    "R26": Rule("Compression and CORS are outside the layer: each replay is encoded for who asks.", "H§12.5.3"),
    "R27": Rule(
        "Preflight allows Idempotency-Key; the marker and Retry-After are exposed.",
        "Fetch §3.3",
        should=True,
        needs=_needs("cors"),
    ),
    "R28": Rule(
        "WSGI: write() is captured, exc_info replaces unsent fields, the iterable is closed once.",
        "PEP 3333",
        visible=False,
        unseen="this is between server and application",
    ),
    "R29": Rule(
        "Header and answers are published in the OpenAPI document.",
        "D§2.5",
        unseen="what the prose of the service says",
    ),
    "R30": Rule("Replays carry `Cache-Control: no-store`.", "RFC 9111 §5.2.2.5", unseen="encryption of what is stored"),
    "D1": Rule(
        "A 4xx of the handler is stored and replayed, except 401, 403, 408, 421, 425 and 429.",
        "the contract's default",
    ),
    "T1": Rule(
        "After a 5xx or an exception nothing of the handler's work remains, and a retry does it once.",
        "transactional mode",
        modes=_TRANSACTIONAL,
    ),
}
"""Every server rule by its ID, in the contract's order; D1 and T1 are its defaults and its transactional mode."""

CLIENT_RULES: Mapping[str, Rule] = {
    "lost": Rule("After an answer that was lost, the same request comes again under the same key.", "D§2.6"),
    "cut": Rule("An answer that breaks off is one that was lost.", "H§8"),
    "delayed": Rule("An answer that does not come is waited for, or asked for under the same key.", "D§2.6"),
    "busy": Rule("409 with Retry-After: the answer is asked for again, under the same key, not earlier.", "D§2.7"),
    "failed": Rule("After a 500, the same request comes again under the same key.", "H§15.6.1", should=True),
    "overloaded": Rule("After a 503, no retry comes before the Retry-After in seconds.", "H§10.2.3"),
    "throttled": Rule("After a 429, no retry comes before the Retry-After that is a date.", "H§10.2.3"),
    "reused": Rule("After 422 for a reused key nothing is sent again, under any key.", "D§2.7"),
    "invalid": Rule("After 400 nothing is sent again.", "D§2.7"),
    "final": Rule("A 500 that is marked as a replay is final.", "the contract", should=True),
    "lie": Rule("After a lost answer, a 422 is no reason for a new key.", "the contract"),
    "down": Rule("Retries end: at most 20 requests to a server that only fails.", "H§9.2.2"),
}
"""The rules for clients by the scenario that checks each."""
KNOWN: Mapping[str, Rule] = {**RULES, **CLIENT_RULES}
