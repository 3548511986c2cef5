"""The messages of PostgreSQL's output plugin ``pgoutput``, in version 1 of its protocol, and those around it. Pure.

PostgreSQL 15, sections "Logical Streaming Replication Protocol", "Logical Replication Message Formats" and "Streaming
Replication Protocol" (https://www.postgresql.org/docs/15/protocol-replication.html).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

EPOCH = 946_684_800_000_000
"""Microseconds from the Unix epoch to PostgreSQL's, 2000-01-01."""


class Begin(NamedTuple):
    """A committed transaction follows."""

    xid: int


class Commit(NamedTuple):
    """It ends here: behind ``end`` the next one is."""

    end: int


class Relation(NamedTuple):
    """The names of a table's columns from here on."""

    number: int
    table: str
    columns: tuple[str, ...]


class Insert(NamedTuple):
    """A new row of a table: its values as text, None for NULL."""

    relation: int
    values: tuple[str | None, ...]


Change: TypeAlias = "Begin | Commit | Relation | Insert | None"
"""None: something that says nothing of new rows."""


class Keepalive(NamedTuple):
    """The server has read its log up to ``end``, and sent what is to be sent of it."""

    end: int
    reply: bool
    """True if it wants to be told at once how far this side is."""


def parse(data: bytes) -> Change | Keepalive:
    """Parse a message of the stream. Raises `ValueError` for what no server sends."""
    kind = data[:1]
    if kind == b"w":
        return _change(data[25:])  # behind two positions and a time
    if kind == b"k":
        end, _, reply = struct.unpack_from("!qqB", data, 1)
        return Keepalive(end, reply == 1)
    raise ValueError(f"A message of kind {kind!r} in a replication stream.")


def standby_status(confirmed: int, now: int, *, reply: bool) -> bytes:
    """Encode the progress of this side: all before ``confirmed`` is done, and the server may forget it.

    ``now``: microseconds since the Unix epoch. ``reply``: have the server answer with a `Keepalive`.
    """
    return struct.pack("!cqqqqB", b"r", confirmed, confirmed, confirmed, now - EPOCH, reply)


def _change(data: bytes) -> Change:
    kind, body = data[:1], data[1:]
    if kind == b"B":
        return Begin(struct.unpack_from("!qqI", body)[2])
    if kind == b"C":
        return Commit(struct.unpack_from("!Bqq", body)[2])
    if kind == b"R":
        return _relation(body)
    if kind == b"I":
        return _insert(body)
    return None


def _relation(body: bytes) -> Relation:
    (number,) = struct.unpack_from("!I", body)
    _, table, rest = body[4:].split(b"\0", 2)
    (count,) = struct.unpack_from("!H", rest, 1)
    columns, at = [], 3
    for _ in range(count):
        end = rest.index(b"\0", at + 1)
        columns.append(rest[at + 1 : end].decode())
        at = end + 1 + 8  # the type and its modifier
    return Relation(number, table.decode(), tuple(columns))


def _insert(body: bytes) -> Insert:
    relation, kind, count = struct.unpack_from("!IcH", body)
    if kind != b"N":
        raise ValueError(f"An insert with a tuple of kind {kind!r}.")
    return Insert(relation, tuple(_values(body, 7, count)))


def _values(body: bytes, at: int, count: int) -> Sequence[str | None]:
    values: list[str | None] = []
    for _ in range(count):
        kind, at = body[at : at + 1], at + 1
        if kind == b"n":
            values.append(None)
            continue
        if kind != b"t":
            raise ValueError(f"A value of kind {kind!r} in a new row.")
        (size,) = struct.unpack_from("!I", body, at)
        values.append(body[at + 4 : at + 4 + size].decode())
        at += 4 + size
    return values
