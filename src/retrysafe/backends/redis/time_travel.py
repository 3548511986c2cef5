"""Lets time pass in Redis, for tests."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from retrysafe.backends.redis import packing
from retrysafe.backends.redis.requests import Script
from retrysafe.backends.redis.store import RedisStore, name_of
from retrysafe.backends.time_travel import Aged
from retrysafe.protocol.quotas import holder
from retrysafe.protocol.records import Micros, Record
from retrysafe.protocol.requests import Ask, nothing

_AGE = (
    packing.LUA
    + """
local OVER = {[3] = true, [4] = true}
local record = load()
if not record then return false end
local expires = redis.call('PTTL', KEYS[1]) >= 0
local aged = struct.pack(HEAD, record.format, record.state, record.token, record.lease_until - ARGV[1],
  record.created - (OVER[record.state] and ARGV[1] or 0), record.updated - ARGV[1],
  record.expires - ARGV[1], record.forget - ARGV[1],
  record.version, record.attempts, record.claim_size) .. string.sub(record.packed, HEAD_SIZE + 1)
redis.call('SET', KEYS[1], aged)
if expires then redis.call('PEXPIREAT', KEYS[1], expire_at(record.forget - ARGV[1])) end
return aged"""
)

_AGE_COUNTED = """
for _, name in ipairs(KEYS) do
  if redis.call('ZSCORE', name, ARGV[2]) then
    redis.call('ZINCRBY', name, string.format('%.0f', 0 - ARGV[1]), ARGV[2])
  end
end
return false"""


def age(store: RedisStore, keys: Collection[bytes], micros: Micros) -> Aged:
    """The beginning of work under way stays, by which its steps know it.

    Native expiry goes with the record, and so does the count of the key for the quota of its scope.
    """
    aged: Record | None = None

    def parse(answer: Any) -> None:
        nonlocal aged
        aged = packing.unpack(key, answer, 0) if answer else None

    for key in keys:
        yield Ask(Script("age", _AGE, (name_of(key),), (micros,)), parse)
        if aged is not None:
            tag = b"retrysafe:quota:{" + holder(aged.boundary, aged.scope).hex().encode() + b"}:"
            yield Ask(Script("age counted", _AGE_COUNTED, (tag + b"made", tag + b"kept"), (micros, key)), nothing)
