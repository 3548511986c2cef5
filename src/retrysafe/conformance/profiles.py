"""The terms of protocols that differ from the contract, as data: their choices, and the rules that they lack."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from retrysafe.conformance.capabilities import Capabilities


class Profile(NamedTuple):
    """The word of a protocol in place of the contract.

    Attributes:
        choices: as of `Capabilities`.
        unsupported: the rules that it does not have, of servers and of clients, with the reason.
        source: where it says so.
        keys: where the JSON body of a request has the key, as paths; none if a header has it. Only clients are checked
            then: the fixture of servers has its keys in headers.
        methods: of the JSON-RPC requests that have a key.
        result: of such a request.
        other: the result of all others, which clients send beside.
    """

    choices: Mapping[str, Any]
    unsupported: Mapping[str, str]
    source: str
    keys: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    result: Mapping[str, Any] = MappingProxyType({})
    other: Mapping[str, Any] = MappingProxyType({})

    def over(self, able: Capabilities) -> Capabilities:
        """A server's capabilities, where the protocol's word counts for what it says."""
        choices, unsupported = {**able.choices, **self.choices}, {**able.unsupported, **self.unsupported}
        return dataclasses.replace(able, choices=choices, unsupported=unsupported)


_OPAQUE = "a key is opaque, and no structured string"
_BARE = {"K1": _OPAQUE, "K2": _OPAQUE, "K5": _OPAQUE}
_STATUSES = "the protocol stores each status of the endpoint"
_MISMATCH = "other parameters under a key are answered with 400"
_NO_STATUS = "the protocol has no such answer"
_BODY: Mapping[str, str] = dict.fromkeys(("busy", "reused", "invalid", "final", "lie"), _NO_STATUS)

PROFILES: Mapping[str, Profile] = {
    "acp": Profile(
        {"key_syntax": "bare", "required": True, "on_5xx": "release", "mismatch_status": 422, "concurrent_status": 409},
        {**_BARE, "R3": "errors are objects of the protocol, with a code"},
        "Agentic Commerce Protocol, Idempotency: https://github.com/agentic-commerce-protocol/agentic-commerce-protocol",
    ),
    "stripe": Profile(
        {"key_syntax": "bare", "on_5xx": "store", "mismatch_status": 400, "retry_after": False},
        {**_BARE, "R3": "errors are objects of the protocol", "D1": _STATUSES, "reused": _MISMATCH, "lie": _MISMATCH},
        "Idempotent requests: https://docs.stripe.com/api/idempotent_requests",
    ),
    "mcp": Profile(
        {},
        _BODY,
        "Model Context Protocol 2026-07-28, Streamable HTTP: a request whose response stream broke is sent again, with "
        "a new id. No field has a key (SEP-3182 was closed): ours is read, and those with another prefix.",
        ("params._meta.idempotencyKey", "params._meta.idempotency_key"),
        ("tools/call",),
        {"resultType": "complete", "content": [{"type": "text", "text": "done"}], "isError": False},
        {"resultType": "complete", "tools": [], "ttlMs": 0, "cacheScope": "private"},
    ),
    "a2a": Profile(
        {},
        _BODY,
        "Agent2Agent 1.0, 3.3.1: agents may recognise a message that comes again by its messageId.",
        ("params.message.messageId", "message.messageId"),
        ("SendMessage", "message/send"),
        {"message": {"messageId": "answer", "role": "ROLE_AGENT", "parts": [{"text": "done"}]}},
    ),
}
"""By the name that the command line has for them."""
SERVERS = tuple(name for name, profile in PROFILES.items() if not profile.keys)
"""Those by which a server can be checked."""
