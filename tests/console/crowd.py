"""Many records at once, as boundaries would have written them over a day."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

import psycopg

_COLUMNS = (
    "key_hash, boundary, scope, operation, fingerprint, state, attempt, token, attempts, effects, lease_until, "
    "created, updated, expires, tombstone_until, version, result, media_type, codec_version"
)
DAY = 86_400_000_000
UNKNOWN_OF = 2_000
"""One record of so many is unknown."""


def _values(number: str, key: str, fingerprint: str, result: str, now: int, rows: int) -> str:
    written = f"{now} - {DAY} + {number} * {max(1, DAY // rows)}"
    state = (
        f"CASE WHEN {number} % {UNKNOWN_OF} = 0 THEN 'unknown' WHEN {number} % 97 = 0 THEN 'failed' "
        f"WHEN {number} % 991 = 0 THEN 'running' ELSE 'completed' END"
    )
    return (
        f"SELECT {key}, CASE {number} % 4 WHEN 0 THEN 'payments' WHEN 1 THEN 'orders' ELSE 'http' END, "
        f"'tenant-' || ({number} % 1000), 'shop.charge', {fingerprint}, {state}, 'a' || {number}, {written}, "
        f"1, 'external', {written} + 30000000, {written}, {written}, {written} + 2 * {DAY}, "
        f"{written} + 7 * {DAY}, {written}, {result}, 'application/json', 1"
    )


def fill(url: str, rows: int) -> None:
    """Write so many records."""
    now = time.time_ns() // 1000
    if url.startswith("sqlite"):
        values = _values("n", "randomblob(32)", "randomblob(60)", "randomblob(120)", now, rows)
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as lite, lite:
            lite.execute("PRAGMA synchronous = OFF")
            lite.execute("PRAGMA cache_size = -400000")
            lite.execute(
                f"WITH RECURSIVE count (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM count WHERE n < {rows}) "
                f"INSERT INTO retrysafe_records ({_COLUMNS}) {values} FROM count ORDER BY 1"
            )
            lite.execute("ANALYZE")
        return
    values = _values(
        "n", "sha256(n::text::bytea)", "sha256((n + 1)::text::bytea)", "decode(repeat('ab', 120), 'hex')", now, rows
    )
    with psycopg.connect(url, autocommit=True) as connection:
        series = f"generate_series(CAST(1 AS bigint), {rows}) AS n"
        connection.execute(f"INSERT INTO retrysafe_records ({_COLUMNS}) {values} FROM {series}".encode())
        connection.execute("ANALYZE retrysafe_records")
