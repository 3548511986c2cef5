"""The framings of the fault proxy: however the bytes of a connection arrive, they are the same messages."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import groupby

from tests.faults.proxies.framing import Direction, Framing, Messages
from tests.faults.proxies.framing_http import HttpFraming
from tests.faults.proxies.framing_mysql import LONGEST, MysqlFraming
from tests.faults.proxies.framing_nats import NatsFraming
from tests.faults.proxies.framing_postgresql import SSL_REQUEST, PostgresqlFraming
from tests.faults.proxies.framing_redis import RedisFraming
from tests.tables import each_row

Conversation = list[tuple[Direction, bytes]]


def _pg(kind: bytes, body: bytes = b"") -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def _packet(number: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "little") + bytes([number]) + payload


_STARTUP = struct.pack("!ii", 17, 196608) + b"user\0me\0\0"
_ENCRYPTION = struct.pack("!ii", 8, SSL_REQUEST)
_CHALLENGED = b"\xfe" + b"mysql_native_password\0" + b"x" * 21

CONVERSATIONS: dict[str, tuple[Callable[[], Framing], int, Conversation]] = {
    "postgresql": (
        PostgresqlFraming,
        7,
        [
            (">", _ENCRYPTION),
            ("<", b"N"),
            (">", _STARTUP),
            ("<", _pg(b"R", b"\0\0\0\0")),
            ("<", _pg(b"S", b"TimeZone\0UTC\0")),
            ("<", _pg(b"K", b"12345678")),
            ("<", _pg(b"Z", b"I")),
            (">", _pg(b"P", b"\0SELECT 1\0\0\0")),
            (">", _pg(b"B", b"\0\0")),
            (">", _pg(b"S")),
            ("<", _pg(b"1")),
            ("<", _pg(b"D", b"N" * 300)),
            ("<", _pg(b"Z", b"T")),
            (">", _pg(b"X")),
        ],
    ),
    "nats": (
        NatsFraming,
        4,
        [
            ("<", b'INFO {"server_id":"x"}\r\n'),
            (">", b'CONNECT {"verbose":false}\r\n'),
            (">", b"PING\r\n"),
            ("<", b"PONG\r\n"),
            (">", b"SUB inbox.* 1\r\n"),
            (">", b"PUB orders inbox.1 7\r\nPING\r\nx\r\n"),
            ("<", b"HMSG inbox.1 1 12 14\r\nNATS/1.0\r\n\r\nok\r\n"),
            (">", b"PING\r\n"),
        ],
    ),
    "mysql": (
        MysqlFraming,
        5,
        [
            ("<", _packet(0, b"\x0a11.8\0greeting")),
            (">", _packet(1, b"\x05\xa6\x0f\0" + b"z" * 40)),
            ("<", _packet(2, _CHALLENGED)),
            (">", _packet(3, b"scrambled")),
            ("<", _packet(4, b"\0\0\0\x02\0\0\0")),
            (">", _packet(0, b"\x03SELECT 1")),
            ("<", _packet(1, b"\x01")),
            ("<", _packet(2, b"column")),
            ("<", _packet(3, b"")),
            ("<", _packet(4, b"row" * 100)),
        ],
    ),
    "redis": (
        RedisFraming,
        4,
        [
            (">", b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n"),
            (">", b"*2\r\n$6\r\nSELECT\r\n$1\r\n1\r\n"),
            ("<", b"%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:3\r\n"),
            ("<", b"+OK\r\n"),
            (">", b"*1\r\n$4\r\nPING\r\n"),
            (">", b"PING\r\n"),
            (">", b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$6\r\n\r\n*1\r\n\r\n"),
            ("<", b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n"),
            ("<", b"+PONG\r\n"),
            ("<", b"|1\r\n+ttl\r\n:10\r\n*2\r\n$-1\r\n*-1\r\n"),
            ("<", b"*3\r\n*0\r\n%1\r\n+a\r\n~2\r\n:1\r\n,1.5\r\n_\r\n"),
            ("<", b"-ERR no\r\n"),
            ("<", b"=7\r\ntxt:a\r\n\r\n"),
            ("<", b"!5\r\nERR x\r\n"),
            ("<", b"$0\r\n\r\n"),
        ],
    ),
    "http": (
        HttpFraming,
        0,
        [
            (">", b"POST / HTTP/1.1\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n\r\n\r\nbody!"),
            ("<", b"HTTP/1.1 100 Continue\r\n\r\n"),
            ("<", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"),
            (">", b"HEAD /a HTTP/1.1\r\nHost: x\r\n\r\n"),
            (">", b"GET /b HTTP/1.1\r\nHost: x\r\n\r\n"),
            ("<", b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"),
            (
                "<",
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\nA\r\n0123456789\r\n0\r\n\r\n",
            ),
            (">", b"PUT /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nTrailer: t\r\n\r\n"),
            ("<", b"HTTP/1.1 204 No Content\r\n\r\n"),
            (">", b"GET /d HTTP/1.1\r\n\r\n"),
            ("<", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n"),
        ],
    ),
}


@each_row("protocol", CONVERSATIONS)
def test_bytes_that_are_split_anywhere_are_the_same_messages(protocol: str) -> None:
    framing, establishing, conversation = CONVERSATIONS[protocol]
    turns = [(direction, b"".join(m for _, m in said)) for direction, said in groupby(conversation, lambda one: one[0])]
    longest = max(len(said) for _, said in turns)
    for position in range(longest + 1):
        assert _heard(framing(), turns, lambda said, at=position: [said[:at], said[at:]]) == (  # type: ignore[misc]
            conversation,
            establishing,
        )
    assert _heard(framing(), turns, lambda said: [said[i : i + 1] for i in range(len(said))]) == (
        conversation,
        establishing,
    )


def _heard(
    framing: Framing, turns: list[tuple[Direction, bytes]], split: Callable[[bytes], list[bytes]]
) -> tuple[Conversation, int]:
    """The messages that come out when every turn arrives in such parts, and how many of them establish."""
    messages, heard, establishing = Messages(framing), Conversation(), 0
    for direction, said in turns:
        for part in split(said):
            for message, is_establishing in messages.feed(direction, part):
                heard.append((direction, message))
                establishing += is_establishing
        assert messages.rest(direction) == b"", "every turn of these conversations ends with a whole message"
    return heard, establishing


def test_a_body_that_only_the_end_delimits_is_whole_at_the_end() -> None:
    messages = Messages(HttpFraming())
    assert len(messages.feed(">", b"GET / HTTP/1.1\r\n\r\n")) == 1
    answer = b"HTTP/1.1 200 OK\r\n\r\nuntil the end"
    assert messages.feed("<", answer) == []
    assert messages.rest("<") == answer


def test_a_packet_of_the_greatest_length_is_continued() -> None:
    messages = Messages(MysqlFraming())
    first = b"\xff\xff\xff\0" + b"x" * LONGEST
    assert messages.feed(">", first) == []
    assert messages.feed(">", b"\x01\0\0\x01") == []
    ((whole, _),) = messages.feed(">", b"y")
    assert len(whole) == LONGEST + 9


@each_row(
    ("framing", "request_", "accepted"),
    [
        (PostgresqlFraming, _ENCRYPTION, b"S"),
        (MysqlFraming, _packet(1, b"\x05\xae\x0f\0" + b"z" * 28), b""),
    ],
)
def test_encrypted_bytes_are_passed_on_as_they_come(
    framing: Callable[[], Framing], request_: bytes, accepted: bytes
) -> None:
    messages = Messages(framing())
    if framing is MysqlFraming:
        messages.feed("<", _packet(0, b"\x0a11.8\0greeting"))
    messages.feed(">", request_)
    if accepted:
        messages.feed("<", accepted)
    for direction, noise in ((">", b"\x16\x03\x01"), ("<", b"\x16"), (">", b"\0" * 7)):
        assert messages.feed(direction, noise) == [(noise, True)]  # type: ignore[arg-type]
