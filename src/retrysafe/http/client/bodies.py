"""The kept parts of bodies: of requests, so that they can be sent again; of responses, so that their end is seen."""

from __future__ import annotations

import json
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain

from retrysafe.http.messages import length_of


def gather(parts: Iterable[bytes], limit: int) -> bytes | Iterator[bytes]:
    """A one-shot body as bytes; as an iterator over all of it if it is longer than ``limit`` (rule C15)."""
    seen: list[bytes] = []
    size = 0
    rest = iter(parts)
    for part in rest:
        seen.append(part)
        size += len(part)
        if size > limit:
            return chain(seen, rest)
    return b"".join(seen)


async def agather(parts: AsyncIterable[bytes], limit: int) -> bytes | AsyncIterator[bytes]:
    """`gather` for async code."""
    seen: list[bytes] = []
    size = 0
    rest = aiter(parts)
    async for part in rest:
        seen.append(part)
        size += len(part)
        if size > limit:
            return _chain(seen, rest)
    return b"".join(seen)


async def _chain(seen: list[bytes], rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    for part in seen:
        yield part
    async for part in rest:
        yield part


def is_read_whole(headers: Mapping[str, str], *, keyed: bool, limit: int) -> bool:
    """Tell whether a response counts as an answer only when its last byte has come.

    If not, its body is the caller's to read, and what breaks it then is not retried: event streams, which may have no
    end; what is longer than ``limit``; and what has no length and belongs to a request without a key.
    """
    if headers.get("content-type", "").lstrip().lower().startswith("text/event-stream"):
        return False
    length = length_of(headers.get("content-length", "").strip())
    return keyed if length is None else length <= limit


def ends_unmarked(version: int, method: str, status: int, headers: Mapping[str, str]) -> bool:
    """Tell whether a head was cut off and a lenient parser took it for whole; ``version`` is 11 for HTTP/1.1.

    A body has a length, or chunks, or ends with the connection, which HTTP/1.1 announces (RFC 9112 sections 6.3, 9.6).
    """
    if version != 11 or method == "HEAD" or status in (204, 304) or status < 200:
        return False
    announced = "close" in headers.get("connection", "").lower()
    return not announced and "content-length" not in headers and "transfer-encoding" not in headers


def decode(encoding: str, body: bytes, limit: int) -> bytes | None:
    """A body without its Content-Encoding; None if that is none of gzip and deflate, or over ``limit`` bytes long.

    A few bytes can stand for very many, so no more are made than are wanted.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body if len(body) <= limit else None
    if name not in _WINDOWS:
        return None
    for window in _WINDOWS[name]:
        with suppress(zlib.error):
            unpacking = zlib.decompressobj(window)
            found = unpacking.decompress(body, limit + 1)
            return found if len(found) <= limit else None
    return None


_ZLIB, _BARE, _GZIP = zlib.MAX_WBITS, -zlib.MAX_WBITS, zlib.MAX_WBITS | 16
_WINDOWS = {"gzip": (_GZIP,), "x-gzip": (_GZIP,), "deflate": (_ZLIB, _BARE)}
"""The zlib windows for an encoding; of deflate there are two kinds, and servers send both."""


def problem_code(content_type: str, body: bytes) -> str:
    """The ``code`` of a problem document (RFC 9457); empty if the body is none, or has none."""
    if not content_type.lower().startswith("application/problem+json"):
        return ""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    code = found.get("code") if isinstance(found, dict) else None
    return code if isinstance(code, str) else ""
