"""The inbox in SQL: attempts at messages, dead letters, and which sequence was applied last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from retrysafe.backends.sql import reading
from retrysafe.backends.sql.dead_letter_filter import conditions, group, read_groups
from retrysafe.backends.sql.envelopes import ENVELOPE, PAGE_BYTES, envelope_in, page, values_of
from retrysafe.backends.sql.store import SqlStore
from retrysafe.protocol.messages import (
    Arrival,
    DeadLetter,
    DeadLetterFilter,
    Groups,
    InboxLetter,
    Place,
    Turn,
    milliseconds_of,
)
from retrysafe.protocol.redelivery_policy import Counts
from retrysafe.protocol.requests import Ask, Rows, nothing

ATTEMPTS, DEAD, SEQUENCES = "retrysafe_inbox_attempts", "retrysafe_inbox_dead", "retrysafe_inbox_sequences"
LONGEST_ERROR = 4000
"""Characters that are kept of an error."""
LONGEST_NAME = 255
"""Characters that are kept of a topic or media type: what MySQL has room for."""

_LETTER = ("key_hash", "record_key", "boundary", "consumer", *ENVELOPE, "started", "finished", "error")
_READ = (*_LETTER, "dead_at", "redrive")
_NUMBER = "coalesce(d.sequence, 0)"
_KINDS = {"key_hash": "key", "record_key": "key", "payload": "payload", "started": "attempts", "finished": "attempts"}
"""Parameters that a dialect spells in its own way, by the columns that they are for."""


class SqlInbox:
    """Asks about arriving messages, in the dialect of a store. Every method is pure."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    # ------------------------------------------------------------ attempts

    def note_begin(self, arrival: Arrival) -> Ask[None]:
        return self._attempt(arrival, 1, 0, 1, 0, "")

    def note_first(self, arrival: Arrival) -> Ask[bool]:
        """Note that an attempt begins, unless there was one before or the message lies in the dead letters."""
        p = self._store.p
        into, ignore = self._store.insert_ignoring("key_hash")
        sql = (
            f"{into} {ATTEMPTS} (key_hash, consumer, started, finished, error, updated) "
            f"SELECT {p('key')}, {p('operation', 'consumer')}, 1, 0, '', t.now FROM {self._store.clock} "
            f"WHERE NOT EXISTS (SELECT 1 FROM {DEAD} WHERE key_hash = {p('key')}) {ignore}"
        )
        return Ask(
            self._store.query(sql, {"key": arrival.identity, "consumer": arrival.consumer}), reading.has_changed_one
        )

    def note_end(self, arrival: Arrival, error: str, *, counted: bool) -> Ask[None]:
        return self._attempt(arrival, 1, 1, 0 if counted else 1, 1, error[:LONGEST_ERROR])

    def note_withdrawal(self, arrival: Arrival) -> Ask[None]:
        sql = f"UPDATE {ATTEMPTS} SET started = started - 1 WHERE key_hash = {self._store.p('key')} AND started > 0"
        return self._write(sql, {"key": arrival.identity})

    def counts(self, arrival: Arrival) -> Ask[Counts]:
        here = f"key_hash = {self._store.p('key')}"
        sql = (
            f"SELECT coalesce(max(started), 0), coalesce(max(finished), 0), "
            f"(SELECT count(*) FROM {DEAD} WHERE {here}), coalesce(max(t.now) - max(updated), 0) "
            f"FROM {ATTEMPTS}, {self._store.clock} WHERE {here}"
        )
        return Ask(self._store.query(sql, {"key": arrival.identity}, writes=False), _counts)

    def clear(self, arrival: Arrival) -> Ask[None]:
        return self._write(f"DELETE FROM {ATTEMPTS} WHERE key_hash = {self._store.p('key')}", {"key": arrival.identity})

    def _attempt(self, arrival: Arrival, started: int, finished: int, more: int, ended: int, error: str) -> Ask[None]:
        p = self._store.p
        params = {
            "key": arrival.identity,
            "consumer": arrival.consumer,
            "started": started,
            "finished": finished,
            "more": more,
            "ended": ended,
            "error": error,
        }
        changes = (
            f"started = {ATTEMPTS}.started + {p('attempts', 'more')}, "
            f"finished = {ATTEMPTS}.finished + {p('attempts', 'ended')}, updated = {self._store.NOW}"
        )
        if ended:
            changes += f", error = {p('operation', 'error')}"
        sql = (
            f"INSERT INTO {ATTEMPTS} (key_hash, consumer, started, finished, error, updated) VALUES ({p('key')}, "
            f"{p('operation', 'consumer')}, {p('attempts', 'started')}, {p('attempts', 'finished')}, "
            f"{p('operation', 'error')}, {self._store.NOW}) {self._store.on_conflict('key_hash', changes)}"
        )
        return self._write(sql, params)

    # ------------------------------------------------------------ dead letters

    def bury(self, arrival: Arrival, counts: Counts, error: str) -> list[Ask[None]]:
        p = self._store.p
        params = dict(zip(_LETTER, _letter_values(arrival, counts, error[:LONGEST_ERROR]), strict=True))
        placed = ", ".join(
            p(_KINDS.get(name, "operation") if name != "sequence" else "token", name) for name in _LETTER
        )
        sql = (
            f"INSERT INTO {DEAD} ({', '.join(_LETTER)}, dead_at) VALUES ({placed}, {self._store.NOW}) "
            + self._store.upsert("key_hash", ("started", "finished", "error", "dead_at"))
        )
        return [self._write(sql, params), self.clear(arrival)]

    def letters(
        self,
        chosen: DeadLetterFilter,
        *,
        after: Place | None = None,
        limit: int,
    ) -> Ask[list[InboxLetter]]:
        p = self._store.p
        where, params = conditions(self._store, chosen)
        if after is not None:
            params["dead_at"], params["key"] = after
            died = p("token", "dead_at")
            where += f" AND d.dead_at >= {died} AND (d.dead_at > {died} OR d.key_hash > {p('key')})"
        return self._page(f"1 = 1{where}", params, limit, ["d.dead_at", "d.key_hash"])

    def list_marked(
        self, boundary: str, consumer: str, *, after: Turn | None = None, limit: int
    ) -> Ask[list[InboxLetter]]:
        p = self._store.p
        where = f"d.redrive IS NOT NULL AND d.boundary = {p('boundary')} AND d.consumer = {p('operation', 'consumer')}"
        params: dict[str, Any] = {"boundary": boundary, "consumer": consumer}
        if after is not None:
            params["sequence"], params["dead_at"], params["key"] = after
            number, died = p("token", "sequence"), p("token", "dead_at")
            later = f"d.dead_at > {died} OR (d.dead_at = {died} AND d.key_hash > {p('key')})"
            where += f" AND ({_NUMBER} > {number} OR ({_NUMBER} = {number} AND ({later})))"
        return self._page(where, params, limit, [_NUMBER, "d.dead_at", "d.key_hash"])

    def _page(self, where: str, params: Mapping[str, Any], limit: int, order: Sequence[str]) -> Ask[list[InboxLetter]]:
        sql = page(self._store, _READ, f"{DEAD} AS d, {self._store.clock} WHERE {where}", order)
        bounds = {"limit": limit, "span_bytes": PAGE_BYTES}
        found = self._store.query(sql, {**params, **bounds}, writes=False)
        return Ask(found, lambda answer: [_letter(row) for row in answer.rows])

    def waits(self, arrival: Arrival) -> Ask[bool]:
        envelope, p = arrival.envelope, self._store.p
        sql = (
            f"SELECT count(*) FROM {DEAD} WHERE redrive IS NOT NULL AND boundary = {p('boundary')} "
            f"AND consumer = {p('operation', 'consumer')} AND message_key = {p('operation', 'of_key')} "
            f"AND sequence < {p('token', 'sequence')}"
        )
        params = {"boundary": arrival.boundary, "consumer": arrival.consumer}
        named = {"of_key": envelope.key, "sequence": envelope.sequence}
        return Ask(self._store.query(sql, {**params, **named}, writes=False), lambda answer: bool(answer.rows[0][0]))

    def dead_of(self, key: bytes) -> Ask[tuple[str, str] | None]:
        """The id and consumer of the dead letter of a record, unless it is marked to be handled again."""
        sql = (
            f"SELECT d.message_id, d.consumer FROM {DEAD} AS d "
            f"WHERE d.key_hash = {self._store.p('key')} AND d.redrive IS NULL"
        )
        found = self._store.query(sql, {"key": key}, writes=False)
        return Ask(found, lambda answer: tuple(answer.rows[0]) if answer.rows else None)

    def groups(self, chosen: DeadLetterFilter, most: int | None = None) -> Ask[Groups]:
        """Count the chosen dead letters by topic, type and error, among the oldest ``most``."""
        sql, params = group(self._store, f"{DEAD} AS d", "d.dead_at, d.key_hash", chosen, most)
        return Ask(self._store.query(sql, params, writes=False), read_groups)

    def mark(self, *identities: bytes) -> Ask[int]:
        among, params = self._store.among("key", "key", identities)
        sql = f"UPDATE {DEAD} SET redrive = {self._store.NOW} WHERE key_hash {among}"
        return Ask(self._store.query(sql, params), lambda answer: answer.affected)

    def discard(self, *identities: bytes) -> Ask[int]:
        among, params = self._store.among("key", "key", identities)
        sql = f"DELETE FROM {DEAD} WHERE key_hash {among}"
        return Ask(self._store.query(sql, params), lambda answer: answer.affected)

    def take(self, identity: bytes) -> Ask[bool]:
        sql = (
            f"UPDATE {DEAD} SET redrive = NULL, started = started + 1 "
            f"WHERE key_hash = {self._store.p('key')} AND redrive IS NOT NULL"
        )
        return Ask(self._store.query(sql, {"key": identity}), reading.has_changed_one)

    def remove(self, identity: bytes) -> Ask[None]:
        return self._write(f"DELETE FROM {DEAD} WHERE key_hash = {self._store.p('key')}", {"key": identity})

    # ------------------------------------------------------------ sequences

    def advance(self, key: bytes, sequence: int, *, strict: bool) -> Ask[bool]:
        p = self._store.p
        fits = f"sequence = {p('token', 'sequence')} - 1" if strict else f"sequence < {p('token', 'sequence')}"
        sql = (
            f"UPDATE {SEQUENCES} SET sequence = {p('token', 'sequence')}, updated = {self._store.NOW} "
            f"WHERE key_hash = {p('key')} AND {fits}"
        )
        return Ask(self._store.query(sql, {"key": key, "sequence": sequence}), reading.has_changed_one)

    def introduce(self, key: bytes, boundary: str, consumer: str, entity: str, sequence: int) -> Ask[bool]:
        p = self._store.p
        params = {"key": key, "boundary": boundary, "consumer": consumer, "entity": entity, "sequence": sequence}
        names = ("boundary", "consumer", "entity")
        into, ignore = self._store.insert_ignoring("key_hash")
        sql = (
            f"{into} {SEQUENCES} (key_hash, {', '.join(names)}, sequence, updated) VALUES ({p('key')}, "
            f"{', '.join(p('operation', name) for name in names)}, {p('token', 'sequence')}, {self._store.NOW}) "
            f"{ignore}"
        )
        return Ask(self._store.query(sql, params), reading.has_changed_one)

    def read_applied(self, key: bytes) -> Ask[int | None]:
        """The last sequence of an entity as committed or written by us, whatever the transaction's snapshot."""
        locked = " FOR UPDATE" if self._store.LOCKS_ROWS else ""
        sql = f"SELECT s.sequence FROM {SEQUENCES} AS s WHERE s.key_hash = {self._store.p('key')}{locked}"
        return Ask(self._store.query(sql, {"key": key}), lambda answer: int(answer.rows[0][0]) if answer.rows else None)

    # ------------------------------------------------------------ looking after it

    def tally(self) -> Ask[list[tuple[str, str, int, int, int]]]:
        """Dead letters by boundary and consumer: how many, how many of them marked, and the age in µs of the oldest."""
        sql = (
            f"SELECT d.boundary, d.consumer, count(*), count(d.redrive), max(t.now - d.dead_at) "
            f"FROM {DEAD} AS d, {self._store.clock} GROUP BY d.boundary, d.consumer ORDER BY 1, 2"
        )
        return Ask(self._store.query(sql, {}, writes=False), _tallies)

    def forget(self, table: str, before: int) -> Ask[int]:
        """Remove attempts or sequences that were not touched for so many microseconds."""
        sql = f"DELETE FROM {table} WHERE updated < {self._store.NOW} - {self._store.p('token', 'before')}"
        return Ask(self._store.query(sql, {"before": before}), lambda answer: answer.affected)

    def _write(self, sql: str, params: Mapping[str, Any]) -> Ask[None]:
        return Ask(self._store.query(sql, params), nothing)


def _letter_values(arrival: Arrival, counts: Counts, error: str) -> tuple[Any, ...]:
    envelope = arrival.envelope
    cut = envelope._replace(topic=envelope.topic[:LONGEST_NAME], media_type=envelope.media_type[:LONGEST_NAME])
    return (
        *(arrival.identity, arrival.record_key, arrival.boundary, arrival.consumer),
        *values_of(cut),
        *(counts.started, counts.finished, error),
    )


def _letter(row: Sequence[Any]) -> InboxLetter:
    *values, now = row
    fields = dict(zip(_READ, values, strict=True))
    envelope = envelope_in(fields)
    identity, record_key = bytes(fields["key_hash"]), bytes(fields["record_key"])
    arrival = Arrival(identity, record_key, fields["boundary"], fields["consumer"], envelope)
    died, written = int(fields["dead_at"]), milliseconds_of(envelope.id)
    letter = DeadLetter(
        number=0,
        envelope=envelope,
        started=int(fields["started"]),
        finished=int(fields["finished"]),
        error=fields["error"],
        created=died if written is None else written * 1000,
        dead_at=died,
        now=int(now),
        consumer=fields["consumer"],
        boundary=fields["boundary"],
        record_key=record_key,
    )
    return InboxLetter(arrival, letter, fields["redrive"] is not None)


def _counts(answer: Rows) -> Counts:
    started, finished, dead, age = answer.rows[0]
    return Counts(int(started), int(finished), bool(dead), int(age) / 1e6)


def _tallies(answer: Rows) -> list[tuple[str, str, int, int, int]]:
    return [(boundary, consumer, int(a), int(b), int(c)) for boundary, consumer, a, b, c in answer.rows]
