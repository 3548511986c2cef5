"""Steps in a table beside the records': the same partition key, then the generation and the step.

A row is written in one transaction with a look at its record, so that it is its claim's. While the work is under way
rows have no time to live; once it is settled, they get that of their record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from retrysafe.backends.documents import KEY, RESULT, Document, result_in
from retrysafe.backends.dynamodb.expressions import CONDITION, document_of, express, item_of, ttl_of
from retrysafe.backends.dynamodb.requests import Answer, Call
from retrysafe.backends.dynamodb.store import DynamodbStore
from retrysafe.backends.dynamodb.table import MISSING, STEP, TTL, beside
from retrysafe.protocol.records import Micros, State
from retrysafe.protocol.requests import Ask, nothing
from retrysafe.protocol.steps import At, FoundRow, StepRow, StepState, Work

_HELD = "#attempt = :attempt AND #token = :token AND #state IN (:running, :unknown)"
_OPEN = "#created = :generation AND #state IN (:running, :unknown, :released)"
_FIRST = f"attribute_not_exists({KEY})"
_WAS = "#state = :before AND #token"


class DynamodbSteps:
    """Rows as items."""

    def __init__(self, store: DynamodbStore) -> None:
        self._store = store
        self._rows = beside(store.table)

    def rows(self, work: Work) -> Iterator[Ask[list[StepRow]]]:
        return self._pages("query", self._of(work), lambda found: [_row(one) for one in found])

    def insert(self, work: Work, row: StepRow, *, joined: bool) -> Ask[bool]:
        return self._write(work, self._put(work, row, _FIRST), self._look(work, _HELD))

    def change(self, work: Work, row: StepRow, before: StepState) -> Ask[bool]:
        put = self._put(work, row, f"{_WAS} <= :mine", before)
        return self._write(work, put, self._look(work, _HELD) if row.state is StepState.UNDONE else None)

    def drop(self, work: Work, at: At) -> Ask[bool]:
        given = {"before": StepState.STARTED, "mine": work.token}
        condition = express(given, ConditionExpression=f"{_WAS} = :mine")
        return Ask(Call("delete_item", {**self._item(work, at), **condition}, CONDITION), _is_done)

    def find(self, work: Work, at: At) -> Ask[FoundRow]:
        def parse(answer: Answer) -> FoundRow:
            row, record = (document_of(found.get("Item", {})) for found in answer.response["Responses"])
            return FoundRow(_row(row) if row else None, held=_is_held(work, record))

        items = [{"Get": self._item(work, at)}, {"Get": self._record(work.key)}]
        return Ask(Call("transact_get_items", {"TransactItems": items}), parse)

    def signal(self, work: Work, row: StepRow) -> Ask[bool]:
        look = {**self._record(work.key), **express({"generation": work.generation}, ConditionExpression=_OPEN)}
        return self._write(work, self._put(work, row, _FIRST), look)

    def conclude(self, work: Work) -> Iterator[Ask[None]]:
        """Give the rows of settled work the time to live of their record."""
        until: int | None = None
        steps: list[bytes] = []

        def look(record: Document) -> None:
            nonlocal until
            if record.get("created") == work.generation and record["state"] in (State.COMPLETED, State.FAILED):
                until = ttl_of(record["tombstone_until"])

        yield self._read(work.key, look)
        if until is None:
            return
        yield from self._pages("query", self._of(work), lambda found: steps.extend(one[STEP] for one in found))
        lasting = express(
            {"until": until}, UpdateExpression=f"SET #{TTL} = :until", ConditionExpression=f"attribute_exists({KEY})"
        )
        for step in steps:
            item = {"TableName": self._rows, "Key": item_of({KEY: work.key, STEP: step})}
            yield Ask(Call("update_item", {**item, **lasting}, CONDITION), nothing)

    def sweep(self, limit: int) -> Iterator[Ask[int]]:
        """Remove rows whose record is gone or of other work, as far as the service will not; it reads all of them."""
        found: list[tuple[bytes, bytes]] = []
        created: Micros | None = None

        def look(record: Document) -> int:
            nonlocal created
            created = record.get("created")
            return 0

        def keep(page: Sequence[Document]) -> int:
            found.extend((one[KEY], one[STEP]) for one in page)
            return 0

        lasting = express({}, FilterExpression=f"attribute_not_exists(#{TTL})")
        yield from self._pages("scan", lasting, keep)
        of: bytes | None = None
        for key, step in found:
            if key != of:
                yield self._read(key, look)
                of = key
            if limit > 0 and created != int.from_bytes(step[:8]):
                limit -= 1
                item = {"TableName": self._rows, "Key": item_of({KEY: key, STEP: step})}
                yield Ask(Call("delete_item", item), lambda answer: 1)

    # ------------------------------------------------------------ requests

    def _of(self, work: Work) -> dict[str, Any]:
        given = {"key": work.key, "generation": work.generation.to_bytes(8)}
        condition = f"#{KEY} = :key AND begins_with(#{STEP}, :generation)"
        return {"ConsistentRead": True, **express(given, KeyConditionExpression=condition)}

    def _pages(
        self, operation: str, asked: Mapping[str, Any], take: Callable[[list[Document]], Any]
    ) -> Iterator[Ask[Any]]:
        start: Any = None

        def parse(answer: Answer) -> Any:
            nonlocal start
            start = answer.response.get("LastEvaluatedKey")
            return take([document_of(item) for item in answer.response.get("Items", ())])

        while True:  # none, if the table is missing
            more = {} if start is None else {"ExclusiveStartKey": start}
            yield Ask(Call(operation, {"TableName": self._rows, **asked, **more}, MISSING), parse)
            if start is None:
                return

    def _read(self, key: bytes, take: Callable[[Document], Any]) -> Ask[Any]:
        request = Call("get_item", {**self._record(key), "ConsistentRead": True})
        return Ask(request, lambda answer: take(document_of(answer.response.get("Item", {}))))

    def _record(self, key: bytes) -> dict[str, Any]:
        return {"TableName": self._store.table, "Key": item_of({KEY: key})}

    def _item(self, work: Work, at: At) -> dict[str, Any]:
        return {"TableName": self._rows, "Key": item_of({KEY: work.key, STEP: _sort_key(work, at)})}

    def _look(self, work: Work, condition: str) -> dict[str, Any] | None:
        """A look at the record that the work belongs to; None for work without a claim."""
        if work.ownership is None:
            return None
        given = {"attempt": work.ownership.attempt, "token": work.ownership.token}
        return {**self._record(work.key), **express(given, ConditionExpression=condition)}

    def _put(self, work: Work, row: StepRow, condition: str, before: StepState = StepState.STARTED) -> dict[str, Any]:
        document = {
            KEY: work.key,
            STEP: _sort_key(work, row.at),
            "name": row.at.name,
            "each": row.at.each,
            "state": row.state,
            "place": row.place,
            "undoable": int(row.undoable),
            "token": work.token,
            "fingerprint": row.fingerprint,
            **{name: value for name, value in zip(RESULT, row.result or (), strict=False) if value is not None},
        }
        given = {"before": before, "mine": work.token}
        return {"TableName": self._rows, "Item": item_of(document), **express(given, ConditionExpression=condition)}

    def _write(self, work: Work, put: dict[str, Any], look: dict[str, Any] | None) -> Ask[bool]:
        if look is None:
            return Ask(Call("put_item", put, CONDITION), _is_done)
        items = [{"ConditionCheck": look}, {"Put": put}]
        return Ask(Call("transact_write_items", {"TransactItems": items}, CONDITION), _is_done)


def step_store(store: DynamodbStore) -> DynamodbSteps:
    return DynamodbSteps(store)


def _sort_key(work: Work, at: At) -> bytes:
    """The sort key: of one length, whatever the names are."""
    return work.generation.to_bytes(8) + sha256("\0".join(at).encode()).digest()


def _is_held(work: Work, record: Document) -> bool:
    if work.ownership is None:
        return True
    owner = (record.get("attempt"), record.get("token"))
    return owner == (work.ownership.attempt, work.ownership.token) and record["state"] in (State.RUNNING, State.UNKNOWN)


def _is_done(answer: Answer) -> bool:
    return answer.refused is None


def _row(found: Document) -> StepRow:
    return StepRow(
        At(found["name"], found["each"]),
        StepState(found["state"]),
        found["place"],
        bool(found["undoable"]),
        found["fingerprint"],
        result_in(found),
        found["token"],
    )
