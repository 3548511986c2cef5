"""Shared access signatures: whether a token is one of a key that there is, and what it allows."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from urllib.parse import parse_qs, unquote

KEY = "tests"
RIGHTS = {
    "RootManageSharedAccessKey": frozenset({"manage", "send", "listen"}),
    "send": frozenset({"send"}),
    "listen": frozenset({"listen"}),
}
"""The policies of the namespace; all have one key."""


def rights_of(token: str) -> frozenset[str] | None:
    """Return the rights of a token's bearer; None for a token that is wrong or over."""
    kind, _, told = token.partition(" ")
    fields = {name: values[0] for name, values in parse_qs(told).items()}
    if kind != "SharedAccessSignature" or not fields.keys() >= {"sr", "sig", "se", "skn"}:
        return None
    signed = next(part.removeprefix("sr=") for part in told.split("&") if part.startswith("sr="))
    digest = hmac.new(KEY.encode(), f"{signed}\n{fields['se']}".encode(), hashlib.sha256).digest()
    right = hmac.compare_digest(base64.b64encode(digest), unquote(fields["sig"]).replace(" ", "+").encode())
    return RIGHTS.get(fields["skn"]) if right and float(fields["se"]) > time.time() else None
