"""Keeps foreign pages and names away from the console: headers, the Host, the Origin, and signed forms."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
COOKIE, SECURE_COOKIE = "retrysafe-console", "__Host-retrysafe-console"
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # not no-referrer: browsers would send "Origin: null" with our own forms
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Denied(Exception):
    """A request that is not carried out, with the page that says why."""

    def __init__(self, status: int, title: str, text: str) -> None:
        super().__init__(text)
        self.status, self.title, self.text = status, title, text


class Forms:
    """Tokens that only this console's own forms have, each for one principal in one browser.

    A form carries an authenticator of the browser's cookie and the principal's name, so that a page of another site
    cannot submit one, even if it could plant a cookie of its own.
    """

    def __init__(self, secret: str | bytes | None) -> None:
        given = secret.encode() if isinstance(secret, str) else secret
        self._secret = hashlib.sha256(b"retrysafe console\0" + (given or secrets.token_bytes(32))).digest()

    def nonce(self, request: Request) -> str:
        return request.cookies.get(_cookie_of(request)) or secrets.token_urlsafe(32)

    def remember(self, request: Request, response: Response, nonce: str) -> None:
        """Set the cookie, if the browser does not have it."""
        name = _cookie_of(request)
        if request.cookies.get(name) == nonce:
            return
        secure = name == SECURE_COOKIE
        path = "/" if secure else request.scope.get("root_path") or "/"
        response.set_cookie(name, nonce, path=path, secure=secure, httponly=True, samesite="strict")

    def token(self, nonce: str, principal: str) -> str:
        return self._mac("form", nonce, principal)

    def check(self, request: Request, given: str, principal: str) -> None:
        """Refuse a form that is not ours, or was made for another user."""
        nonce = request.cookies.get(_cookie_of(request), "")
        if not nonce or not hmac.compare_digest(self.token(nonce, principal).encode(), given.encode()):
            raise Denied(
                403,
                "The form is out of date",
                "Nothing was changed. The form was made for another session, or before the console was restarted: go "
                "back, load the page again and repeat it.",
            )

    def sign(self, plan: Mapping[str, Any], principal: str) -> str:
        """A plan for a form to carry, so that what is confirmed is what was shown."""
        body = base64.urlsafe_b64encode(json.dumps(plan, sort_keys=True).encode()).decode()
        return f"{body}.{self._mac('plan', body, principal)}"

    def verify(self, text: str, principal: str) -> dict[str, Any]:
        """The plan that was signed for this principal."""
        body, _, mac = text.partition(".")
        if not hmac.compare_digest(self._mac("plan", body, principal).encode(), mac.encode()):
            raise Denied(400, "The plan was changed", "Nothing was changed: this is not the selection that was shown.")
        plan: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body))
        return plan

    def _mac(self, purpose: str, text: str, principal: str) -> str:
        message = json.dumps([purpose, text, principal]).encode()
        return hmac.new(self._secret, message, hashlib.sha256).hexdigest()


def check_host(request: Request, hosts: Collection[str] | None) -> None:
    """Refuse a name that is not the console's: a page elsewhere may let its own name lead to this machine."""
    if hosts is None:
        return
    host = host_of(request.headers.get("host", ""))
    if host not in hosts:
        raise Denied(421, "Unknown host", "This console does not answer to the name in the request's Host header.")


def check_origin(request: Request) -> None:
    """Refuse a form that is not ours, or was made for another principal."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    foreign = (
        site not in ("same-origin", "none")
        if site is not None
        else origin is not None and urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower()
    )
    if foreign:
        raise Denied(403, "Refused", "Nothing was changed: the form was submitted by a page of another origin.")


def page_before(request: Request) -> str | None:
    """The path and query of the page of this console that led to a request, for a link back; None if none did."""
    try:
        parts = urlsplit(request.headers.get("referer", ""))
    except ValueError:
        return None
    if parts.netloc.lower() != request.headers.get("host", "").lower() or parts.path == request.url.path:
        return None
    if not parts.path.startswith("/") or parts.path.startswith(("//", "/\\")):  # which would be another host
        return None
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


def host_of(header: str) -> str:
    name, colon, port = header.lower().rpartition(":")
    return name if colon and port.isdigit() else header.lower()


def _cookie_of(request: Request) -> str:
    return SECURE_COOKIE if request.url.scheme == "https" else COOKIE
