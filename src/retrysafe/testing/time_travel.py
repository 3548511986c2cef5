"""Letting time pass in a store: the instants of its records are moved back, through the store's own clients.

What judges leases and windows is the store's clock, which no test can set; a record whose instants lie an hour
further back is to every store what it would be an hour later. Only for tests: nothing here is conditional on the
record that was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import singledispatch
from typing import Any

from retrysafe.backends.dynamodb.store import STORED_AS, DynamodbStore
from retrysafe.backends.memory.store import MemoryStore, Records
from retrysafe.backends.redis.store import RedisStore, name_of
from retrysafe.backends.sql import TABLE, SqlStore
from retrysafe.backends.sql.mysql import MysqlStore
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.asks import Ask, Steps, ask
from retrysafe.protocol.procedures import PAGE, clocks_of, resolve, suspect, sweep
from retrysafe.protocol.quotas import holder
from retrysafe.protocol.records import EffectiveState, Filter, Micros, Record
from retrysafe.protocol.requests import Call, Script
from retrysafe.protocol.store import OperableStore
from retrysafe.protocol.transitions import Transition

INSTANTS = ("lease_until", "created", "updated", "expires", "tombstone_until")
"""What of a record moves."""
AT_ONCE = 500
"""How many records one statement ages."""
BEYOND: Micros = 1_000_000
"""How far beyond an instant time passes: machines that ask a service for its time need not agree to the second."""

Aged = Iterable[Ask[Any]]
"""Each ask is made when the one before it has been answered."""


@singledispatch
def age(store: object, keys: Collection[bytes], micros: Micros) -> Aged:
    """Ask for ``micros`` to pass for the records of ``keys``; keys without a record are passed over.

    For a store of your own: decorate a function with the same arguments by ``@age.register(YourStore)``.
    """
    kind = type(store)
    raise ConfigurationError(
        f"Nobody has said how time passes in a {kind.__name__}: define a function (store, keys, micros) that yields "
        f"asks which move the instants of these records back, under @retrysafe.testing.age.register({kind.__name__})."
    )


# ---------------------------------------------------------------- programs


def elapse(store: object, keys: Collection[bytes], micros: Micros) -> Steps[None]:
    """Let time pass for some records."""
    for request in age(store, keys, micros):
        yield from ask(request)


def elapse_all(store: OperableStore, micros: Micros, boundaries: Collection[str] | None = None) -> Steps[list[Record]]:
    """Let time pass for every record of these boundaries, or of all; the records are returned as they were."""
    records = yield from found(store, boundaries)
    yield from elapse(store, [record.key for record in records], micros)
    return records


def lapse(store: OperableStore, boundaries: Collection[str] | None = None) -> Steps[list[Record]]:
    """Let time pass for every *running* record of these boundaries, or of all, until its lease has lapsed.

    It is as if the attempts had been frozen for so long. The records are returned as they were.
    """
    running = yield from found(store, boundaries, {EffectiveState.RUNNING})
    for record in running:
        yield from elapse(store, [record.key], record.lease_until - record.now + _beyond(store))
    return running


def clear(store: OperableStore, boundaries: Collection[str] | None = None) -> Steps[int]:
    """Forget every record of these boundaries, or of all, running ones too; returns how many there were."""
    yield from lapse(store, boundaries)
    for record in (yield from found(store, boundaries, {EffectiveState.LAPSED})):
        yield from suspect(store, record, clocks_of(record))
    for record in (yield from found(store, boundaries, {EffectiveState.UNKNOWN})):
        yield from resolve(store, record, Transition.RESOLVE_RELEASED, None, clocks_of(record))
    records = yield from found(store, boundaries)
    for record in records:
        yield from elapse(store, [record.key], max(0, record.tombstone_until - record.now) + _beyond(store))
    yield from sweep(store, len(records))
    return len(records)


def _beyond(store: OperableStore) -> Micros:
    return BEYOND + store.capabilities.margin


def found(
    store: OperableStore, boundaries: Collection[str] | None = None, standings: Iterable[EffectiveState] = ()
) -> Steps[list[Record]]:
    """Return every record that stands in one of these ways, once each."""
    records: dict[bytes, Record] = {}
    for boundary in [None] if boundaries is None else boundaries:
        cursor: str | None = None
        while True:
            page = yield from ask(store.scan(Filter(boundary, standings=frozenset(standings)), cursor, PAGE))
            records |= {record.key: record for record in page.records}
            cursor = page.cursor
            if cursor is None:
                break
    return list(records.values())


# ---------------------------------------------------------------- each kind of store


@age.register
def _memory(store: MemoryStore, keys: Collection[bytes], micros: Micros) -> Aged:
    def step(records: Records, now: Micros) -> None:
        for key in records.keys() & set(keys):
            record = records[key]
            records[key] = record._replace(**{name: getattr(record, name) - micros for name in INSTANTS})

    return [Ask(step, _nothing)]


@age.register
def _sql(store: SqlStore, keys: Collection[bytes], micros: Micros) -> Aged:
    """What an open transaction has locked is left as it is: its end writes every instant anew."""
    shift = ", ".join(f"{name} = {name} - {store.p('lease', 'micros')}" for name in INSTANTS)

    def statement(listed: str) -> str:
        free = f"SELECT r.key_hash FROM {TABLE} AS r WHERE r.key_hash IN ({listed}){store.SKIP_LOCKED}"
        return f"UPDATE {TABLE} SET {shift} WHERE key_hash IN ({free})"

    return _statements(store, keys, micros, statement)


@age.register
def _mysql(store: MysqlStore, keys: Collection[bytes], micros: Micros) -> Aged:
    """The same; MySQL looks into the table that it changes only through a derived one."""
    shift = ", ".join(f"r.{name} = r.{name} - :micros" for name in INSTANTS)

    def statement(listed: str) -> str:
        free = f"SELECT f.key_hash FROM {TABLE} AS f WHERE f.key_hash IN ({listed}) FOR UPDATE SKIP LOCKED"
        return f"UPDATE ({free}) AS free STRAIGHT_JOIN {TABLE} AS r ON r.key_hash = free.key_hash SET {shift}"

    return _statements(store, keys, micros, statement)


def _statements(
    store: SqlStore, keys: Collection[bytes], micros: Micros, statement: Callable[[str], str]
) -> Iterator[Ask[Any]]:
    ordered = sorted(keys)
    for start in range(0, len(ordered), AT_ONCE):
        some: Sequence[bytes] = ordered[start : start + AT_ONCE]
        listed = ", ".join(store.p("key", f"key{i}") for i in range(len(some)))
        params: dict[str, Any] = {f"key{i}": key for i, key in enumerate(some)}
        yield Ask(store.query(statement(listed), params | {"micros": micros}), _nothing)


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


@age.register
def _redis(store: RedisStore, keys: Collection[bytes], micros: Micros) -> Aged:
    """Native expiry goes with the record, and so does what is counted of the key for the quota of its scope."""
    named: list[str] = []

    def parse(answer: Any) -> None:
        named[:] = [part.decode() for part in answer or ()]

    for key in keys:
        yield Ask(Script("age", _AGE, (name_of(key),), (micros,)), parse)
        if named:
            tag = b"retrysafe:quota:{" + holder(*named).hex().encode() + b"}:"
            yield Ask(Script("age counted", _AGE_COUNTED, (tag + b"made", tag + b"kept"), (micros, key)), _nothing)


@age.register
def _dynamodb(store: DynamodbStore, keys: Collection[bytes], micros: Micros) -> Aged:
    """What is forgotten by then is deleted, as the service's time to live does some day."""
    record: Record | None = None

    def parse(found: Record | None) -> None:
        nonlocal record
        record = found

    for key in keys:
        reading = store.read(key)
        item = {name: reading.request.arguments[name] for name in ("TableName", "Key")}
        yield Ask(Call("update_item", {**item, **_shifted(micros)}, _CONDITION), _nothing)
        yield Ask(reading.request, lambda answer, reading=reading: parse(reading.parse(answer)))  # type: ignore[misc]
        if record is not None and record.effective_state is EffectiveState.FORGOTTEN:
            yield Ask(Call("delete_item", item), _nothing)


_CONDITION = frozenset({"ConditionalCheckFailedException"})


def _shifted(micros: Micros) -> dict[str, Any]:
    return {
        "UpdateExpression": "SET " + ", ".join(f"#{name} = #{name} - :by" for name in INSTANTS),
        "ConditionExpression": "attribute_exists(key_hash)",
        "ExpressionAttributeNames": {f"#{name}": STORED_AS.get(name, name) for name in INSTANTS},
        "ExpressionAttributeValues": {":by": {"N": str(micros)}},
    }


def _nothing(answer: Any) -> None:
    return None
