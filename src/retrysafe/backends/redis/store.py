"""Redis: one script per step, each judging the record by the transition table on the server's clock.

Instants are microseconds, which a Lua number holds exactly; `retrysafe.backends.redis.packing` has the form of a
record. Settled records expire natively when they are forgotten, and their end is published on the channel of their
key's name, for those who wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from retrysafe.backends.redis import packing
from retrysafe.backends.redis.packing import claim_part, number_of, result_part, unpack
from retrysafe.backends.redis.requests import Scan, Scanned, Script, Settings
from retrysafe.backends.spec import StoreDefaults
from retrysafe.protocol import quotas
from retrysafe.protocol.records import (
    Allowance,
    ClaimRequest,
    Clocks,
    Filter,
    Finding,
    Ownership,
    Page,
    QuotaRefusal,
    Record,
    StoredResult,
)
from retrysafe.protocol.requests import Ask, Program, ask
from retrysafe.protocol.store import Capabilities, Removal
from retrysafe.protocol.transitions import RULES, Transition, count_started, merge_fingerprint

_PREFIX, _SUFFIX = b"retrysafe:{", b"}"
CACHED = b"retrysafe:cached:"
_PAGE = 500
"""The number of keys that a sweep looks at in one request."""

# A scope's keys, by when they were made and by when they are forgotten; both are in one slot, which is not the
# records' own, so that what becomes of a record later is not seen here.
_ADMIT = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function text(number) return string.format('%.0f', number) end
local made, kept, key, rate, period, outstanding, memory = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2]),
  tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
redis.call('ZREMRANGEBYSCORE', made, '-inf', text(now - period))
redis.call('ZREMRANGEBYSCORE', kept, '-inf', text(now))
if redis.call('ZSCORE', kept, key) then return false end
local oldest_in_rate, count = false, redis.call('ZCARD', kept)
if rate > 0 then oldest_in_rate = redis.call('ZREVRANGE', made, rate - 1, rate - 1, 'WITHSCORES')[2] or false end
if oldest_in_rate or (outstanding > 0 and count >= outstanding) then
  local first = redis.call('ZRANGE', kept, 0, 0, 'WITHSCORES')[2] or false
  return {text(now), oldest_in_rate and text(tonumber(oldest_in_rate)), count, first and text(tonumber(first))}
end
if rate > 0 then
  redis.call('ZADD', made, text(now), key)
  redis.call('PEXPIRE', made, text(math.ceil(period / 1000)))
end
redis.call('ZADD', kept, text(now + memory), key)
local last = redis.call('ZRANGE', kept, -1, -1, 'WITHSCORES')[2]
redis.call('PEXPIREAT', kept, text(math.ceil(tonumber(last) / 1000)))
return false"""

_BODIES = {
    "claim": "return reply(stored() or write(1, now, now + ARGV[2], now, ARGV[3], ARGV[4], now, 1, ARGV[1], ''))",
    "take": """
local record = load()
if not allowed(record, ARGV[5]) then return false end
if record.attempt ~= ARGV[6] or record.version ~= tonumber(ARGV[7]) then return false end
local token = math.max(record.token + 1, now)
return reply(write(1, token, now + ARGV[2], tonumber(ARGV[8]) == 1 and token or record.created, ARGV[3], ARGV[4],
  record.version + 1, ARGV[8], ARGV[1], ''))""",
    # The wake-up may be forbidden to this user: that must not undo what is written.
    "settle": """
local record = load()
if not allowed(record, ARGV[1]) or record.attempt ~= ARGV[2] or record[ARGV[3]] ~= tonumber(ARGV[4]) then return 0 end
write(ARGV[5], record.token, record.lease_until, record.created, ARGV[6], ARGV[7], record.version + 1,
  record.attempts, claim_of(record), ARGV[8])
redis.pcall('PUBLISH', KEYS[1], '')
return 1""",
    "renew": """
local record = load()
if not allowed(record, ARGV[1]) or record.attempt ~= ARGV[2] or record.token ~= tonumber(ARGV[3]) then return 0 end
write(1, record.token, now + ARGV[4], record.created, ARGV[5], ARGV[6], record.version + 1, record.attempts,
  claim_of(record), '')
return 1""",
    "read": "return reply(stored())",
    "glance": """
local record = load()
return record and reply(string.sub(record.packed, 1, HEAD_SIZE + record.claim_size))""",
    # A record without its expiry would stay for ever: RESTORE and PERSIST do that.
    "mend": """
local record = load()
if allowed(record, ARGV[1]) then return redis.call('DEL', KEYS[1]) end
if record and record.format == 1 and record.state > 2 then
  redis.call('PEXPIREAT', KEYS[1], expire_at(record.forget))
  return -1
end
return 0""",
    # A cached record is no loss. Its version stays for a day, so that a delayed write cannot bring an older one back.
    "mend_cached": """
redis.call('HDEL', KEYS[1], 'record')
redis.call('PEXPIRE', KEYS[1], 86400000)
return -1""",
}
_SCRIPTS = {name: packing.LUA + body for name, body in _BODIES.items()}


class RedisStore(StoreDefaults):
    """Records as strings of one Redis key each, so that every step stays in one slot of a cluster."""

    capabilities = Capabilities(
        name="redis",
        transactions=False,
        waits_in_transaction=False,
        clock="the Redis server",
        durability=(
            "what its persistence keeps: every write with appendfsync always; with everysec, after a loss of power all "
            "but the last second or two; without AOF, only what the last snapshot holds"
        ),
        failover="the writes that the replica had not received: replication is asynchronous",
        cannot_survive=(
            "a failover that loses a claim: another attempt may run while the first one does",
            "a failover that loses a completion: the operation runs again",
            "eviction, with a maxmemory-policy other than noeviction: as if the key had never been used",
            "a loss of power with appendfsync everysec, or a crash with snapshots only: the last writes are gone",
            "a restored backup: records since then are gone, and what they guarded may run again",
        ),
        choose_when="when receivers recognise duplicates, or you accept a rare duplicate, and latency matters",
        quotas=(
            "approximately: one more request counts the keys, separately from their records. A key counts from its "
            "first claim to the end of memory=, also if its record is removed earlier or the claim fails"
        ),
    )

    def admit(self, request: ClaimRequest) -> Program[QuotaRefusal | None]:
        """Count the key in the slot of its scope, which a cluster may have on another server than its record."""
        allowance = request.quota
        if allowance is None:
            return None
        made, kept = (b"retrysafe:quota:{" + allowance.holder.hex().encode() + b"}:" + name for name in _COUNTED)
        args = (request.key, allowance.rate or 0, allowance.period, allowance.outstanding or 0, request.clocks.memory)
        script = Script("admit", _ADMIT, (made, kept), args)
        return (yield from ask(Ask(script, partial(_refusal, allowance)), again=True))

    def claim(self, request: ClaimRequest) -> Ask[Record | QuotaRefusal | None]:
        return Ask(_script("claim", request.key, _claim_args(request)), partial(record_of, request.key))

    def take(self, request: ClaimRequest, seen: Record) -> Ask[Record | None]:
        guard = (_sources(Transition.CLAIM), seen.attempt, seen.version, count_started(seen) + 1)
        request = request._replace(fingerprint=merge_fingerprint(request, seen))
        return Ask(_script("take", request.key, (*_claim_args(request), *guard)), partial(record_of, request.key))

    def settle(self, ownership: Ownership, event: Transition, result: StoredResult | None) -> Ask[bool]:
        guard = (_sources(event), ownership.attempt, "token", ownership.token)
        return self._settle(ownership.key, guard, event, result, ownership.clocks)

    def resolve(self, seen: Record, event: Transition, result: StoredResult | None, clocks: Clocks) -> Ask[bool]:
        guard = (_sources(event), seen.attempt, "version", seen.version)
        return self._settle(seen.key, guard, event, result, clocks)

    def renew(self, ownerships: Sequence[Ownership]) -> list[Ask[set[bytes]]]:
        return [self._renew(one) for one in ownerships]

    def read(self, key: bytes) -> Ask[Record | None]:
        return Ask(_script("read", key, ()), partial(record_of, key))

    def sweep(self, limit: int) -> Iterator[Ask[Removal]]:
        """Forgotten records expire natively. Walk over all keys for those that have lost their expiry: give it back
        to them, and remove those that are forgotten, up to ``limit``; the answers count what was removed. A key that
        `layered` keeps here loses its cached record.
        """
        kinds = (
            (_PREFIX, _script("mend", b"", (_sources(Transition.SWEEP),))),
            (CACHED, _script("mend_cached", b"", ())),
        )
        cursor: str | None = None
        removed = 0

        def parse(answer: Scanned) -> Removal:
            nonlocal cursor, removed
            cursor = answer.cursor
            replies = [int(reply) for _, reply in answer.found]
            removed += replies.count(1)
            return Removal(replies.count(1), replies.count(-1))

        for prefix, mend in kinds:
            while removed < limit:
                yield Ask(Scan(prefix + b"*", cursor, _PAGE, mend, lasting=True), parse)
                if cursor is None:
                    break

    def scan(self, wanted: Filter, cursor: str | None, limit: int) -> Ask[Page]:
        """Return a page in the order of Redis' own SCAN: while keys come and go, it may show one twice."""

        def parse(answer: Scanned) -> Page:
            records = [record_of(key_of(name), reply) for name, reply in answer.found]
            return Page([record for record in records if record and wanted.takes(record)], answer.cursor)

        return Ask(Scan(_PREFIX + b"*", cursor, limit, _script("glance", b"", ())), parse)

    def examine(self) -> list[Ask[list[Finding]]]:
        return [Ask(Settings(_SETTINGS), _findings)]

    def _settle(
        self, key: bytes, guard: tuple[Any, ...], event: Transition, result: StoredResult | None, clocks: Clocks
    ) -> Ask[bool]:
        target = RULES[event].target
        assert target is not None
        args = (*guard, number_of(target), clocks.window, clocks.memory, result_part(result))
        return Ask(_script("settle", key, args), bool)

    def _renew(self, ownership: Ownership) -> Ask[set[bytes]]:
        owner, clocks = (ownership.attempt, ownership.token), ownership.clocks
        args = (_sources(Transition.RENEW), *owner, clocks.lease, clocks.window, clocks.memory)
        return Ask(_script("renew", ownership.key, args), lambda answer: {ownership.key} if answer == 1 else set())


def name_of(key: bytes) -> bytes:
    """The Redis key of a record, which is also the channel on which its end is published."""
    return _PREFIX + key.hex().encode() + _SUFFIX


def key_of(name: bytes) -> bytes:
    return bytes.fromhex(name[len(_PREFIX) : -len(_SUFFIX)].decode())


def _script(name: str, key: bytes, args: tuple[Any, ...]) -> Script:
    return Script(name, _SCRIPTS[name], (name_of(key),), args)


def _sources(event: Transition) -> str:
    return "," + ",".join(sorted(RULES[event].sources)) + ","


def _claim_args(request: ClaimRequest) -> tuple[Any, ...]:
    clocks = request.clocks
    return claim_part(request), clocks.lease, clocks.window, clocks.memory


_COUNTED = (b"made", b"kept")


def _refusal(allowance: Allowance, answer: Any) -> QuotaRefusal | None:
    if not answer:
        return None
    now, oldest_in_rate, count, first = (None if value is None else int(value) for value in answer)
    return quotas.judge(allowance, now or 0, oldest_in_rate, count or 0, first) or quotas.room_again(allowance)


def record_of(key: bytes, answer: Any) -> Record | None:
    if not answer:
        return None
    packed, seconds, micros = answer
    return unpack(key, packed, int(seconds) * 1_000_000 + int(micros))


# ---------------------------------------------------------------- how the server is set up

_SETTINGS = ("appendfsync", "save", "min-replicas-to-write", "maxmemory", "maxmemory-policy")
_LAG = 10
"""Seconds after which a replica that was not heard of is worth a warning."""

Node = Mapping[str, str]


def _findings(masters: Sequence[Node]) -> list[Finding]:
    found = [finding for node in masters for look in _LOOKS for finding in look(node)]
    return list(dict.fromkeys(found))


def _role(node: Node) -> Iterator[Finding]:
    if node.get("role", "master") != "master":
        text = f"The server is a {node['role']}: claims must reach the master. Point store= at it, or use Sentinel."
        yield Finding("refuse", "role", text)


def _eviction(node: Node) -> Iterator[Finding]:
    """Settled records have an expiry, so that even the volatile policies evict them."""
    policy, bound = node.get("maxmemory_policy") or node.get("maxmemory-policy"), node.get("maxmemory")
    if policy is None:
        yield Finding("warn", "eviction", "The server does not tell its maxmemory-policy: make sure it is noeviction.")
    elif policy != "noeviction" and bound not in (None, "0"):
        text = (
            f"maxmemory-policy is {policy} with maxmemory {bound}: records could be evicted, and their operations run "
            "again. Set maxmemory-policy noeviction, or use a Redis of its own for retrysafe."
        )
        yield Finding("refuse", "eviction", text)
    elif policy != "noeviction":
        text = f"maxmemory-policy is {policy}: once maxmemory is set, records could be evicted. Set it to noeviction."
        yield Finding("warn", "eviction", text)
    else:
        yield Finding("fact", "eviction", "noeviction: a full server refuses claims, and forgets none.")


def _persistence(node: Node) -> Iterator[Finding]:
    if node.get("aof_enabled") == "1":
        yield _FSYNC.get(node.get("appendfsync", ""), _FSYNC_UNKNOWN)
    elif "aof_enabled" in node:
        saved = node.get("save")
        text = "A crash forgets everything: there is neither AOF nor a snapshot."
        if saved:
            text = f"Snapshots only (save {saved}): a crash forgets all that was written since the last one."
        elif saved is None:
            text = "There is no AOF: a crash forgets at least what was written since the last snapshot."
        yield Finding("warn", "persistence", text + " Set appendonly yes.")
    else:
        yield Finding("warn", "persistence", "The server does not tell how it persists what it acknowledges.")


_FSYNC = {
    "always": Finding("fact", "persistence", "AOF, appendfsync always: a crash loses nothing that was acknowledged."),
    "everysec": Finding(
        "fact", "persistence", "AOF, appendfsync everysec: a loss of power takes the last second or two."
    ),
    "no": Finding("warn", "persistence", "AOF, appendfsync no: a crash of the machine loses what was not synced yet."),
}
_FSYNC_UNKNOWN = Finding("warn", "persistence", "AOF is on, but the server does not tell its appendfsync.")


def _replication(node: Node) -> Iterator[Finding]:
    replicas = int(node.get("connected_slaves", "0"))
    if not replicas:
        return
    kept = node.get("min-replicas-to-write", "0")
    text = f"{replicas} replicas, asynchronous (min-replicas-to-write {kept}): a failover loses what they had not got."
    yield Finding("fact", "replication", text)
    for number in range(replicas):
        replica = dict(part.split("=", 1) for part in node.get(f"slave{number}", "").split(",") if "=" in part)
        lag = replica.get("lag", "0")
        if replica.get("state", "online") != "online" or int(lag) > _LAG:
            where = f"{replica.get('ip')}:{replica.get('port')}"
            text = f"Replica {where} is {replica.get('state')}, last heard of {lag} s ago: a failover to it loses more."
            yield Finding("warn", "replication", text)


_LOOKS: tuple[Callable[[Node], Iterator[Finding]], ...] = (_role, _eviction, _persistence, _replication)
