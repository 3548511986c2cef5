"""The outbox in SQL: messages written in the caller's transaction, and what a relay does about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from retrysafe.backends.sql.envelopes import ENVELOPE, envelope_in, values_of
from retrysafe.backends.sql.store import SqlStore
from retrysafe.backends.sql.table import TABLE as RECORDS
from retrysafe.protocol.messages import Envelope, Look, Queued
from retrysafe.protocol.ordering import bucket, lane
from retrysafe.protocol.outbox_walk import NOTHING, Most, OutboxRow, Passed, ReadSpan, Released, Stretch
from retrysafe.protocol.publish_policy import Death, Delay
from retrysafe.protocol.records import Ownership
from retrysafe.protocol.requests import Ask, Rows, nothing

TABLE = "retrysafe_outbox"
AT_ONCE = 200
"""The number of messages that one statement writes: databases bound its parameters."""
BY_BUCKET, BY_LANE = f"{TABLE}_bucket", f"{TABLE}_lane"
"""The indexes of a bucket's messages, and of a lane's, in the order of their numbers."""
FOREVER = 1 << 62
"""Microseconds since the epoch that never come: until a person says so."""

WRITTEN = ("bucket", "lane", *ENVELOPE)
COLUMNS = ("id", *WRITTEN, "created")
NOTED = {"id": "token", "bucket": "token", "lane": "token", "started": "attempts", "finished": "attempts"}
"""The columns of a note about a message, and the kinds of their parameters."""
_SELECTED = ", ".join(f"o.{name}" for name in COLUMNS)


class SqlOutbox:
    """Asks about messages to publish, in the dialect of a store. Every method is pure."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self.locks_rows = store.LOCKS_ROWS
        """True if a row can be held for a transaction while others write; else one writer holds all."""
        self.only: dict[str, tuple[str, ...]] = {}
        """The values of ``source`` and ``topic`` to which what leaves is restricted; nothing: all of them."""
        self._texts: dict[tuple[str, bool, int], str] = {}
        """Statements, each written once for what they depend on."""
        self._waits = self._waiting(store.p("token", "low"))
        self._note = ", ".join(store.p(kind, f"{name}{{0}}") for name, kind in NOTED.items())
        self._notes = f"INSERT INTO {TABLE}_attempts ({', '.join(NOTED)}, not_before, error) VALUES "
        self._noted = store.upsert("id", ("started", "finished", "not_before", "error"))

    def takes(self, envelope: Envelope) -> bool:
        return all(getattr(envelope, column) in values for column, values in self.only.items())

    # ------------------------------------------------------------ writing

    def add(self, envelopes: Sequence[Envelope]) -> list[Ask[None]]:
        return [self._add(envelopes[start : start + AT_ONCE]) for start in range(0, len(envelopes), AT_ONCE)]

    def _add(self, envelopes: Sequence[Envelope]) -> Ask[None]:
        params: dict[str, Any] = {}
        for i, envelope in enumerate(envelopes):
            for name, value in zip(WRITTEN, _values(envelope), strict=True):
                params[f"{name}{i}"] = value
        key = ("add", False, len(envelopes))
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = self._insert(len(envelopes))
        return self._write(text, params)

    def _insert(self, messages: int) -> str:
        now, p = self._store.NOW, self._store.p
        rows = [f"({', '.join(p(name, f'{name}{i}') for name in WRITTEN)}, {now})" for i in range(messages)]
        return f"INSERT INTO {TABLE} ({', '.join(WRITTEN)}, created) VALUES {', '.join(rows)}"

    def notify(self) -> Ask[None] | None:
        """Tell relays of other processes that there is something; None where the database cannot."""
        sql = self._store.NOTIFY
        return None if sql is None else self._write(sql, {})

    # ------------------------------------------------------------ taking

    def look(self) -> Ask[Look]:
        sql = f"SELECT min(o.id), {self._store.TRANSACTIONS} FROM {TABLE} AS o"
        return Ask(self._store.query(sql, {}, writes=False), _look)

    def waiting(self, low: int = 0, passed: Passed = NOTHING) -> Ask[list[int]]:
        if not passed.after:
            return Ask(self._store.query(self._waits, {"low": low}, writes=False), _buckets)
        p = self._store.p
        params = {"low": low, "topics": passed.topics[0], "latest": passed.topics[1]}
        cases = ""
        for number, after in passed.after.items():
            params |= {f"bucket{number}": number, f"after{number}": max(after + 1, low)}
            cases += f" WHEN {p('bucket', f'bucket{number}')} THEN {p('token', f'after{number}')}"
        start = f"(CASE b.bucket{cases} ELSE {p('token', 'low')} END)"
        ended = (
            f" OR EXISTS (SELECT 1 FROM {TABLE}_attempts AS d, {self._store.clock} WHERE d.bucket = b.bucket "
            f"AND d.not_before <= t.now AND d.id + 0 < {start}) "
            f"OR NOT EXISTS (SELECT 1 FROM ({self._topics()}) AS s "
            f"WHERE s.topics = {p('token', 'topics')} AND s.latest = {p('token', 'latest')})"
        )
        return Ask(self._store.query(self._waiting(start) + ended, params, writes=False), _buckets)

    def _waiting(self, start: str) -> str:
        found, order = self._store.along(TABLE, {"bucket": "b.bucket"}, start, BY_BUCKET)
        first = f"SELECT o.bucket FROM {found} ORDER BY {order} LIMIT 1"
        return f"SELECT b.bucket FROM {TABLE}_buckets AS b WHERE ({first}) = b.bucket"

    def prepare(self, silence: float) -> list[Ask[None]]:
        asks = [] if self._store.UNFROZEN is None else [self._write(self._store.UNFROZEN, {})]
        if self._store.OUTLASTS is not None:
            asks.append(self._write(self._store.OUTLASTS, {"seconds": ceil(silence)}))
        return asks

    def hold(self, number: int, silence: float) -> Ask[bool]:
        """Hold a bucket to the end of the transaction, unless another one does.

        Where the database can, it ends the transaction itself when nothing is asked in it for ``silence`` seconds:
        sooner, it would undo what is being published; much later, no other relay has the bucket of a relay that is
        frozen.
        """
        more, locked = self._store.SILENCE, " FOR UPDATE SKIP LOCKED" if self.locks_rows else ""
        params: dict[str, Any] = {"bucket": number, "silence": f"{silence * 1000:.0f}"} if more else {"bucket": number}
        sql = f"SELECT b.bucket{more} FROM {TABLE}_buckets AS b WHERE b.bucket = {self._store.p('bucket')}{locked}"
        return Ask(self._store.query(sql, params), _any)

    def fence(self, ownership: Ownership) -> Ask[bool]:
        p, locked = self._store.p, " FOR UPDATE" if self.locks_rows else ""
        params = {"key": ownership.key, "attempt": ownership.attempt, "token": ownership.token}
        sql = (
            f"SELECT 1 FROM {RECORDS} AS r WHERE r.key_hash = {p('key')} AND r.attempt = {p('attempt')} "
            f"AND r.token = {p('token')} AND r.state = 'running'{locked}"
        )
        return Ask(self._store.query(sql, params), _any)

    def due(self, number: int, span: ReadSpan, most: Most) -> Ask[Stretch]:
        """Rows of a bucket from ``span.start`` on, and of those that may leave the oldest, within these bounds.

        None may that is behind one of its lane that waits, or is of a paused topic; none that has one of its lane
        before it from ``span.low`` on, where reading does not begin there.
        """
        behind = span.start > span.low
        params = {"bucket": number, "start": span.start, "span_rows": span.span_rows, **_bounds(most)}
        if behind:
            params["low"] = span.low
        unless = self._unless(span, params)
        key = ("due", behind, len(span.shut))
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = self._due(unless, behind=behind)
        return Ask(self._store.query(text, params, writes=False), _stretch)

    def _due(self, unless: list[str], *, behind: bool) -> str:
        p = self._store.p
        found = self._store.along(TABLE, {"bucket": p("bucket")}, p("token", "start"), BY_BUCKET)
        if behind:
            places = {"bucket": p("bucket"), "lane": "p.lane"}
            before, order = self._store.along(TABLE, places, p("token", "low"), BY_LANE)
            same = f"o.bucket = {p('bucket')} AND o.lane = p.lane"
            head = f"SELECT CASE WHEN {same} THEN o.id END FROM {before} ORDER BY {order} LIMIT 1"
            unless = [*unless, f"coalesce(({head}), {p('token', 'start')}) < {p('token', 'start')}"]
        return self._stretch(found, f"p.bucket = {p('bucket')}", unless)

    def lane(self, number: int, of: int, span: ReadSpan, most: Most) -> Ask[Stretch]:
        params = {"bucket": number, "lane": of, "start": span.start, "end": span.end, "span_rows": span.span_rows}
        params |= _bounds(most)
        unless = self._unless(span, params)
        key = ("lane", False, len(span.shut))
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = self._lane(unless)
        return Ask(self._store.query(text, params, writes=False), _stretch)

    def _lane(self, unless: list[str]) -> str:
        p = self._store.p
        places = {"bucket": p("bucket"), "lane": p("token", "lane")}
        found = self._store.along(TABLE, places, p("token", "start"), BY_LANE)
        wanted = f"p.bucket = {p('bucket')} AND p.lane = {p('token', 'lane')} AND p.id <= {p('token', 'end')}"
        return self._stretch(found, wanted, unless)

    def _unless(self, span: ReadSpan, params: dict[str, Any]) -> list[str]:
        """Name why a row may not leave, whatever is before it and waits; and add the parameters of that."""
        unless: list[str] = []
        for column, values in self.only.items():
            among, named = self._store.among("operation", f"only_{column}", values)
            unless.append(f"(p.{column} {among}) IS NOT TRUE")
            params |= named
        if span.shut:
            among, named = self._store.among("operation", "shut", span.shut)
            unless.append(f"p.topic {among}")
            params |= named
        return unless

    def _is_blocked(self) -> str:
        return (
            f"EXISTS (SELECT 1 FROM {TABLE}_attempts AS d WHERE d.bucket = {self._store.p('bucket')} "
            "AND d.lane = p.lane AND d.id + 0 <= p.id AND d.not_before + 0 > t.now)"  # by the index of lanes, no other
        )

    def _is_paused(self) -> str:
        return f"EXISTS (SELECT 1 FROM {TABLE}_paused AS q WHERE q.topic = p.topic)"

    def _stretch(self, found: tuple[str, str], wanted: str, unless: Sequence[str]) -> str:
        """Judge rows that were found in their order, by what is small of them; then read those that are taken.

        Each step works on the rows of the one before it, of which there are as many as are asked for: there is nothing
        here that a database could plan otherwise.
        """
        p, size = self._store.p, self._store.BYTES
        source, order = found
        takes = f"j.free = 1 AND j.place <= {p('limit', 'of_lane')}"
        taken = (
            f" AND {takes} AND j.taken <= {p('limit')} AND (j.upto <= {p('limit', 'span_bytes')} OR j.upto = j.size)"
        )
        unless = (self._is_blocked(), self._is_paused(), *unless)
        return (
            f"WITH page AS (SELECT o.id, o.bucket, o.lane, o.topic, o.source, o.created, "
            f"{size}(o.payload) + {size}(o.headers) AS size FROM {source} "
            f"ORDER BY {order} LIMIT {p('limit', 'span_rows')}), "
            f"judged AS (SELECT p.id, p.lane, p.created, p.size, t.now AS read_at, "
            f"CASE WHEN {' OR '.join(unless)} THEN 0 ELSE 1 END AS free FROM page AS p, {self._store.clock} "
            f"WHERE {wanted}), "
            "placed AS (SELECT r.*, sum(r.free) OVER (PARTITION BY r.lane ORDER BY r.id) AS place, "
            "sum(r.free) OVER (PARTITION BY r.lane) AS together FROM judged AS r), "
            f"summed AS (SELECT j.*, sum(CASE WHEN {takes} THEN 1 ELSE 0 END) OVER (ORDER BY j.id) AS taken, "
            f"sum(CASE WHEN {takes} THEN j.size ELSE 0 END) OVER (ORDER BY j.id) AS upto FROM placed AS j) "
            f"SELECT j.id, j.lane, j.created, j.free, j.together, j.read_at, {_SELECTED}, "
            "coalesce(w.started, 0), coalesce(w.finished, 0), w.id "
            f"FROM summed AS j {self._store.beside(TABLE, 'o', 'j.id', taken)} "
            f"{self._store.beside(f'{TABLE}_attempts', 'w', 'o.id')} ORDER BY j.id"
        )

    def _topics(self) -> str:
        return f"SELECT count(*) AS topics, coalesce(max(q.paused_at), 0) AS latest FROM {TABLE}_paused AS q"

    def lanes_released(self, number: int, upto: int, limit: int) -> Ask[Released]:
        p = self._store.p
        lanes = (
            f"SELECT d.lane FROM {TABLE}_attempts AS d, {self._store.clock} WHERE d.bucket = {p('bucket')} "
            f"AND d.not_before <= t.now AND d.id + 0 <= {p('token', 'upto')} LIMIT {p('limit')}"
        )
        topics = self._topics()
        sql = f"SELECT s.topics, s.latest, r.lane FROM ({topics}) AS s LEFT JOIN ({lanes}) AS r ON 1 = 1"
        return Ask(
            self._store.query(sql, {"bucket": number, "upto": upto, "limit": limit}, writes=False),
            lambda answer: Released(
                [int(row[2]) for row in answer.rows if row[2] is not None],
                (int(answer.rows[0][0]), int(answer.rows[0][1])),
            ),
        )

    # ------------------------------------------------------------ concluding

    def note_begin(self, queue: Sequence[Queued]) -> list[Ask[None]]:
        if len(queue) <= AT_ONCE:
            return [self._begin(queue)]
        return [self._begin(queue[start : start + AT_ONCE]) for start in range(0, len(queue), AT_ONCE)]

    def _begin(self, queue: Sequence[Queued]) -> Ask[None]:
        params: dict[str, Any] = {}
        rows: list[str] = []
        for i, queued in enumerate(queue):
            params |= _note_of(queued, queued.started + 1, queued.finished, i)
            rows.append(f"({self._note.format(i)}, {self._store.NOW}, '')")
        return self._write(f"{self._notes}{', '.join(rows)} {self._noted}", params)

    def outlive(self, queue: Sequence[Queued]) -> Ask[None]:
        where, ids = self._ids(queue)
        return self._write(f"UPDATE {TABLE}_attempts SET started = finished WHERE {where} AND started > finished", ids)

    def withdraw(self, queue: Sequence[Queued]) -> list[Ask[None]]:
        if not queue:
            return []
        new = [queued for queued in queue if not queued.started]
        asks = [self._trouble(one, one.started, one.finished, 0, "") for one in queue if one.started]
        return [*asks, self._delete(f"{TABLE}_attempts", *self._ids(new))] if new else asks

    def resume_lanes(self, queue: Sequence[Queued]) -> Ask[None]:
        where, ids = self._ids(queue)
        return self._write(f"UPDATE {TABLE}_attempts SET not_before = {self._store.NOW} WHERE {where}", ids)

    def leave(self, queue: Sequence[Queued], *, keep: bool) -> list[Ask[None]]:
        if not queue:
            return []
        where, ids = self._messages(queue)
        asks = [self._copy("published", where, ids, {"published": self._store.NOW})] if keep else []
        asks.append(self._delete(TABLE, where, ids))
        noted = [queued for queued in queue if queued.noted]
        return [*asks, self._delete(f"{TABLE}_attempts", *self._ids(noted))] if noted else asks

    def delay(self, delay: Delay) -> list[Ask[None]]:
        queued = delay.queued
        micros = None if delay.seconds is None else round(delay.seconds * 1e6)
        if not delay.counted:
            return [self._trouble(queued, queued.started, queued.finished, micros, delay.error)]
        started = max(queued.started, queued.finished) + (0 if queued.started > queued.finished else 1)
        return [self._trouble(queued, started, queued.finished + 1, micros, delay.error)]

    def bury(self, death: Death) -> list[Ask[None]]:
        queued = death.queued
        p = self._store.p
        more = {
            "started": p("attempts", "started"),
            "finished": p("attempts", "finished"),
            "error": p("operation", "error"),
            "dead_at": self._store.NOW,
        }
        counts = {"started": max(queued.started, queued.finished + 1), "finished": queued.finished + 1}
        where, ids = self._messages([queued])
        copied = self._copy("dead", where, {**ids, **counts, "error": death.error}, more)
        return [copied, self._delete(TABLE, where, ids), self._delete(f"{TABLE}_attempts", *self._ids([queued]))]

    def _trouble(self, queued: Queued, started: int, finished: int, micros: int | None, error: str) -> Ask[None]:
        p = self._store.p
        noted = _note_of(queued, started, finished)
        params = {**noted, "pause": FOREVER if micros is None else micros, "error": error}
        until = p("token", "pause") if micros is None else f"{self._store.NOW} + {p('token', 'pause')}"
        row = f"({self._note.format('')}, {until}, {p('operation', 'error')})"
        return self._write(f"{self._notes}{row} {self._noted}", params)

    def _copy(self, table: str, where: str, params: Mapping[str, Any], more: Mapping[str, str]) -> Ask[None]:
        columns = ", ".join(COLUMNS)
        sql = (
            f"INSERT INTO {TABLE}_{table} ({columns}, {', '.join(more)}) "
            f"SELECT {columns}, {', '.join(more.values())} FROM {TABLE} WHERE {where}"
        )
        return self._write(sql, params)

    def _delete(self, table: str, where: str, ids: Mapping[str, Any]) -> Ask[None]:
        return self._write(f"DELETE FROM {table} WHERE {where}", ids)

    def _messages(self, queue: Sequence[Queued]) -> tuple[str, dict[str, Any]]:
        return self._store.choose_numbers(TABLE, [queued.id for queued in queue])

    def _ids(self, queue: Sequence[Queued]) -> tuple[str, dict[str, Any]]:
        among, params = self._store.among("token", "id", [queued.id for queued in queue])
        return f"id {among}", params

    def _write(self, sql: str, params: Mapping[str, Any]) -> Ask[None]:
        return Ask(self._store.query(sql, params), nothing)


def _values(envelope: Envelope) -> tuple[Any, ...]:
    of = lane(envelope.topic, envelope.key, envelope.id)
    return bucket(of), of, *values_of(envelope)


def _note_of(queued: Queued, started: int, finished: int, suffix: int | str = "") -> dict[str, int]:
    return {
        f"id{suffix}": queued.id,
        f"bucket{suffix}": bucket(queued.lane),
        f"lane{suffix}": queued.lane,
        f"started{suffix}": started,
        f"finished{suffix}": finished,
    }


def _bounds(most: Most) -> dict[str, int]:
    return {"limit": most.messages, "of_lane": most.of_lane, "span_bytes": most.bytes}


def _buckets(answer: Rows) -> list[int]:
    return [int(row[0]) for row in answer.rows]


def _stretch(answer: Rows) -> Stretch:
    rows = [
        OutboxRow(int(id_), int(of), int(created), int(free) == 1, int(number))
        for id_, of, created, free, number, *_ in answer.rows
    ]
    queue = [_message_of(row) for row in answer.rows if row[6] is not None]
    return Stretch(rows, queue, int(answer.rows[0][5]) if answer.rows else 0)


def _message_of(row: Sequence[Any]) -> Queued:
    fields: dict[str, Any] = dict(zip(COLUMNS, row[6:], strict=False))
    started, finished, note = row[6 + len(COLUMNS) :]
    envelope = envelope_in(fields)
    place = int(fields["id"]), int(fields["lane"]), int(fields["created"])
    return Queued(*place, int(started), int(finished), envelope, int(row[5]), note is not None)


def _look(answer: Rows) -> Look:
    oldest, ended, begun = answer.rows[0]
    return Look(None if oldest is None else int(oldest), int(ended), int(begun))


def _any(answer: Rows) -> bool:
    return bool(answer.rows)
