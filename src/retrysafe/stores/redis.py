"""Redis: one script per step, each judging the record by the transition table on the server's clock.

Instants are microseconds; a Lua number holds them exactly, and they are returned as text because
replies would be cut to 32 bits of fraction. Settled records expire natively when they are forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retrysafe.core.transitions import RULES, Event, kept_fingerprint, started_before
from retrysafe.ports import Ask, Capabilities, Script
from retrysafe.stores.sql import COLUMNS
from retrysafe.types import Clocks, Finding, Held, Record, State, Stored, Tally, Want

_FIELDS = tuple(column for column in COLUMNS if column != "key_hash")  # the key is the hash's own name
_TEXTS = ("boundary", "scope", "operation", "attempt", "effects")
_NUMBERS = ("token", "attempts", "lease_until", "created", "updated", "expires", "forget", "version")

_PRELUDE = (
    """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function text(number) return string.format('%.0f', number) end
local function load()
  local names = {"""
    + ", ".join(f"'{name}'" for name in _FIELDS)
    + """}
  local values = redis.call('HMGET', KEYS[1], unpack(names))
  if not values[5] then return nil end
  local record = {}
  for i, name in ipairs(names) do record[name] = values[i] or false end
  return record, values
end
local function reply()
  local record, values = load()
  if not record then return false end
  table.insert(values, text(now))
  return values
end
local function standing(record)
  if not record then return 'absent' end
  if record.state == 'running' then
    if tonumber(record.lease_until) > now then return 'running' else return 'lapsed' end
  end
  if record.state == 'unknown' then return 'unknown' end
  if tonumber(record.forget) <= now then return 'forgotten' end
  if tonumber(record.expires) <= now then return 'expired' end
  return record.state
end
local function allowed(record, sources) return string.find(sources, ',' .. standing(record) .. ',', 1, true) end
local function written(state, window, memory)
  local forget = now + memory
  redis.call('HSET', KEYS[1], 'state', state, 'updated', text(now), 'expires', text(now + window),
    'forget', text(forget))
  redis.call('HINCRBY', KEYS[1], 'version', 1)
  if state == 'running' or state == 'unknown' then redis.call('PERSIST', KEYS[1])
  else redis.call('PEXPIREAT', KEYS[1], text(math.ceil(forget / 1000))) end
end
local function stored(body, media_type, codec_version)
  redis.call('HDEL', KEYS[1], 'result', 'media_type', 'codec_version')
  if media_type ~= '' or codec_version ~= '' then
    redis.call('HSET', KEYS[1], 'media_type', media_type, 'codec_version', codec_version)
    if string.sub(body, 1, 1) == '+' then redis.call('HSET', KEYS[1], 'result', string.sub(body, 2)) end
  end
end
local function claimed(a, token, version, attempts, created)
  redis.call('HSET', KEYS[1], 'boundary', a[1], 'scope', a[2], 'operation', a[3], 'fingerprint', a[4],
    'attempt', a[5], 'effects', a[6], 'lease_until', text(now + a[7]), 'token', text(token),
    'attempts', attempts, 'created', created, 'version', text(version - 1))
  redis.call('HDEL', KEYS[1], 'result', 'media_type', 'codec_version')
  written('running', a[8], a[9])
end
"""
)

_SCRIPTS = {
    "claim": """
if standing(load()) == 'absent' then claimed(ARGV, now, now, 1, text(now)) end
return reply()""",
    "take": """
local record = load()
if not allowed(record, ARGV[10]) or record.attempt ~= ARGV[11] or record.version ~= ARGV[12] then return false end
claimed(ARGV, math.max(tonumber(record.token) + 1, now), tonumber(record.version) + 1, ARGV[13], record.created)
return reply()""",
    "settle": """
local record = load()
if not allowed(record, ARGV[1]) or record.attempt ~= ARGV[2] or record[ARGV[3]] ~= ARGV[4] then return 0 end
stored(ARGV[8], ARGV[9], ARGV[10])
written(ARGV[5], ARGV[6], ARGV[7])
return 1""",
    "renew": """
local record = load()
if not allowed(record, ARGV[1]) or record.attempt ~= ARGV[2] or record.token ~= ARGV[3] then return 0 end
redis.call('HSET', KEYS[1], 'lease_until', text(now + ARGV[4]))
written('running', ARGV[5], ARGV[6])
return 1""",
    "read": "return reply()",
}


class RedisStore:
    """Records as Redis hashes, one key each, so that every step stays in one slot of a cluster."""

    capabilities = Capabilities(
        name="redis",
        transactions=False,
        waits_in_transaction=False,
        clock="the Redis server",
        durability=(
            "what its persistence keeps: every write with appendfsync always; a failover may lose the last ones"
        ),
        failover="the writes that the replica had not received: replication is asynchronous",
        cannot_survive=(
            "a failover that loses a claim: another attempt may run while the first one does",
            "a failover that loses a completion: the operation runs again",
            "eviction, with a maxmemory-policy other than noeviction: as if the key had never been used",
            "a crash with appendfsync everysec or RDB only: the writes since the last sync are gone",
        ),
        choose_when="a duplicate is recognised downstream anyway, or rare doubt is bearable, and latency counts most",
    )

    def claim(self, want: Want) -> Ask[Record | None]:
        """Write a first record, or return the one that is there."""
        return Ask(_script("claim", want.key, _want_args(want)), _reader(want.key))

    def take(self, want: Want, seen: Record) -> Ask[Record | None]:
        """Claim a record that is as seen and claimable."""
        guard = (_sources(Event.CLAIM), seen.attempt, seen.version, started_before(seen) + 1)
        want = want._replace(fingerprint=kept_fingerprint(want, seen))
        return Ask(_script("take", want.key, (*_want_args(want), *guard)), _reader(want.key))

    def settle(self, held: Held, event: Event, result: Stored | None) -> Ask[bool]:
        """Settle the owner's record."""
        guard = (_sources(event), held.attempt, "token", held.token)
        return self._settle(held.key, guard, event, result, held.clocks)

    def resolve(self, seen: Record, event: Event, result: Stored | None, clocks: Clocks) -> Ask[bool]:
        """Settle a record that is as seen."""
        guard = (_sources(event), seen.attempt, "version", seen.version)
        return self._settle(seen.key, guard, event, result, clocks)

    def renew(self, held: Sequence[Held]) -> list[Ask[set[bytes]]]:
        """Extend the leases, one script per key."""
        return [self._renew(one) for one in held]

    def read(self, key: bytes) -> Ask[Record | None]:
        """Return the record."""
        return Ask(_script("read", key, ()), _reader(key))

    def sweep(self, limit: int) -> list[Ask[int]]:
        """Nothing to do: forgotten records expire natively."""
        return []

    def forgotten(self, limit: int) -> list[Ask[list[Record]]]:
        """Nothing to archive: forgotten records expire natively."""
        return []

    def remove(self, seen: Sequence[Record]) -> list[Ask[int]]:
        """Nothing to remove."""
        return []

    def tally(self) -> list[Ask[list[Tally]]]:
        """Counting takes a scan."""
        return []

    def examine(self) -> list[Ask[list[Finding]]]:
        """Look at the server's settings."""
        return []

    def _settle(
        self, key: bytes, guard: tuple[Any, ...], event: Event, result: Stored | None, clocks: Clocks
    ) -> Ask[bool]:
        target = RULES[event].target
        assert target is not None
        args = (*guard, target.value, clocks.window, clocks.memory, *_result_args(result))
        return Ask(_script("settle", key, args), _is_one)

    def _renew(self, held: Held) -> Ask[set[bytes]]:
        clocks = held.clocks
        args = (_sources(Event.RENEW), held.attempt, held.token, clocks.lease, clocks.window, clocks.memory)
        return Ask(_script("renew", held.key, args), lambda answer: {held.key} if answer == 1 else set())


def _script(name: str, key: bytes, args: tuple[Any, ...]) -> Script:
    return Script(name, _PRELUDE + _SCRIPTS[name], (b"retrysafe:{" + key.hex().encode() + b"}",), args)


def _sources(event: Event) -> str:
    return "," + ",".join(sorted(RULES[event].sources)) + ","


def _want_args(want: Want) -> tuple[Any, ...]:
    clocks = want.clocks
    return (
        *(want.boundary, want.scope, want.operation, want.fingerprint, want.attempt, want.effects),
        *(clocks.lease, clocks.window, clocks.memory),
    )


def _result_args(result: Stored | None) -> tuple[Any, ...]:
    """A body is marked with a plus sign, because an empty argument could not say that there is none."""
    if result is None:
        return ("", "", "")
    return (b"" if result.body is None else b"+" + result.body, result.media_type, result.codec_version)


def _is_one(answer: Any) -> bool:
    return bool(answer == 1)


def _reader(key: bytes) -> Any:
    def record(answer: Any) -> Record | None:
        if not answer:
            return None
        values = dict(zip(_FIELDS, answer, strict=False))
        texts: dict[str, Any] = {name: values[name].decode() for name in _TEXTS}
        numbers: dict[str, Any] = {name: int(values[name]) for name in _NUMBERS}
        result = None
        if values["media_type"] is not None:
            result = Stored(values["result"], values["media_type"].decode(), int(values["codec_version"]))
        state = State(values["state"].decode())
        return Record(
            key=key,
            fingerprint=values["fingerprint"],
            state=state,
            result=result,
            now=int(answer[-1]),
            **texts,
            **numbers,
        )

    return record
