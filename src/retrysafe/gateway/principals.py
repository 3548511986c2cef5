"""Finds the principal of a request: by a header of a trusted proxy, or by a verified claim of a token."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from typing import Any, Literal

import aiohttp
import jwt

from retrysafe.claims.observers import logger
from retrysafe.gateway.settings import Claims, Principal, TrustedHeader
from retrysafe.http.asgi import Scope
from retrysafe.http.problems import Refusal

Finder = Callable[[Scope], Any]
AGE = 300.0
"""Seconds after which published keys are asked for again."""
PAUSE = 10.0
"""The least seconds between two such questions, however many tokens name unknown keys."""
PAUSE_AFTER_FAILURE = 1.0
"""After a failed key fetch, how long requests are refused before the next fetch."""
_UNREADABLE = (aiohttp.ClientError, OSError, ValueError, TypeError, AttributeError, jwt.PyJWTError)
_PATIENCE = aiohttp.ClientTimeout(total=5)
_MOST = 1 << 20
"""Bytes of a document of keys; an issuer publishes a few thousand."""


def finder_of(principal: Principal | Literal["shared"], session: aiohttp.ClientSession) -> Finder | None:
    """Return a function that finds the principal of a request, and refuses one without; None if keys are shared."""
    if isinstance(principal, str):
        return None
    if isinstance(principal, TrustedHeader):
        return HeaderFinder(principal)
    return TokenFinder(principal, None if principal.jwks_url is None else PublishedKeys(principal.jwks_url, session))


class HeaderFinder:
    """Believes a header of requests that come from networks that are trusted."""

    def __init__(self, principal: TrustedHeader) -> None:
        self._name = principal.header.lower().encode("latin-1")
        self._trusts = principal.trusts

    def __call__(self, scope: Scope) -> str:
        client = scope.get("client")
        if client is None or not self._trusts(client[0]):
            raise Refusal("principal-missing", "Nothing was done. This client is not trusted to name the principal.")
        return _only(scope, self._name)


class TokenFinder:
    """Verifies a JSON Web Token: its signature by a pinned algorithm, its times, and who it was made by and for."""

    def __init__(self, claims: Claims, published: PublishedKeys | None) -> None:
        self._claims = claims
        self._published = published
        self._header = claims.header.lower().encode("latin-1")

    async def __call__(self, scope: Scope) -> str:
        token = self._token(scope)
        claims = self._claims
        try:
            if "crit" in jwt.get_unverified_header(token):  # PyJWT looks at it since 2.12
                raise jwt.InvalidTokenError("it has critical extensions, of which none is known")
            key: Any = claims.key if self._published is None else await self._published.key_of(token)
            found = jwt.decode(
                token,
                key,
                algorithms=list(claims.algorithms),
                audience=claims.audience,
                issuer=claims.issuer,
                leeway=claims.leeway,
                options={
                    "require": ["exp", claims.claim],
                    "verify_aud": claims.audience is not None,
                    "verify_sub": False,  # it refuses numbers, which are checked below
                },
            )
        except jwt.PyJWTError as error:
            logger().info("A token was refused: %s", error)
            told = str(error).rstrip(".") or type(error).__name__
            raise Refusal("principal-missing", f"Nothing was done. The token is not valid: {told}.") from error
        principal = found[claims.claim]
        if isinstance(principal, bool) or not isinstance(principal, str | int) or principal == "":
            raise Refusal(
                "principal-missing", f"Nothing was done. The claim {claims.claim} of the token names no principal."
            )
        return str(principal)

    def _token(self, scope: Scope) -> str:
        value = _only(scope, self._header)
        if self._header != b"authorization":
            return value
        kind, _, token = value.partition(" ")
        if kind.lower() != "bearer":
            raise Refusal("principal-missing", "Nothing was done. Authorization is not a Bearer token.")
        return token.strip()


class PublishedKeys:
    """The keys of an issuer, as it publishes them (RFC 7517); asked for seldom, and kept while it is away.

    One question at a time, whose answer, or failure, is that of all who wait for it. A known key never waits.
    """

    def __init__(self, url: str, session: aiohttp.ClientSession, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._session = session
        self._clock = clock
        self._keys: dict[str, jwt.PyJWK] = {}
        self._loaded = -AGE
        self._next = float("-inf")
        self._failed = False
        self._asking: asyncio.Task[None] | None = None

    async def key_of(self, token: str) -> jwt.PyJWK:
        """The key that a token names; raises `jwt.PyJWTError`, or `Refusal` when the issuer could not be asked."""
        kid = jwt.get_unverified_header(token).get("kid")
        found = self._find(kid)
        wanted = found is None or self._clock() - self._loaded > AGE
        if wanted and self._asking is None and self._clock() >= self._next:
            self._asking = asyncio.create_task(self._load())
        if found is None and self._asking is not None:
            await asyncio.shield(self._asking)
            found = self._find(kid)
        if found is None and self._failed:
            raise Refusal("identity-unavailable")
        if found is None:
            raise jwt.InvalidKeyError("its key is not among those published")
        return found

    def _find(self, kid: Any) -> jwt.PyJWK | None:
        """The key of an id; of a token without one, the only key that there is."""
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(str(kid))

    async def _load(self) -> None:
        try:
            async with self._session.get(self._url, timeout=_PATIENCE) as response:
                response.raise_for_status()
                keys = jwt.PyJWKSet.from_dict(json.loads(await _read_bounded(response))).keys
        except _UNREADABLE as error:
            level = logging.WARNING if self._keys else logging.ERROR
            logger().log(level, "The keys at %s could not be read: %r", self._url, error)
            self._failed, self._next = True, self._clock() + PAUSE_AFTER_FAILURE
        else:
            self._keys = {str(key.key_id): key for key in keys}
            self._failed, self._loaded = False, self._clock()
            self._next = self._loaded + PAUSE
        finally:
            self._asking = None


async def _read_bounded(response: aiohttp.ClientResponse) -> bytes:
    """The body; raises `ValueError` for one that is larger than any set of keys."""
    body = b""
    async for chunk in response.content.iter_chunked(1 << 16):
        body += chunk
        if len(body) > _MOST:
            raise ValueError(f"the document has more than {_MOST} bytes")
    return body


def _only(scope: Scope, name: bytes) -> str:
    """The one value of a header that names a principal."""
    values = [value for header, value in scope["headers"] if header.lower() == name]
    if len(values) != 1 or not values[0].strip():
        count = "no" if not values else "more than one"
        raise Refusal("principal-missing", f"Nothing was done. The request has {count} {name.decode('latin-1')} field.")
    return str(values[0].strip().decode("latin-1"))
