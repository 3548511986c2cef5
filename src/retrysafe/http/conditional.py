"""Conditional requests: entity tags, and the preconditions that keep one update from undoing another.

Source: RFC 9110 sections 8.8.3 and 13; RFC 6585 section 3 (428). Each integration has a
``check_preconditions(request, current, required=False)`` that calls `evaluate` with its request and raises, or returns,
its own kind of response.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from retrysafe.errors import ConfigurationError
from retrysafe.http.messages import Request, Response, latin

_TAG = re.compile(rb'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
# Bytes of any client are matched: repetitions give nothing back ("*+"), so the time is proportional to their number.
_LISTED = re.compile(rb'[ \t,]*+(?:((?:W/)?"[\x21\x23-\x7e\x80-\xff]*+")[ \t]*+(?:,|\Z)|\Z)')
_READING = ("GET", "HEAD")


class ETag(NamedTuple):
    """An entity tag : it names one version of a resource, a weak one versions that are equivalent."""

    opaque: str
    weak: bool = False

    def __str__(self) -> str:
        """As it stands in a field: ``"v17"`` or ``W/"v17"``."""
        return ("W/" if self.weak else "") + f'"{self.opaque}"'

    def strongly_equals(self, other: ETag) -> bool:
        """Tell whether both name the same version byte by byte (RFC 9110 section 8.8.3.2)."""
        return not self.weak and not other.weak and self.opaque == other.opaque

    def weakly_equals(self, other: ETag) -> bool:
        """Tell whether both name versions that are as good as equal."""
        return self.opaque == other.opaque


Version = ETag | int | str | bytes | UUID
"""The version of a resource: its tag; a number, text or id of the version; the bytes of its contents."""


def etag_of(version: object) -> ETag:
    """Make a strong tag of a version number or the like, and of bytes by their hash; an `ETag` is returned unchanged.

    Raises `ConfigurationError` for text that cannot stand in a tag.
    """
    if isinstance(version, ETag):
        return version
    if isinstance(version, bytes):
        return ETag(hashlib.sha256(version).hexdigest()[:32])
    tag = ETag(str(version))
    if _TAG.fullmatch(str(tag).encode("latin-1", "replace")) is None or not tag.opaque.isascii():
        raise ConfigurationError(f"etag_of({version!r}): a tag has no quotes, spaces or control characters.")
    return tag


class Unmet(NamedTuple):
    """A precondition of the request that does not hold: which status is due, and why."""

    status: int
    detail: str
    etag: ETag | None

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the response: the current tag, and the type of the body if there is one."""
        tag = {} if self.etag is None else {"ETag": str(self.etag)}
        return tag if self.status == 304 else {"Content-Type": "application/problem+json", **tag}

    @property
    def problem(self) -> str:
        """The body: a problem (RFC 9457) for 412 and 428, nothing for 304."""
        if self.status == 304:
            return ""
        members = {"type": "about:blank", "title": _TITLES[self.status], "status": self.status, "detail": self.detail}
        return json.dumps(members)

    @property
    def response(self) -> Response:
        """The whole response."""
        body = self.problem.encode()
        length = ((b"content-length", str(len(body)).encode()),) if body else ()
        return Response(self.status, latin(self.fields.items()) + length, body)


_TITLES = {412: "Precondition Failed", 428: "Precondition Required"}


def evaluate(request: Request, current: Version | None, *, required: bool = False) -> Unmet | None:
    """Check If-Match, then If-None-Match, against the ``current`` version; None for a resource that does not exist.

    Call it last, when authorization and validation would let the request succeed. With ``required``, a request other
    than GET and HEAD without a precondition is refused with 428: it needs If-Match, or If-None-Match for a resource
    that does not exist. A field that cannot be read never lets a write through.
    The check and the write must be one: in a transaction that locks the row, or by ``UPDATE … WHERE version = …``.
    """
    tag = None if current is None else etag_of(current)
    if_match, if_none_match = request.lines(b"if-match"), request.lines(b"if-none-match")
    reads = request.method in _READING
    if if_match and not _matches(if_match, tag, strong=True):
        return Unmet(412, "The resource is not the version that If-Match names.", tag)
    if if_none_match and _matches(if_none_match, tag, strong=False, nonsense=not reads):
        if reads:
            return Unmet(304, "", tag)
        return Unmet(412, "The resource exists in a version that If-None-Match excludes.", tag)
    if required and not reads and not if_match and (tag is not None or not if_none_match):
        field = "If-None-Match: *" if tag is None else "If-Match with the ETag of the version that you have seen"
        return Unmet(428, f"Send {field}.", tag)
    return None


def _matches(lines: Sequence[bytes], current: ETag | None, *, strong: bool, nonsense: bool = False) -> bool:
    """Tell whether ``current`` is among a field's tags, ``*`` being any that exists; ``nonsense`` without tags."""
    value = b",".join(lines).strip(b" \t")
    if current is None:
        return False
    if value == b"*":
        return True
    same = current.strongly_equals if strong else current.weakly_equals
    listed = tags(value)
    return any(same(tag) for tag in listed) if listed else nonsense


def tags(value: bytes) -> list[ETag]:
    """The entity tags of a list; none at all of one that is malformed."""
    found: list[ETag] = []
    at = 0
    while at < len(value):
        matched = _LISTED.match(value, at)
        if matched is None:
            return []
        if matched[1] is not None:
            found.append(_tag(matched[1]))
        at = matched.end()
    return found


def _tag(text: bytes) -> ETag:
    return ETag(text.removeprefix(b"W/")[1:-1].decode("latin-1"), text.startswith(b"W/"))
