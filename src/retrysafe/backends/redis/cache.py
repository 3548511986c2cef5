"""Redis as a cache of settled records: one hash per key, replaced only by a later version.

Instants of expiry are absolute, on the Redis server's clock, so that a delayed write cannot outlive the record.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from retrysafe.backends.redis.requests import Script
from retrysafe.backends.redis.store import CACHED
from retrysafe.protocol.records import Cached, Micros, Record, State, StoredResult
from retrysafe.protocol.requests import Ask, nothing

_FORMAT = 1
"""The layout of a kept record; another one is not read."""

_LOOK = """
local time = redis.call('TIME')
return {string.format('%.0f', time[1] * 1000000 + time[2]), redis.call('HGET', KEYS[1], 'record')}"""

# Versions have 16 digits, which a Lua number holds exactly. A dropped record leaves its version without a record.
_KEEP = """
local known = redis.call('HGET', KEYS[1], 'version')
if known and tonumber(known) >= tonumber(ARGV[1]) then return 0 end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'version', ARGV[1])
if ARGV[3] ~= '' then redis.call('HSET', KEYS[1], 'record', ARGV[3]) end
redis.call('PEXPIREAT', KEYS[1], ARGV[2])
return 1"""


class RedisCache:
    """Settled records in Redis, in front of the durable store of that name."""

    def __init__(self, truth: str) -> None:
        self._truth = hashlib.sha256(truth.encode()).hexdigest()[:32]

    def look(self, key: bytes) -> Ask[Cached]:
        """Return what is kept of a key; what cannot be read is as good as nothing."""
        return Ask(self._script("look", _LOOK, key, ()), lambda answer: Cached(_read(key, answer[1]), int(answer[0])))

    def keep(self, record: Record, until: Micros) -> Ask[None]:
        return Ask(self._script("keep", _KEEP, record.key, (record.version, until // 1000, _write(record))), nothing)

    def drop(self, changed: Record, until: Micros) -> Ask[None]:
        return Ask(self._script("keep", _KEEP, changed.key, (changed.version + 1, until // 1000, "")), nothing)

    def _script(self, name: str, source: str, key: bytes, args: tuple[Any, ...]) -> Script:
        return Script(name, source, (CACHED + f"{self._truth}:{{{key.hex()}}}".encode(),), args)


def _write(record: Record) -> str:
    fields = record._asdict()
    del fields["key"]
    fields["fingerprint"] = record.fingerprint.hex()
    if record.result is not None:
        body = record.result.body
        encoded = None if body is None else base64.b64encode(body).decode()
        fields["result"] = [encoded, record.result.media_type, record.result.codec_version]
    return json.dumps([_FORMAT, fields])


def _read(key: bytes, text: bytes | None) -> Record | None:
    if text is None:
        return None
    try:
        layout, fields = json.loads(text)
        if layout != _FORMAT:
            return None
        fields["fingerprint"] = bytes.fromhex(fields["fingerprint"])
        fields["state"] = State(fields["state"])
        if fields["result"] is not None:
            body, media_type, codec_version = fields["result"]
            decoded = None if body is None else base64.b64decode(body)
            fields["result"] = StoredResult(decoded, media_type, codec_version)
        return Record(key=key, **fields)
    except (ValueError, TypeError, KeyError):
        return None
