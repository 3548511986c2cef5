"""DynamoDB: conditional writes; a condition that fails answers with the item in the way.

DynamoDB has no clock to compare with, so instants come from a clock that is handed in: the service's own, as far
as its answers tell it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from retrysafe.backends.dynamodb.requests import Answer, Call
from retrysafe.backends.dynamodb.service_clock import Sightings
from retrysafe.backends.dynamodb.table import Table
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.migrating import Migration
from retrysafe.protocol.records import (
    ClaimRequest,
    Clocks,
    EffectiveState,
    Filter,
    Finding,
    Micros,
    Ownership,
    Page,
    QuotaRefusal,
    Record,
    State,
    StoredResult,
    Tally,
)
from retrysafe.protocol.requests import Ask, Steps
from retrysafe.protocol.store import Capabilities
from retrysafe.protocol.transitions import (
    RULES,
    Transition,
    first_claim,
    kept_fingerprint,
    next_token,
    started_before,
    state_of,
)

MARGIN: Micros = 2_000_000
LARGEST_ITEM = 400 * 1024
RESERVED = 16 * 1024
"""Bytes of an item that are kept free for everything but its result."""
_GROWTH = 512
"""Bytes that settling may add to the fixed part: the kind of its result, and the time to live."""
_EVALUATED = 1000
"""The smallest number of items that one page of a scan looks at."""

_TEXTS = ("boundary", "scope", "operation", "state", "attempt", "effects")
_NUMBERS = ("token", "attempts", "lease_until", "created", "updated", "expires", "tombstone_until", "version")
STORED_AS: Mapping[str, str] = {"tombstone_until": "forget"}
"""Attributes that items have had under another name since 0.1."""
_HEAD = ("key_hash", *_TEXTS, *_NUMBERS, "fingerprint")
_CONDITION = frozenset({"ConditionalCheckFailedException"})
_SETTLED = "#state IN (:completed, :failed, :released)"
_LIVE = "#expires > :now AND #tombstone_until > :now"
_STANDING: dict[EffectiveState, str] = {
    EffectiveState.RUNNING: "#state = :running AND #lease_until > :now",
    EffectiveState.LAPSED: "#state = :running AND #lease_until <= :now",
    EffectiveState.UNKNOWN: "#state = :unknown",
    EffectiveState.COMPLETED: f"#state = :completed AND {_LIVE}",
    EffectiveState.FAILED: f"#state = :failed AND {_LIVE}",
    EffectiveState.RELEASED: f"#state = :released AND {_LIVE}",
    EffectiveState.EXPIRED: f"{_SETTLED} AND #expires <= :now AND #tombstone_until > :now",
    EffectiveState.FORGOTTEN: f"{_SETTLED} AND #tombstone_until <= :now",
}


class Clock(Protocol):
    """The service's clock: never ahead of it, and behind by at most ``error``."""

    @property
    def corrected(self) -> bool:
        """True if the service has told its time."""
        ...

    @property
    def error(self) -> Micros:
        """By how much the service's clock may be ahead."""
        ...

    def local(self) -> Micros:
        """This machine's own time, which is never set."""
        ...

    def __call__(self) -> Micros:
        """The time."""
        ...


class DynamodbStore:
    """Records as items of one table with the binary partition key ``key_hash``."""

    capabilities = Capabilities(
        name="dynamodb",
        transactions=False,
        waits_in_transaction=False,
        clock="the service's, as the Date of its answers tells it; others wait 2 s longer for a lease than its holder",
        durability="every acknowledged write, in three places of a region",
        failover="nothing within a region; a global table's other regions may not have the last writes",
        cannot_survive=(
            "claims in two regions of a global table: its replicas do not see each other's conditions",
            "a point-in-time restore: records since then are gone, and what they guarded may run again",
            "servers of the service with clocks over 2 s apart: a lease may be taken over early; its holder is fenced",
        ),
        choose_when="when you run on AWS without a database of your own to share a transaction with",
        largest_result=LARGEST_ITEM - RESERVED,
        margin=MARGIN,
    )

    def __init__(self, table: str, clock: Clock, address: str) -> None:
        self._name = table
        self._clock = clock
        self._sightings = Sightings()
        self._table = Table(table, address)

    # ------------------------------------------------------------ claims

    def admit(self, request: ClaimRequest) -> list[Ask[QuotaRefusal | None]]:
        """Nothing: items of a scope cannot be counted without reading the whole table."""
        return []

    def claim(self, request: ClaimRequest) -> Ask[Record | QuotaRefusal | None]:
        """Write a first record, or return the one that is there."""
        record = self._safely(first_claim(request, self._clock()))
        update = _Update("attribute_not_exists(key_hash)")
        update.put(record)
        _refuse_too_large(update)

        def parse(answer: Answer) -> Record | None:
            if answer.refused is None:
                return record._replace(now=self._clock())
            return self._record(answer.response.get("Item"))

        return Ask(self._call(request.key, update, tell=True), parse)

    def take(self, request: ClaimRequest, seen: Record) -> Ask[Record | None]:
        """Claim a record that is as seen and claimable."""
        now = self._clock()
        token, before = next_token(seen.token, now), started_before(seen)
        record = self._safely(first_claim(request, now))._replace(
            fingerprint=kept_fingerprint(request, seen),
            token=token,
            attempts=before + 1,
            created=seen.created if before else token,
            version=seen.version + 1,
        )
        update = _Update(_seen(Transition.CLAIM))
        update.put(record)
        _refuse_too_large(update)
        update.given(attempt=seen.attempt, version=seen.version, now=self._now_for(seen))

        def parse(answer: Answer) -> Record | None:
            return record._replace(now=self._clock()) if answer.refused is None else None

        return Ask(self._call(request.key, update), parse)

    def settle(self, held: Ownership, event: Transition, result: StoredResult | None) -> Ask[bool]:
        """Settle the owner's record."""
        update = _Update(_owned(event))
        update.given(attempt=held.attempt, token=held.token)
        return self._settle(held.key, update, event, result, held.clocks, self._clock())

    def resolve(self, seen: Record, event: Transition, result: StoredResult | None, clocks: Clocks) -> Ask[bool]:
        """Settle a record that is as seen."""
        update = _Update(_seen(event))
        update.given(attempt=seen.attempt, version=seen.version)
        return self._settle(seen.key, update, event, result, clocks, self._now_for(seen))

    def renew(self, held: Sequence[Ownership]) -> list[Ask[set[bytes]]]:
        """Extend the leases, one write per key."""
        return [self._renew(one) for one in held]

    def read(self, key: bytes) -> Ask[Record | None]:
        """Return the record, by a consistent read."""
        arguments = {"TableName": self._name, "Key": _key(key), "ConsistentRead": True}
        return Ask(Call("get_item", arguments), lambda answer: self._record(answer.response.get("Item")))

    def _settle(
        self,
        key: bytes,
        update: _Update,
        event: Transition,
        result: StoredResult | None,
        clocks: Clocks,
        judged_at: Micros,
    ) -> Ask[bool]:
        target = RULES[event].target
        assert target is not None
        update.given(now=judged_at)
        update.set(state=target.value)
        update.written(self._clock(), clocks, settled=target is not State.UNKNOWN)
        update.put_result(result)
        return Ask(self._call(key, update), lambda answer: answer.refused is None)

    def _renew(self, held: Ownership) -> Ask[set[bytes]]:
        now = self._clock()
        update = _Update(_owned(Transition.RENEW))
        update.given(attempt=held.attempt, token=held.token, now=now)
        update.set(lease_until=now + held.clocks.lease + held.clocks.margin + self._excess())
        update.written(now, held.clocks, settled=False)
        return Ask(self._call(held.key, update), lambda answer: {held.key} if answer.refused is None else set())

    def _call(self, key: bytes, update: _Update, *, tell: bool = False) -> Call:
        """``tell``: a condition that fails answers with the item in the way, which saves reading it."""
        arguments: dict[str, Any] = {"TableName": self._name, "Key": _key(key), **update.arguments()}
        if tell:
            arguments["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        return Call("update_item", arguments, _CONDITION)

    # ------------------------------------------------------------ the clock

    def _excess(self) -> Micros:
        """The time by which a lease must be longer, because this clock may be further behind than the margin covers."""
        return max(0, self._clock.error - MARGIN)

    def _safely(self, record: Record) -> Record:
        return record._replace(lease_until=record.lease_until + self._excess())

    def _now_for(self, seen: Record) -> Micros:
        """The time at which the condition of a write judges what was seen."""
        return self._clock() if self._clock.corrected else seen.now

    def _record(self, item: Mapping[str, Any] | None) -> Record | None:
        """Without the service's time, a running record is judged by how long it has been seen unchanged."""
        if not item:
            return None
        record = _record(item, self._clock())
        if self._clock.corrected or record.state is not State.RUNNING:
            return record
        unchanged = self._sightings.unchanged_for(record.key, record.version, self._clock.local())
        return record._replace(now=record.updated + unchanged)

    # ------------------------------------------------------------ for operators

    def sweep(self, limit: int) -> Iterable[Ask[int]]:
        """Do by hand what the time to live does: for a table without one, and items that have lost theirs.

        It reads the whole table, so it is for after a restore or a copy, not for every hour.
        """
        cleared = 0
        start: Mapping[str, Any] | None = None

        def found(answer: Answer) -> int:
            nonlocal start
            start = answer.response.get("LastEvaluatedKey")
            records.extend(_record(item, self._clock()) for item in answer.response["Items"])
            return 0

        def count(answer: Answer) -> int:
            nonlocal cleared
            cleared += answer.refused is None
            return int(answer.refused is None)

        while True:
            records: list[Record] = []
            yield Ask(self._leftovers(start), found)
            for record in records:
                if cleared >= limit:
                    return
                yield Ask(self._clear(record), count)
            if start is None:
                return

    def _leftovers(self, start: Mapping[str, Any] | None) -> Call:
        condition = f"(({_STANDING[EffectiveState.FORGOTTEN]}) OR ({_SETTLED} AND attribute_not_exists(#ttl)))"
        return self._scan(condition, {"now": self._clock()}, start, None)

    def _clear(self, seen: Record) -> Call:
        now = self._clock()
        forgotten = seen.effective_state_at(now) is EffectiveState.FORGOTTEN
        update = _Update(_seen(Transition.SWEEP) if forgotten else f"#version = :version AND {_SETTLED}")
        update.given(attempt=seen.attempt, version=seen.version, now=now)
        if not forgotten:
            update.set(ttl=_ttl(seen.tombstone_until))
        operation = "delete_item" if forgotten else "update_item"
        return Call(operation, {"TableName": self._name, "Key": _key(seen.key), **update.arguments()}, _CONDITION)

    def forgotten(self, limit: int) -> list[Ask[list[Record]]]:
        """None: forgotten items expire natively, when the service gets to it."""
        return []

    def remove(self, seen: Sequence[Record]) -> list[Ask[int]]:
        """Nothing to remove."""
        return []

    def scan(self, wanted: Filter, cursor: str | None, limit: int) -> Ask[Page]:
        """Return a page of records in the order of the table's partitions."""
        given = {
            name: value for name in ("boundary", "operation", "scope") if (value := getattr(wanted, name)) is not None
        }
        conditions = [f"#{name} = :{name}" for name in given]
        if wanted.states:
            conditions.append(_any_of(_as_written(wanted.states) & _STANDING.keys()))
        start = None if cursor is None else _key(bytes.fromhex(cursor))
        evaluated = max(limit, _EVALUATED) if conditions else limit
        call = self._scan(" AND ".join(conditions), {**given, "now": self._clock()}, start, evaluated)

        def parse(answer: Answer) -> Page:
            found = (_record(item, self._clock()) for item in answer.response["Items"])
            records = [record for record in found if wanted.takes(record)]
            if len(records) > limit:
                return Page(records[:limit], records[limit - 1].key.hex())
            last = answer.response.get("LastEvaluatedKey")
            return Page(records, None if last is None else bytes(last["key_hash"]["B"]).hex())

        return Ask(call, parse)

    def _scan(
        self, condition: str, given: Mapping[str, Any], start: Mapping[str, Any] | None, most: int | None
    ) -> Call:
        projection = ", ".join(f"#{name}" for name in _HEAD)
        names, values = _placeholders(condition, projection)
        arguments: dict[str, Any] = {
            "TableName": self._name,
            "ConsistentRead": True,
            "ProjectionExpression": projection,
            "ExpressionAttributeNames": names,
        }
        if condition:
            arguments["FilterExpression"] = condition
            arguments["ExpressionAttributeValues"] = _filled(values, given)
        if start is not None:
            arguments["ExclusiveStartKey"] = start
        if most is not None:
            arguments["Limit"] = most
        return Call("scan", arguments)

    def tally(self) -> list[Ask[list[Tally]]]:
        """Counting takes a scan."""
        return []

    def examine(self) -> list[Ask[list[Finding]]]:
        """Look at the table's settings, and whether the service tells its time."""
        return [*self._table.examine(), Ask(self._table.backups(), self._backups_and_clock)]

    def _backups_and_clock(self, answer: Answer) -> list[Finding]:
        found = self._table.backup_findings(answer)
        if self._clock.corrected:
            behind = self._clock.error / 1e6
            return [*found, Finding("fact", "clock", f"corrected by the service's Date, to within {behind:.1f} s")]
        text = (
            "The answers carry no Date, so clocks cannot be corrected: a lease is taken over only by a process that "
            "has seen it unchanged for its whole length, and windows end by the clock of each machine."
        )
        return [*found, Finding("warn", "clock", text)]

    def create(self) -> Steps[list[Migration]]:
        """Create the table and switch its time to live on, as far as they are missing."""
        return self._table.create()


class _Update:
    """One conditional write in the making."""

    def __init__(self, condition: str) -> None:
        self._condition = condition
        self.values: dict[str, Any] = {}
        self._sets: list[str] = []
        self._removes: list[str] = []

    def set(self, **fields: Any) -> None:
        for name, value in fields.items():
            self.values[f"set_{name}"] = value
            self._sets.append(f"#{name} = :set_{name}")

    def given(self, **values: Any) -> None:
        self.values |= values

    def put(self, record: Record) -> None:
        fields = record._asdict()
        self.set(**{name: fields[name] for name in (*_TEXTS, *_NUMBERS, "fingerprint")})
        self.put_result(None)
        self._removes.append("#ttl")

    def put_result(self, result: StoredResult | None) -> None:
        if result is None or result.body is None:
            self._removes.append("#result")
        else:
            self.set(result=result.body)
        if result is None:
            self._removes += ["#media_type", "#codec_version"]
        else:
            self.set(media_type=result.media_type, codec_version=result.codec_version)

    def written(self, now: Micros, clocks: Clocks, *, settled: bool) -> None:
        self.set(updated=now, expires=now + clocks.window, tombstone_until=now + clocks.memory)
        self.values["one"] = 1
        self._sets.append("#version = #version + :one")
        if settled:
            self.set(ttl=_ttl(now + clocks.memory))
        else:
            self._removes.append("#ttl")

    def arguments(self) -> dict[str, Any]:
        removes = f" REMOVE {', '.join(self._removes)}" if self._removes else ""
        update = f"SET {', '.join(self._sets)}{removes}" if self._sets else ""
        names, values = _placeholders(update, self._condition)
        arguments = {
            "ConditionExpression": self._condition,
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": _filled(values, self.values),
        }
        return {"UpdateExpression": update, **arguments} if update else arguments


_PLACEHOLDER = re.compile(r"([#:])(\w+)")
_STATES = {state.value: state.value for state in State}


@lru_cache(maxsize=256)
def _placeholders(*expressions: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """The attribute names that expressions use, and their values' names: neither more nor fewer may be given."""
    found = [match for expression in expressions for match in _PLACEHOLDER.findall(expression)]
    names = {f"#{name}": STORED_AS.get(name, name) for mark, name in found if mark == "#"}
    return names, tuple(dict.fromkeys(name for mark, name in found if mark == ":"))


def _filled(names: Iterable[str], values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {f":{name}": _value(values[name] if name in values else _STATES[name]) for name in names}


@lru_cache(maxsize=64)
def _allowed(event: Transition) -> str:
    return _any_of(RULES[event].sources)


def _any_of(standings: Iterable[EffectiveState]) -> str:
    """One of these; DynamoDB refuses parentheses within parentheses around one condition."""
    conditions = [f"({_STANDING[standing]})" for standing in sorted(standings)]
    return conditions[0] if len(conditions) == 1 else f"({' OR '.join(conditions)})"


def _as_written(reported: frozenset[EffectiveState]) -> frozenset[EffectiveState]:
    """The effective states of records that are reported in one of these."""
    return reported | {EffectiveState.LAPSED} if EffectiveState.UNKNOWN in reported else reported


def _owned(event: Transition) -> str:
    return f"#attempt = :attempt AND #token = :token AND {_allowed(event)}"


def _seen(event: Transition) -> str:
    return f"#attempt = :attempt AND #version = :version AND {_allowed(event)}"


def _key(key: bytes) -> dict[str, Any]:
    return {"key_hash": {"B": key}}


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bytes):
        return {"B": value}
    return {"N": str(value)} if isinstance(value, int) else {"S": str(value)}


def _ttl(tombstone_until: Micros) -> int:
    """The first whole second at which the item may go.

    Every read judges by ``tombstone_until``: removal is late by days.
    """
    return tombstone_until // 1_000_000 + 1


def size_of(fields: Mapping[str, Any]) -> int:
    """The size of an item with these attributes, by the service's rules: names and values count."""
    return sum(len(name) + _size(value) for name, value in fields.items())


def _size(value: Any) -> int:
    if isinstance(value, bytes):
        return len(value)
    return len(str(value)) // 2 + 2 if isinstance(value, int) else len(str(value).encode())


def _refuse_too_large(update: _Update) -> None:
    """Before any effect: what does not fit now would not fit when the work is done."""
    fields = {name.removeprefix("set_"): value for name, value in update.values.items()}
    size = size_of({"key_hash": bytes(32), **fields})
    if size > RESERVED - _GROWTH:
        raise ConfigurationError(
            f"The record takes {size} bytes without its result, and {RESERVED - _GROWTH} are kept for that in a "
            "DynamoDB item. Shorten scope=, or name fewer parts in payload=."
        )


def _record(item: Mapping[str, Any], now: Micros) -> Record:
    fields: dict[str, Any] = {name: item[name]["S"] for name in _TEXTS}
    fields |= {name: int(item[STORED_AS.get(name, name)]["N"]) for name in _NUMBERS}
    fields["state"] = state_of(fields["state"])
    result = None
    if "media_type" in item:
        body = item.get("result", {}).get("B")
        result = StoredResult(body, item["media_type"]["S"], int(item["codec_version"]["N"]))
    key, fingerprint = bytes(item["key_hash"]["B"]), bytes(item["fingerprint"]["B"])
    return Record(key=key, fingerprint=fingerprint, result=result, now=now, **fields)
