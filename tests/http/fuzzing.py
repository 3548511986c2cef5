"""Requests that no client library would send: over bare sockets, in pieces, several at once, many of them broken."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n")
_BROKEN_KEYS: Sequence[bytes] = (
    b"",
    b'""',
    b'"',
    b'"open',
    b'"a""b"',
    b'"a" "b"',
    b'"a", "b"',
    b"a,b",
    b"a b",
    b'"\\x"',
    b'"tab\there"',
    b"\xc3\xa4",
    b'"\xc3\xa4"',
    b"\xff\xfe",
    b'"' + b"k" * 256 + b'"',
    b"k" * 5000,
    b'"k"; =1',
    b'"k";;',
)
"""Values that are no key; each is 400."""


_KEPT = frozenset({200, 201, 409, 422})
"""The answers of the application, and of the layer to a duplicate; all of it is kept."""


@dataclass
class Sent:
    """One request as it goes over the wire, and which statuses a correct server may give it."""

    data: bytes
    allowed: frozenset[int]
    fresh: tuple[bytes, bytes, bytes] | None = None
    """Its line, key line and body, if it can come again once it was answered."""


@dataclass
class Fuzzer:
    """Draws requests, and remembers keys, so that some come again."""

    chance: random.Random
    known: list[tuple[bytes, bytes, bytes]] = field(default_factory=list)
    """Request lines, key lines and bodies of what was answered."""
    statuses: dict[int, int] = field(default_factory=dict)
    connections: int = 0

    async def attack(self, address: tuple[str, int]) -> None:
        """One connection: a few requests, all sent before the answers are read; or it breaks off in one of them."""
        self.connections += 1
        reader, writer = await asyncio.open_connection(*address)
        try:
            await self._attack(reader, writer)
        except OSError:
            pass  # the server has hung up on something broken
        finally:
            writer.close()

    async def _attack(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kind = self.chance.random()
        if kind < 0.15:
            await self._write(writer, self._garbage())
            writer.write_eof()
            self._note(await reader.read(), [])
            return
        requests = [self._request() for _ in range(self.chance.choice((1, 1, 1, 2, 3, 6)))]
        data = b"".join(request.data for request in requests)
        if kind < 0.35:
            await self._write(writer, data[: self.chance.randrange(len(data))])
            return  # gone in the middle of a request, or before its answer
        await self._write(writer, data)
        self._note(await _answers(reader, len(requests)), requests)

    async def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Send in pieces: the server must not rely on where they end."""
        while data:
            size = self.chance.choice((1, 7, 100, 4096, len(data)))
            writer.write(data[:size])
            await writer.drain()
            if self.chance.random() < 0.3:
                await asyncio.sleep(0)
            data = data[size:]

    def _note(self, answered: bytes, requests: list[Sent]) -> None:
        found = [int(status) for status in _STATUS.findall(answered)]
        for status in found:
            assert status < 500, answered
            self.statuses[status] = self.statuses.get(status, 0) + 1
        for status, request in zip(found, requests, strict=False):
            assert status in request.allowed, (request, answered)
            if request.fresh is not None and status in _KEPT:
                self.known.append(request.fresh)

    # ------------------------------------------------------------ what is sent

    def _request(self) -> Sent:
        draw = self.chance.random()
        if self.known and draw < 0.3:
            line, key, body = self.chance.choice(self.known)
            return Sent(self._framed(line, [key], body), _KEPT)
        if self.known and draw < 0.4:
            line, key, _ = self.chance.choice(self.known)
            return Sent(self._framed(line, [key], b'{"amount": 7, "note": "another"}'), frozenset({409, 422}))
        line, body = self._line(), self._body()
        key = self._key()
        if draw < 0.6:
            broken = b"Idempotency-Key: " + self.chance.choice(_BROKEN_KEYS)
            return Sent(self._framed(line, [broken], body), frozenset({400}))
        if draw < 0.7:
            return Sent(self._framed(line, [key, self._key()], body), frozenset({400}))
        if draw < 0.75:
            return Sent(self._framed(line, [], body), frozenset({400}))
        if draw < 0.8:
            padding = b"X-Padding: " + b"p" * self.chance.choice((10_000, 60_000, 70_000))
            return Sent(self._framed(line, [key, padding], body), _KEPT | {400, 431})
        if draw < 0.84:
            return Sent(self._framed(line, [key], b"x" * 100_001), frozenset({413}))
        return Sent(self._framed(line, [key], body), _KEPT, (line, key, body))

    def _line(self) -> bytes:
        number = self.chance.randrange(100)
        lines = (b"POST /orders", b"POST /exports", b"PATCH /orders/%d" % number, b"POST /orders?a=%d&a" % number)
        return self.chance.choice(lines) + b" HTTP/1.1"

    def _key(self) -> bytes:
        key = b"key-%x" % self.chance.getrandbits(64)
        name = self.chance.choice((b"Idempotency-Key", b"idempotency-key", b"IDEMPOTENCY-KEY"))
        forms = (b'"%s"' % key, key, b'  "%s"  ' % key, b'"%s";a=1;b="x"' % key)
        return name + b": " + self.chance.choice(forms)

    def _body(self) -> bytes:
        draw = self.chance.random()
        if draw < 0.1:
            return bytes(self.chance.choice(b'{}[]":,x \\') for _ in range(self.chance.randrange(40)))
        order = {"amount": self.chance.randrange(-5, 100), "note": self.chance.choice((None, "n" * 900, "ä €"))}
        return json.dumps(order).encode()

    def _framed(self, line: bytes, lines: list[bytes], body: bytes) -> bytes:
        """With the length ahead, or in chunks of any size."""
        head = [line, b"Host: shop", b"Content-Type: application/json", *lines]
        if self.chance.random() < 0.6:
            return b"\r\n".join([*head, b"Content-Length: %d" % len(body), b"", body])
        return b"\r\n".join([*head, b"Transfer-Encoding: chunked", b"", self._chunked(body)])

    def _chunked(self, body: bytes) -> bytes:
        out = b""
        while body:
            size = self.chance.choice((1, 3, 50, len(body)))
            chunk, body = body[:size], body[size:]
            out += b"%x\r\n%s\r\n" % (len(chunk), chunk)
            if len(out) > 2_000_000:
                break
        return out + b"0\r\n\r\n"

    def _garbage(self) -> bytes:
        """No HTTP at all, or nearly."""
        whole = bytearray(self._request().data[:2000])
        for _ in range(self.chance.randrange(1, 10)):
            whole[self.chance.randrange(len(whole))] = self.chance.randrange(256)
        return bytes(whole)


async def _answers(reader: asyncio.StreamReader, number: int) -> bytes:
    """Read until there are so many responses, or the server hangs up."""
    data = b""
    async with asyncio.timeout(60):
        while True:
            more = await reader.read(65536)
            data += more
            if not more or (len(_STATUS.findall(data)) >= number and _is_whole(data)):
                return data


def _is_whole(data: bytes) -> bool:
    """Tell whether the last response has ended."""
    start = [found.start() for found in _STATUS.finditer(data)][-1]
    head, end, body = data[start:].partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: *(\d+)", head)
    if not end:
        return False
    return body.endswith(b"0\r\n\r\n") if length is None else len(body) >= int(length[1])
