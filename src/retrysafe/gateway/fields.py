"""Header fields on their way through the gateway, both ways (RFC 9110 section 7.6): pure, bytes in and text out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from retrysafe.http.key_header import HEADER
from retrysafe.http.messages import BODYLESS, HOP_BY_HOP, Headers, Request
from retrysafe.http.problems import Refusal

Lines = list[tuple[str, str]]
Out = list[tuple[bytes, bytes]]

_ANSWERED = frozenset({b"expect"})
"""100-continue is answered by the server that reads the body: us."""
_NEEDED = frozenset({b"host", b"content-length", b"content-type"})
"""Fields that a message needs, whatever Connection names: a client must not remove them."""
_FORWARDING = re.compile(
    rb"forwarded|x-(?:forwarded|original|envoy|cluster)(?:-.*)?|x-(?:real|client)-ip|x-(?:rewrite-url|host)"
    rb"|(?:true|fastly)-client-ip|cf-connecting-ip(?:v6)?"
)
"""By these, proxies tell of the connection that a request came on."""
_IDENTITY = re.compile(
    rb"(?:x-)?client-(?:cert|verify|dn|subject|issuer|serial|fingerprint|san|s-dn|i-dn)(?:-.*)?"
    rb"|(?:x-)?(?:ssl|tls|mtls)(?:-.*)?|x-arr-clientcert|x-amzn-(?:mtls|oidc)-.*|x-forwarded-client-cert(?:-.*)?"
    rb"|x-forwarded-(?:user|groups?|email|preferred-username|access-token)"
    rb"|(?:x-)?remote-(?:user|groups?|name|email|extra|addr|ip|host|port)(?:-.*)?"
    rb"|x-user(?:name|info|-(?:id|name|email|groups?|roles?|info|claims?|sub|dn|cert)(?:-.*)?)?"
    rb"|x-auth-(?:request|user)(?:-.*)?|x-(?:authenticated|webauth|consumer|credential|principal)(?:-.*)?"
    rb"|x-anonymous-consumer|x-jwt-(?:payload|claims?)(?:-.*)?|x-goog-(?:iap|authenticated)-.*"
    rb"|x-ms-(?:client-principal|token)(?:-.*)?|cf-access-.*|x-pomerium-.*|tailscale-user-.*"
)
"""By these, proxies tell who asks: by a verified certificate (RFC 9440), or a login."""
_SEPARATED = bytes(byte if chr(byte).isalnum() and byte < 128 else ord("-") for byte in range(256))
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})


class Hop(NamedTuple):
    """The properties of the client's connection for the next server."""

    name: str
    version: str
    scheme: str
    client: str | None
    trusted: bool
    believed: frozenset[bytes] = frozenset()
    """Names of fields that tell who asks, and are passed on as this client sent them."""
    principal: bytes = b""
    """The name of the field by which a proxy tells the gateway who asks."""


def to_upstream(
    request: Request, hop: Hop, *, host: str | None, key: str | None, length: int | None, header: str = HEADER
) -> Lines:
    """The fields of the request that is sent on.

    ``host`` replaces that of the client, if given. ``key`` is what is sent instead of the client's key, "" for none
    and None for as it came, in the field ``header``; ``length`` is how long the body is, if that is known. Raises
    `Refusal` for values that are not text.
    """
    gone = _hop_by_hop(request.headers) | _ANSWERED
    if host is not None:
        gone |= {b"host"}
    if key is not None:
        gone |= {cgi_name(header.lower().encode())}
    if length is not None:
        gone |= _FRAMING
    lines = [
        (name.decode("latin-1"), text_of(value))
        for name, value in request.headers
        if not (cgi_name(name) in gone or name in gone or _is_claimed(name, hop))
    ]
    if host is not None:
        lines.insert(0, ("host", host))
    if key:
        lines.append((header.lower(), key))
    if length:
        lines.append(("content-length", str(length)))
    return [*lines, *_forwarding_fields(request, hop)]


def cgi_name(name: bytes) -> bytes:
    """A name in small letters as CGI, WSGI and PHP have it: servers make one character of several that separate words.

    All of them of ``-`` and ``_``, some of every one that is no letter or digit.
    """
    return name.translate(_SEPARATED)


def _is_claimed(name: bytes, hop: Hop) -> bool:
    """Tell whether a field states something that only a proxy may state, and the client is not trusted.

    A proxy is believed what it was listed for, letter by letter: it replaces ``X-User``, and may let a stranger's
    ``X_User`` pass, which the next server could take for the same field.
    """
    if name in hop.believed:
        return False
    name, proxied = cgi_name(name), {cgi_name(one) for one in (hop.principal, *hop.believed)}
    told = name in proxied or _IDENTITY.fullmatch(name) is not None
    return told or (not hop.trusted and _FORWARDING.fullmatch(name) is not None)


def to_client(headers: Iterable[tuple[bytes, bytes]], status: int, name: str) -> Out:
    """The fields of a response that came from the upstream."""
    lower = [(field.lower(), value) for field, value in headers]
    gone = _hop_by_hop(lower)
    if status in BODYLESS or any(field == b"transfer-encoding" for field, _ in lower):
        gone |= {b"content-length"}
    out = [(field, value) for field, value in lower if field not in gone]
    out.append(via(name))
    if status >= 500:
        out.append(proxy_status(name, f"received-status={status}"))
    return out


def via(name: str) -> tuple[bytes, bytes]:
    """Return the field that marks every response of the upstream, and no other."""
    return b"via", f"1.1 {name}".encode()


def proxy_status(name: str, parameters: str) -> tuple[bytes, bytes]:
    """Return the field with the answering server and the reason (RFC 9209): the last line tells whose a 5xx is."""
    return b"proxy-status", f"{name}; {parameters}".encode()


def text_of(value: bytes) -> str:
    """A value as text from which the client library makes the same bytes again."""
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        raise Refusal("request-invalid", "Nothing was done. A header field is neither ASCII nor UTF-8.") from None
    if has_controls(value):
        raise Refusal("request-invalid", "Nothing was done. A header field has control characters.")
    return text


def has_controls(value: bytes) -> bool:
    return _CONTROL.search(value) is not None


def key_field(key: str, how: str) -> str:
    """The derived key as the upstream wants it; "" for not at all."""
    return {"quoted": f'"{key}"', "bare": key}.get(how, "")


def refuse_unclear(request: Request, method: str, version: str | None) -> None:
    """Raise `Refusal` for a request that the next server could take for another one, or that is for a tunnel."""
    upgrading = b"upgrade" in _tokens(request.lines(b"connection")) and request.lines(b"upgrade")
    if request.method == "CONNECT" or upgrading:  # our server may have taken the head for all of it
        raise Refusal("upgrade-unsupported")
    if not method.isupper():
        raise Refusal("request-invalid", "Nothing was done. A method is written in capitals.")
    hosts = len(request.lines(b"host"))
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        raise Refusal("request-invalid", f"Nothing was done. The request has {hosts} Host fields (RFC 9112, 3.2).")
    codings = [value.strip().lower() for value in request.lines(b"transfer-encoding")]
    if codings not in ([], [b"chunked"]):
        raise Refusal("request-invalid", "Nothing was done. The only transfer coding here is chunked.")


def _forwarding_fields(request: Request, hop: Hop) -> Lines:
    """Via, and who asks, by the standard (RFC 7239) and by the older headers."""
    host = next(iter(request.lines(b"host")), b"").decode("latin-1")
    told = [("via", f"{hop.version} {hop.name}"), ("x-forwarded-proto", hop.scheme)]
    parts = [f"proto={hop.scheme}"]
    if host and host.isascii() and '"' not in host and "\\" not in host:
        told.append(("x-forwarded-host", host))
        parts.insert(0, f'host="{host}"')
    if hop.client:
        told.append(("x-forwarded-for", hop.client))
        parts.insert(0, f'for="[{hop.client}]"' if ":" in hop.client else f"for={hop.client}")
    told.append(("forwarded", ";".join(parts)))
    if not hop.trusted:
        return told
    once = {b"x-forwarded-proto", b"x-forwarded-host"}
    return [line for line in told if line[0].encode() not in once or not request.lines(line[0].encode())]


def _hop_by_hop(headers: Headers | Sequence[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """The fields that concern one connection only: those that always do, and what Connection names."""
    named = _tokens([value for name, value in headers if name == b"connection"])
    kept = {name for name in named if name in _NEEDED or _FORWARDING.fullmatch(name)}
    return HOP_BY_HOP | (named - kept)


def _tokens(values: Iterable[bytes]) -> frozenset[bytes]:
    return frozenset(token.strip().lower() for value in values for token in value.split(b","))
