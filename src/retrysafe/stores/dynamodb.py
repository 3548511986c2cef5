"""DynamoDB: conditional writes; a condition that fails answers with the item in the way.

DynamoDB has no clock to compare with, so instants come from a clock that is handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from retrysafe.core.transitions import RULES, Event, first_claim, kept_fingerprint, next_token, started_before
from retrysafe.ports import Ask, Call, Capabilities, Item
from retrysafe.types import Clocks, Finding, Held, Micros, Record, Standing, State, Stored, Tally, Want

_TEXTS = ("boundary", "scope", "operation", "state", "attempt", "effects")
_NUMBERS = ("token", "attempts", "lease_until", "created", "updated", "expires", "forget", "version")
_SETTLED = "#state IN (:completed, :failed, :released)"
_LIVE = "#expires > :now AND #forget > :now"
_STANDING: dict[Standing, str] = {
    Standing.RUNNING: "#state = :running AND #lease_until > :now",
    Standing.LAPSED: "#state = :running AND #lease_until <= :now",
    Standing.UNKNOWN: "#state = :unknown",
    Standing.COMPLETED: f"#state = :completed AND {_LIVE}",
    Standing.FAILED: f"#state = :failed AND {_LIVE}",
    Standing.RELEASED: f"#state = :released AND {_LIVE}",
    Standing.EXPIRED: f"{_SETTLED} AND #expires <= :now AND #forget > :now",
    Standing.FORGOTTEN: f"{_SETTLED} AND #forget <= :now",
}


class DynamodbStore:
    """Records as items of one table with the binary partition key ``key_hash``."""

    capabilities = Capabilities(
        name="dynamodb",
        transactions=False,
        waits_in_transaction=False,
        clock="this machine",
        durability="every acknowledged write",
        failover="nothing within a region; a global table's other regions may not have the last writes",
        cannot_survive=(
            "claims in two regions of a global table: its replicas do not see each other's conditions",
            "a point-in-time restore: records since then are gone, and what they guarded may run again",
        ),
        choose_when="you run on AWS without a database of your own to share a transaction with",
    )

    def __init__(self, table: str, clock: Callable[[], Micros]) -> None:
        self.table = table
        self._clock = clock

    def claim(self, want: Want) -> Ask[Record | None]:
        """Write a first record, or return the one that is there."""
        record = first_claim(want, self._clock())
        update = _Update(self.table, want.key, "attribute_not_exists(key_hash)")
        update.put(record)
        return Ask(update.call(), self._reader(want.key))

    def take(self, want: Want, seen: Record) -> Ask[Record | None]:
        """Claim a record that is as seen and claimable."""
        now = self._clock()
        update = _Update(self.table, want.key, _seen(Event.CLAIM))
        update.put(
            first_claim(want, now)._replace(
                fingerprint=kept_fingerprint(want, seen),
                token=next_token(seen.token, now),
                attempts=started_before(seen) + 1,
                created=seen.created,
                version=seen.version + 1,
            )
        )
        update.given(attempt=seen.attempt, version=seen.version, now=now)
        read = self._reader(want.key)
        return Ask(update.call(), lambda answer: read(answer) if answer.accepted else None)

    def settle(self, held: Held, event: Event, result: Stored | None) -> Ask[bool]:
        """Settle the owner's record."""
        update = _Update(self.table, held.key, _owned(event))
        update.given(attempt=held.attempt, token=held.token)
        return self._settle(update, event, result, held.clocks)

    def resolve(self, seen: Record, event: Event, result: Stored | None, clocks: Clocks) -> Ask[bool]:
        """Settle a record that is as seen."""
        update = _Update(self.table, seen.key, _seen(event))
        update.given(attempt=seen.attempt, version=seen.version)
        return self._settle(update, event, result, clocks)

    def renew(self, held: Sequence[Held]) -> list[Ask[set[bytes]]]:
        """Extend the leases, one write per key."""
        return [self._renew(one) for one in held]

    def read(self, key: bytes) -> Ask[Record | None]:
        """Return the record, by a consistent read."""
        arguments = {"TableName": self.table, "Key": {"key_hash": {"B": key}}, "ConsistentRead": True}
        return Ask(Call("get_item", arguments), self._reader(key))

    def sweep(self, limit: int) -> list[Ask[int]]:
        """Nothing to do: forgotten items expire natively, by the attribute ``ttl``."""
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

    def _settle(self, update: _Update, event: Event, result: Stored | None, clocks: Clocks) -> Ask[bool]:
        target = RULES[event].target
        assert target is not None
        now = self._clock()
        update.given(now=now)
        update.set(state=target.value)
        update.written(now, clocks, settled=target is not State.UNKNOWN)
        update.put_result(result)
        return Ask(update.call(), _accepted)

    def _renew(self, held: Held) -> Ask[set[bytes]]:
        now = self._clock()
        update = _Update(self.table, held.key, _owned(Event.RENEW))
        update.given(attempt=held.attempt, token=held.token, now=now)
        update.set(lease_until=now + held.clocks.lease)
        update.written(now, held.clocks, settled=False)
        return Ask(update.call(), lambda answer: {held.key} if answer.accepted else set())

    def _reader(self, key: bytes) -> Callable[[Item], Record | None]:
        def record(answer: Item) -> Record | None:
            return None if not answer.item else _record(key, answer.item, self._clock())

        return record


class _Update:
    """One conditional UpdateItem in the making."""

    def __init__(self, table: str, key: bytes, condition: str) -> None:
        self._table = table
        self._key = key
        self._condition = condition
        self._values: dict[str, Any] = {}
        self._sets: list[str] = []
        self._removes: list[str] = []

    def set(self, **fields: Any) -> None:
        for name, value in fields.items():
            self._values[f":set_{name}"] = _value(value)
            self._sets.append(f"#{name} = :set_{name}")

    def given(self, **values: Any) -> None:
        self._values |= {f":{name}": _value(value) for name, value in values.items()}

    def put(self, record: Record) -> None:
        fields = record._asdict()
        self.set(**{name: fields[name] for name in (*_TEXTS, *_NUMBERS, "fingerprint")})
        self.put_result(None)
        self._removes.append("#ttl")

    def put_result(self, result: Stored | None) -> None:
        if result is None or result.body is None:
            self._removes.append("#result")
        else:
            self.set(result=result.body)
        if result is None:
            self._removes += ["#media_type", "#codec_version"]
        else:
            self.set(media_type=result.media_type, codec_version=result.codec_version)

    def written(self, now: Micros, clocks: Clocks, *, settled: bool) -> None:
        self.set(updated=now, expires=now + clocks.window, forget=now + clocks.memory)
        self._values[":one"] = _value(1)
        self._sets.append("#version = #version + :one")
        if settled:
            self.set(ttl=(now + clocks.memory) // 1_000_000 + 1)
        else:
            self._removes.append("#ttl")

    def call(self) -> Call:
        removes = f" REMOVE {', '.join(self._removes)}" if self._removes else ""
        update = f"SET {', '.join(self._sets)}{removes}"
        text = f"{update} {self._condition}"
        states = {f":{state}": _value(state.value) for state in State}
        values = {name: value for name, value in {**states, **self._values}.items() if _uses(text, name)}
        names = {f"#{name}": name for name in (*_TEXTS, *_NUMBERS, *_OTHERS) if _uses(text, f"#{name}")}
        return Call(
            "update_item",
            {
                "TableName": self._table,
                "Key": {"key_hash": {"B": self._key}},
                "UpdateExpression": update,
                "ConditionExpression": self._condition,
                "ExpressionAttributeNames": names,
                "ExpressionAttributeValues": values,
                "ReturnValues": "ALL_NEW",
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            },
        )


_OTHERS = ("fingerprint", "result", "media_type", "codec_version", "ttl")


def _uses(text: str, name: str) -> bool:
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        if end == len(text) or not (text[end].isalnum() or text[end] == "_"):
            return True
        at = text.find(name, end)
    return False


def _allowed(event: Event) -> str:
    conditions = [f"({_STANDING[source]})" for source in sorted(RULES[event].sources)]
    return conditions[0] if len(conditions) == 1 else f"({' OR '.join(conditions)})"


def _owned(event: Event) -> str:
    return f"#attempt = :attempt AND #token = :token AND {_allowed(event)}"


def _seen(event: Event) -> str:
    return f"#attempt = :attempt AND #version = :version AND {_allowed(event)}"


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bytes):
        return {"B": value}
    return {"N": str(value)} if isinstance(value, int) else {"S": str(value)}


def _accepted(answer: Item) -> bool:
    return answer.accepted


def _record(key: bytes, item: Mapping[str, Any], now: Micros) -> Record:
    fields: dict[str, Any] = {name: item[name]["S"] for name in _TEXTS}
    fields |= {name: int(item[name]["N"]) for name in _NUMBERS}
    fields["state"] = State(fields["state"])
    result = None
    if "media_type" in item:
        body = item.get("result", {}).get("B")
        result = Stored(body, item["media_type"]["S"], int(item["codec_version"]["N"]))
    return Record(key=key, fingerprint=item["fingerprint"]["B"], result=result, now=now, **fields)
