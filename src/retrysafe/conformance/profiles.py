"""The terms of protocols that differ from the contract, as data: their choices, and the rules that they lack."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from retrysafe.conformance.capabilities import Capabilities


class Profile(NamedTuple):
    """The word of a protocol in place of the contract.

    Attributes:
        choices: as of `Capabilities`.
        unsupported: the rules that it does not have, with the reason.
        source: where it says so.
    """

    choices: Mapping[str, Any]
    unsupported: Mapping[str, str]
    source: str

    def over(self, able: Capabilities) -> Capabilities:
        """A server's capabilities, where the protocol's word counts for what it says."""
        choices, unsupported = {**able.choices, **self.choices}, {**able.unsupported, **self.unsupported}
        return dataclasses.replace(able, choices=choices, unsupported=unsupported)


_OPAQUE = "a key is opaque, and no structured string"
_BARE = {"K1": _OPAQUE, "K2": _OPAQUE, "K5": _OPAQUE}
_STATUSES = "the protocol stores each status of the endpoint"

PROFILES: Mapping[str, Profile] = {
    "acp": Profile(
        {"key_syntax": "bare", "required": True, "on_5xx": "release", "mismatch_status": 422, "concurrent_status": 409},
        {**_BARE, "R3": "errors are objects of the protocol, with a code"},
        "Agentic Commerce Protocol, Idempotency: https://github.com/agentic-commerce-protocol/agentic-commerce-protocol",
    ),
    "stripe": Profile(
        {"key_syntax": "bare", "on_5xx": "store", "mismatch_status": 400, "retry_after": False},
        {**_BARE, "R3": "errors are objects of the protocol", "D1": _STATUSES},
        "Idempotent requests: https://docs.stripe.com/api/idempotent_requests",
    ),
}
"""By the name that the command line has for them."""
