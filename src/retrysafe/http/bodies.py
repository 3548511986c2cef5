"""Request bodies: held, up to a limit, while they are hashed."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator
from tempfile import SpooledTemporaryFile
from typing import Any, BinaryIO, Protocol

from retrysafe.errors import ConfigurationError
from retrysafe.http.messages import Request, length_of
from retrysafe.http.policy import Policy
from retrysafe.http.problems import Refusal

CHUNK = 1 << 16
_MULTIPART = re.compile(rb"(?i)\s*+multipart/")
_BOUNDARY = re.compile(rb'(?i)(;[ \t]*boundary=)("[^"]{1,250}"|[^\s;"]{1,250})')
"""RFC 2046 allows 70 characters; some clients, such as Werkzeug's for tests, send a few more now and then."""


class Hash(Protocol):
    """The hash of a body, updated as it arrives."""

    def update(self, chunk: bytes, /) -> None:
        """Take the next chunk."""

    def digest(self) -> bytes:
        """The hash so far."""
        ...


class Body:
    """The body of one request: add its chunks, then read them as often as the work is begun."""

    def __init__(self, request: Request, policy: Policy) -> None:
        self._limit = policy.body_limit
        self._memory = policy.body_memory
        self._held: bytes | bytearray = b""
        """The body in memory: most come in one chunk, which is not copied."""
        self.file: SpooledTemporaryFile[bytes] | None = None
        """The body that is too large for memory; to be closed."""
        self.length = 0
        self.hash = hasher(request) if b"content-type" in request.fields else hashlib.sha256()
        """Its digest represents the body in a fingerprint."""
        declared = request.fields.get(b"content-length")
        self._declared = 0 if declared is None else length_of(declared[0].decode("latin-1")) or 0
        if self._declared > self._limit:
            self._refuse()

    def add(self, chunk: bytes) -> None:
        """Take the next chunk; raises `Refusal` when the body is over the limit."""
        self.length += len(chunk)
        if self.length > self._limit:
            self._refuse()
        self.hash.update(chunk)
        if self.file is None and self.length > self._memory:
            self.file = SpooledTemporaryFile()  # noqa: SIM115 - closed by close()
            self.file.rollover()
            self.file.write(self._held)
            self._held = b""
        if self.file is not None:
            self.file.seek(0, io.SEEK_END)
            self.file.write(chunk)
        elif self._held:
            if isinstance(self._held, bytes):
                self._held = bytearray(self._held)
            self._held += chunk
        else:
            self._held = bytes(chunk)

    def _refuse(self) -> None:
        raise Refusal("request-too-large", f"Nothing was done. The limit is {self._limit} bytes.")

    @property
    def whole(self) -> bytes:
        """All of the body, in memory."""
        return self.part(0, self.length)

    def refuse_unread(self) -> None:
        """Raise `ConfigurationError` for a body that was declared; of this one nothing has come."""
        if self._declared:
            raise ConfigurationError(
                f"The request declares a body of {self._declared} bytes, and nothing of it was left to be compared: a "
                "middleware around the guard has read it, and keeps it from what is inside. Nothing was done. Put the "
                "guard around that middleware, or let that hand the body on."
            )

    def chunks(self) -> Iterator[bytes]:
        """The body from its beginning; one empty chunk when it is empty."""
        at = 0
        while True:
            chunk = self.chunk(at)
            yield chunk
            at += len(chunk)
            if at >= self.length:
                return

    def chunk(self, at: int) -> bytes:
        """The chunk that begins at ``at``: all of a body in memory, when asked from its beginning."""
        return bytes(self._held) if self.file is None else self.part(at, CHUNK)

    def part(self, at: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``at``."""
        if self.file is None:
            return bytes(self._held[at : at + size])
        self.file.seek(at)
        return self.file.read(size)

    def open(self) -> BinaryIO:
        """The body as a file of its own, from its beginning, for sync code."""
        return io.BytesIO(self._held) if self.file is None else io.BufferedReader(Reader(self), CHUNK)

    def close(self) -> None:
        """Let the temporary file go."""
        if self.file is not None:
            self.file.close()


class Reader(io.RawIOBase):
    """One reader of a body, with a position of its own; to close it is no end of the body."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self._at = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into the buffer; how much was read is returned."""
        chunk = self.body.part(self._at, len(buffer))
        buffer[: len(chunk)] = chunk
        self._at += len(chunk)
        return len(chunk)


class Multipart:
    """The hash of a multipart body that does not depend on its boundary, which clients draw anew for every attempt.

    The parts between the delimiters are hashed, each by itself, and then their hashes (RFC 2046 section 5.1).
    """

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary
        self._rest = b"\r\n"  # the first delimiter may stand at the very beginning
        self._part = hashlib.sha256()
        self._parts = hashlib.sha256(b"multipart")

    def update(self, chunk: bytes) -> None:
        """Take the next chunk."""
        self._rest += chunk
        *ended, last = self._rest.split(self._delimiter)
        for part in ended:
            self._part.update(part)
            self._parts.update(self._part.digest())
            self._part = hashlib.sha256()
        keep = len(self._delimiter) - 1
        self._part.update(last[:-keep])
        self._rest = last[-keep:]

    def digest(self) -> bytes:
        """The hash so far."""
        part, parts = self._part.copy(), self._parts.copy()
        part.update(self._rest)
        parts.update(part.digest())
        return parts.digest()


def hasher(request: Request) -> Hash:
    """Start the hash for the body of a request."""
    for value in request.fields.get(b"content-type", ()):
        if _MULTIPART.match(value):
            found = _BOUNDARY.search(value)
            if found is not None:
                return Multipart(found[2].strip(b'"'))
    return hashlib.sha256()


def without_boundary(content_type: bytes) -> bytes:
    """A content type as it counts for a fingerprint: a multipart boundary is no part of what was meant."""
    return _BOUNDARY.sub(rb"", content_type) if _MULTIPART.match(content_type) else content_type


def frame(*texts: object) -> bytes:
    """Texts of a form that was parsed, and whose bytes are gone, as they count for a fingerprint."""
    encoded = [str(text).encode("utf-8", "surrogatepass") for text in texts]
    return b"".join(len(text).to_bytes(8, "big") + text for text in encoded)
