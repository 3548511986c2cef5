"""Headers that mean something to the client."""

from __future__ import annotations

FIELD = "Idempotency-Key"
SECRETS = frozenset(
    {
        "authorization",
        "cookie",
        "proxy-authorization",
        "api-key",
        "apikey",
        "private-token",
        "x-access-token",
        "x-amz-security-token",
        "x-api-key",
        "x-api-token",
        "x-auth-key",
        "x-auth-token",
        "x-authorization",
        "x-csrf-token",
        "x-goog-api-key",
        "x-xsrf-token",
    }
)
"""Headers that hold credentials, by their usual names in lower case: no other origin and no journal gets them."""
