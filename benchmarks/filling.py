"""Records written by one statement, as many as a row needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

_FILL = (
    "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count}) "
    "INSERT INTO retrysafe_records (key_hash, boundary, scope, operation, fingerprint, state, attempt, token, "
    "attempts, effects, lease_until, created, updated, expires, tombstone_until, version, result, media_type, "
    "codec_version) "
    "SELECT {key}, 'bench', '', 'charge', {key}, 'completed', 'attempt', n, 1, 'keyed', n, n, n, n, {until}, n, "
    "{result}, 'application/json', 1 FROM numbers"
)
POSTGRESQL = {"key": "sha256(gen_random_uuid()::text::bytea)", "result": "'{\"charged\": true}'::bytea"}
SQLITE = {"key": "randomblob(32)", "result": "CAST('{\"charged\": true}' AS BLOB)"}
_FAR = 4_000_000_000_000_000
"""An instant in the year 2096, in microseconds."""


def filling(perform: Callable[[str], int], dialect: Mapping[str, str], *, settled: bool) -> Callable[[int], object]:
    """Write that many completed records; ``settled``: whose window has ended."""
    until = "n" if settled else f"{_FAR} + n"
    return lambda count: perform(_FILL.format(count=count, until=until, **dialect))
