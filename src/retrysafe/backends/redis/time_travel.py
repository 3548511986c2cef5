"""How tests let time pass in Redis."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from retrysafe.backends.redis.store import RedisStore, name_of
from retrysafe.backends.time_travel import Aged, nothing
from retrysafe.protocol.quotas import holder
from retrysafe.protocol.records import Micros
from retrysafe.protocol.requests import Ask, Script

_AGE = """
local shift = string.format('%.0f', 0 - ARGV[1])
local named = redis.call('HMGET', KEYS[1], 'boundary', 'scope')
if not named[1] then return false end
for _, name in ipairs({'lease_until', 'created', 'updated', 'expires', 'forget'}) do
  redis.call('HINCRBY', KEYS[1], name, shift)
end
if redis.call('PTTL', KEYS[1]) >= 0 then
  redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', math.ceil(redis.call('HGET', KEYS[1], 'forget') / 1000)))
end
return named"""

_AGE_COUNTED = """
for _, name in ipairs(KEYS) do
  if redis.call('ZSCORE', name, ARGV[2]) then
    redis.call('ZINCRBY', name, string.format('%.0f', 0 - ARGV[1]), ARGV[2])
  end
end
return false"""


def age(store: RedisStore, keys: Collection[bytes], micros: Micros) -> Aged:
    """Native expiry goes with the record, and so does what is counted of the key for the quota of its scope."""
    named: list[str] = []

    def parse(answer: Any) -> None:
        named[:] = [part.decode() for part in answer or ()]

    for key in keys:
        yield Ask(Script("age", _AGE, (name_of(key),), (micros,)), parse)
        if named:
            tag = b"retrysafe:quota:{" + holder(*named).hex().encode() + b"}:"
            yield Ask(Script("age counted", _AGE_COUNTED, (tag + b"made", tag + b"kept"), (micros, key)), nothing)
