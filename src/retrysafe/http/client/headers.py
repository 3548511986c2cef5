"""Headers that mean something to the client."""

from __future__ import annotations

from collections.abc import Iterable

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
_TELLING = (
    *("token", "key", "secret", "session", "signature", "password", "credential", "jwt"),
    *("auth-", "-auth", "authoriz", "authentic"),
)
OF_THE_LIBRARY = frozenset({"authorization", "cookie", "proxy-authorization"})
"""Credentials that client libraries know: they take them from a redirect to another origin, and add that one's own."""


def secrets_among(names: Iterable[str], further: Iterable[str] = ()) -> frozenset[str]:
    """The headers of a request that hold credentials, in lower case.

    Those of `SECRETS` and ``further``, and every one whose name says such a thing: token, key,
    secret, session, signature, password, credential, JWT, auth, authorization or authentication.
    """
    known = SECRETS.union(further)
    lowered = {name.lower() for name in names}
    return known | {name for name in lowered if any(word in name for word in _TELLING)}
