"""DynamoDB: conditional writes; a condition that fails answers with the item in the way.

DynamoDB has no clock to compare with, so instants come from a clock that is handed in: the service's own, as far
as its answers tell it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from retrysafe.backends.counted_keys import LARGEST_QUOTA, QUOTAS, KeyCountingStore
from retrysafe.backends.documents import FIELDS, KEY, Document, ScanPage, Selection, Write
from retrysafe.backends.dynamodb.expressions import CONDITION, document_of, express, item_of, ttl_of
from retrysafe.backends.dynamodb.requests import Answer, Call
from retrysafe.backends.dynamodb.table import STEP, TTL, Table, beside
from retrysafe.backends.service_clock import Clock, finding_of
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.migrating import Migration
from retrysafe.protocol.records import EffectiveState, Finding, Micros
from retrysafe.protocol.requests import Ask, Program
from retrysafe.protocol.standing import SETTLED, STANDING, Standing
from retrysafe.protocol.store import Capabilities

MARGIN: Micros = 2_000_000
LARGEST_ITEM = 400 * 1024
RESERVED = 16 * 1024
"""Bytes of an item that are kept free for everything but its result."""
_GROWTH = 512
"""Bytes that settling may add to the fixed part: the kind of its result, and the time to live."""
_EVALUATED = 1000
"""The smallest number of items that one page of a scan looks at."""

_VACANT = "attribute_not_exists(key_hash)"
_PROJECTION = ", ".join(f"#{name}" for name in (KEY, *FIELDS))


class DynamodbStore(KeyCountingStore):
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
        stand_in="DynamoDB Local",
        quotas=QUOTAS,
        largest_quota=LARGEST_QUOTA,
    )

    def __init__(self, table: str, clock: Clock, address: str) -> None:
        super().__init__(clock, address)
        self.table = table
        self._table = Table(table, self._migrate)

    # ------------------------------------------------------------ documents

    def render(self, write: Write) -> Call:
        """An update of the item, or its deletion; a first claim that fails answers with the item in the way."""
        condition = _condition(None if write.required is None else tuple(write.required), write.allowed)
        update, given = _update(write)
        given |= {**(write.required or {}), "now": write.judged_at}
        expressions = express(given, ConditionExpression=condition, UpdateExpression=update)
        arguments = {"TableName": self.table, "Key": item_of({KEY: write.key}), **expressions}
        if write.required is None:
            arguments["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        return Call("delete_item" if write.sets is None else "update_item", arguments, CONDITION)

    def find(self, key: bytes) -> Call:
        return Call("get_item", {"TableName": self.table, "Key": item_of({KEY: key}), "ConsistentRead": True})

    def select(self, selection: Selection) -> Call:
        standing = [_any_of(selection.standing)] if selection.standing else []
        if selection.lasting:
            standing = [f"({' OR '.join([*standing, f'({_standing(SETTLED)} AND attribute_not_exists(#{TTL}))'])})"]
        condition = " AND ".join([*(f"#{name} = :{name}" for name in selection.equal), *standing])
        given = {**selection.equal, "now": self.clock()}
        expressions = express(given, ProjectionExpression=_PROJECTION, FilterExpression=condition)
        arguments: dict[str, Any] = {"TableName": self.table, "ConsistentRead": True, **expressions}
        if selection.start is not None:
            arguments["ExclusiveStartKey"] = item_of({KEY: selection.start})
        if selection.limit is not None:  # of items that are looked at, not of those that are found
            arguments["Limit"] = max(selection.limit, _EVALUATED) if condition else selection.limit
        return Call("scan", arguments)

    def is_done(self, answer: Answer) -> bool:
        return answer.refused is None

    def document(self, answer: Answer) -> Document | None:
        item = answer.response.get("Item")
        return document_of(item) if item else None

    def page(self, answer: Answer) -> ScanPage:
        last = answer.response.get("LastEvaluatedKey")
        return ScanPage(map(document_of, answer.response["Items"]), None if last is None else bytes(last[KEY]["B"]))

    # ------------------------------------------------------------ the table

    def examine(self) -> list[Ask[list[Finding]]]:
        """Look at the table's settings, and whether the service tells its time."""
        return [*self._table.examine(), Ask(self._table.backups(), self._backups_and_clock)]

    def _backups_and_clock(self, answer: Answer) -> list[Finding]:
        return [*self._table.backup_findings(answer), finding_of(self.clock)]

    def create(self) -> Program[list[Migration]]:
        done = yield from self._table.create(1)
        return done + (yield from Table(beside(self.table), self._migrate, STEP).create(3))


def _update(write: Write) -> tuple[str, dict[str, Any]]:
    """The expression of an update, and its values; empty for a deletion."""
    if write.sets is None:
        return "", {}
    if write.is_whole:
        _refuse_too_large(write.sets)
    changed, removed = dict(write.sets), list(write.removes)
    if write.settled:
        changed[TTL] = ttl_of(changed["tombstone_until"])
    else:
        removed.append(TTL)
    sets = [f"#{name} = :set_{name}" for name in changed] + ["#version = #version + :one"] * write.raises
    removes = f" REMOVE #{', #'.join(removed)}" if removed else ""
    return f"SET {', '.join(sets)}{removes}", {"one": 1} | {f"set_{name}": value for name, value in changed.items()}


@lru_cache(maxsize=256)
def _condition(required: tuple[str, ...] | None, allowed: frozenset[EffectiveState]) -> str:
    if required is None:
        return _VACANT
    return " AND ".join([*(f"#{name} = :{name}" for name in required), *([_any_of(allowed)] if allowed else [])])


def _any_of(standings: Iterable[EffectiveState]) -> str:
    """One of these; DynamoDB refuses parentheses within parentheses around one condition."""
    conditions = [f"({_standing(STANDING[one])})" for one in sorted(standings)]
    return conditions[0] if len(conditions) == 1 else f"({' OR '.join(conditions)})"


def _standing(standing: Standing) -> str:
    one, *more = (f":{state.value}" for state in standing.states)
    states = f"#state IN ({', '.join([one, *more])})" if more else f"#state = {one}"
    over, ahead = (f"#{name} <= :now" for name in standing.over), (f"#{name} > :now" for name in standing.ahead)
    return " AND ".join([states, *over, *ahead])


def size_of(fields: Mapping[str, Any]) -> int:
    """The size of an item with these attributes, by the service's rules: names and values count."""
    return sum(len(name) + _size(value) for name, value in fields.items())


def _size(value: Any) -> int:
    if isinstance(value, bytes):
        return len(value)
    return len(str(value)) // 2 + 2 if isinstance(value, int) else len(str(value).encode())


def _refuse_too_large(fields: Mapping[str, Any]) -> None:
    """Before any effect: what does not fit now would not fit when the work is done."""
    size = size_of({KEY: bytes(32), **fields})
    if size > RESERVED - _GROWTH:
        raise ConfigurationError(
            f"The record takes {size} bytes without its result, and {RESERVED - _GROWTH} are kept for that in a "
            "DynamoDB item. Shorten scope=, or name fewer parts in payload=."
        )
