"""The questions of people and monitors to an outbox in SQL: backlog, relays, dead letters, topics, kept messages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from retrysafe.backends.sql.dead_letter_filter import conditions, group, read_groups
from retrysafe.backends.sql.envelopes import PAGE_BYTES, envelope_in, page
from retrysafe.backends.sql.outbox import COLUMNS, FOREVER, TABLE, WRITTEN, SqlOutbox
from retrysafe.backends.sql.store import SqlStore
from retrysafe.protocol.messages import Backlog, DeadLetter, DeadLetterFilter, Envelope, Groups, Holder, RelaySeen
from retrysafe.protocol.ordering import BUCKETS
from retrysafe.protocol.publish_policy import MOST_COUNTED
from retrysafe.protocol.requests import Ask, Rows

_LETTER = (*COLUMNS, "started", "finished", "error", "dead_at", "parked")


class OperableSqlOutbox(SqlOutbox):
    """The outbox, and what is asked beside writing and relaying. Every method is pure."""

    def __init__(self, store: SqlStore) -> None:
        super().__init__(store)
        p, now = store.p, store.NOW
        self._beat = (
            f"INSERT INTO {TABLE}_relays (name, hold, started_at, last_seen_at) "
            f"VALUES ({p('operation', 'name')}, {p('operation', 'hold')}, {now}, {now}) "
        ) + store.upsert("name", ("last_seen_at",))
        self._attending = (
            "SELECT r.name, r.hold, r.started_at, r.last_seen_at, t.now, "
            f"(SELECT count(*) FROM {TABLE}_buckets) FROM {TABLE}_relays AS r, {store.clock} ORDER BY r.name"
        )
        dead = ", ".join(f"e.{name}" for name in COLUMNS)
        waiting = ", ".join(f"o.{name}" for name in COLUMNS)
        self._letters = (
            f"(SELECT {dead}, e.started, e.finished, e.error, e.dead_at, 0 AS parked FROM {TABLE}_dead AS e UNION ALL "
            f"SELECT {waiting}, w.started, w.finished, w.error, o.created AS dead_at, 1 AS parked "
            f"FROM {TABLE} AS o JOIN {TABLE}_attempts AS w ON w.id = o.id WHERE w.not_before >= {FOREVER}) AS d"
        )

    # ------------------------------------------------------------ what waits, and who relays

    def backlog(self) -> Ask[list[Backlog]]:
        return Ask(self._store.query(self._backlog, {}, writes=False), _backlog)

    @cached_property
    def _backlog(self) -> str:
        ends = " UNION ".join(
            f"SELECT {end}.* FROM (SELECT o.id, o.bucket, o.lane, o.topic, o.created FROM {TABLE} AS o "
            f"ORDER BY o.id{order} LIMIT {MOST_COUNTED // 2}) AS {end}"
            for end, order in (("oldest", ""), ("newest", " DESC"))
        )
        waiting = (
            f"SELECT d.bucket, d.lane, d.id FROM {TABLE}_attempts AS d, {self._store.clock} "
            f"WHERE d.not_before > t.now LIMIT {MOST_COUNTED}"
        )
        waits = f"SELECT w.bucket, w.lane, min(w.id) AS head FROM ({waiting}) AS w GROUP BY w.bucket, w.lane"
        rows = (
            "SELECT o.topic, o.created, CASE WHEN q.topic IS NULL THEN 0 ELSE 1 END AS paused, "
            "CASE WHEN q.topic IS NULL AND b.head IS NULL THEN 1 ELSE 0 END AS due, a.error "
            f"FROM ({ends}) AS o LEFT JOIN ({waits}) AS b ON b.bucket = o.bucket AND b.lane = o.lane "
            f"AND b.head <= o.id LEFT JOIN {TABLE}_paused AS q ON q.topic = o.topic "
            f"LEFT JOIN {TABLE}_attempts AS a ON a.id = o.id"
        )
        figures = "count(*) AS number, min(r.created) AS oldest, max(r.error) AS error"
        groups = f"SELECT r.topic, r.paused, r.due, {figures} FROM ({rows}) AS r "
        return (
            f"SELECT g.topic, g.paused, g.due, g.number, g.oldest, t.now, g.error FROM ({groups} "
            f"GROUP BY r.topic, r.paused, r.due) AS g, {self._store.clock} ORDER BY g.topic"
        )

    def relays(self) -> Ask[list[RelaySeen]]:
        return Ask(self._store.query(self._attending, {}, writes=False), _relays)

    def attendance(self) -> Ask[tuple[list[RelaySeen], int]]:
        attending = self._store.query(self._attending, {}, writes=False)
        return Ask(attending, lambda answer: (_relays(answer), int(answer.rows[0][5])))

    def beat(self, name: str, hold: str) -> Ask[None]:
        return self._write(self._beat, {"name": name, "hold": hold})

    def bye(self, names: Sequence[str]) -> Ask[None]:
        among, params = self._store.among("operation", "name", names)
        return self._write(f"DELETE FROM {TABLE}_relays WHERE name {among}", params)

    def buckets(self) -> Ask[set[int]]:
        sql = f"SELECT b.bucket FROM {TABLE}_buckets AS b"
        return Ask(self._store.query(sql, {}, writes=False), lambda answer: {int(row[0]) for row in answer.rows})

    def restore(self, there: set[int]) -> Ask[None]:
        missing = ", ".join(f"({number})" for number in range(BUCKETS) if number not in there)
        sql = f"INSERT INTO {TABLE}_buckets (bucket) VALUES {missing} " + self._store.upsert("bucket", ("bucket",))
        return self._write(sql, {})

    def counts(self) -> Ask[tuple[int, int, int]]:
        counts = self._store.query(self._counts, {}, writes=False)
        return Ask(counts, lambda answer: (int(answer.rows[0][0]), int(answer.rows[0][1]), int(answer.rows[0][2])))

    @cached_property
    def _counts(self) -> str:
        sources = ("dead", "published", f"attempts WHERE not_before >= {FOREVER}")
        counts = (f"(SELECT count(*) FROM (SELECT 1 FROM {TABLE}_{one} LIMIT {MOST_COUNTED}) AS r)" for one in sources)
        return f"SELECT {', '.join(counts)}"

    def holders(self) -> Ask[list[Holder]] | None:
        sql = self._store.HOLDERS
        return None if sql is None else Ask(self._store.query(sql, {}, writes=False), _holders)

    # ------------------------------------------------------------ topics

    def pause(self, topic: str) -> Ask[None]:
        p = self._store.p
        sql = f"INSERT INTO {TABLE}_paused (topic, paused_at) VALUES ({p('operation', 'topic')}, {self._store.NOW}) "
        return self._write(sql + self._store.upsert("topic", ("topic",)), {"topic": topic})

    def resume(self, topic: str) -> Ask[bool]:
        sql = f"DELETE FROM {TABLE}_paused WHERE topic = {self._store.p('operation', 'topic')}"
        return Ask(self._store.query(sql, {"topic": topic}), lambda answer: answer.affected > 0)

    def topics_paused(self) -> Ask[list[str]]:
        sql = f"SELECT q.topic FROM {TABLE}_paused AS q ORDER BY q.topic"
        return Ask(self._store.query(sql, {}, writes=False), lambda answer: [row[0] for row in answer.rows])

    # ------------------------------------------------------------ dead letters

    def letters(self, chosen: DeadLetterFilter, after: int, limit: int) -> Ask[list[DeadLetter]]:
        where, params = conditions(self._store, chosen)
        source = f"{self._letters}, {self._store.clock} WHERE d.id > {self._store.p('token', 'after')}{where}"
        sql = page(self._store, _LETTER, source, ["d.id"])
        params |= {"after": after, "limit": limit, "span_bytes": PAGE_BYTES}
        return Ask(self._store.query(sql, params, writes=False), _read_letters)

    def count(self, chosen: DeadLetterFilter, most: int | None = None) -> Ask[Groups]:
        sql, params = group(self._store, self._letters, "d.id", chosen, most)
        return Ask(self._store.query(sql, params, writes=False), read_groups)

    def claim_letters(self, numbers: Sequence[int]) -> Ask[list[int]]:
        among, params = self._store.among("token", "id", numbers)
        locked = " FOR UPDATE" if self.locks_rows else ""
        sql = f"SELECT id FROM {TABLE}_dead WHERE id {among}{locked}"
        return Ask(self._store.query(sql, params), lambda answer: [int(row[0]) for row in answer.rows])

    def redrive(self, numbers: Sequence[int]) -> list[Ask[None]]:
        among, params = self._store.among("token", "id", numbers)
        columns = ", ".join(WRITTEN)
        copied = (
            f"INSERT INTO {TABLE} ({columns}, created) SELECT {columns}, {self._store.NOW} FROM {TABLE}_dead "
            f"WHERE id {among} ORDER BY id"
        )
        return [self._write(copied, params), self._write(f"DELETE FROM {TABLE}_dead WHERE id {among}", params)]

    def discard(self, numbers: Sequence[int]) -> Ask[int]:
        among, params = self._store.among("token", "id", numbers)
        sql = f"DELETE FROM {TABLE}_dead WHERE id {among}"
        return Ask(self._store.query(sql, params), lambda answer: answer.affected)

    def unpark(self, numbers: Sequence[int]) -> Ask[int]:
        among, params = self._store.among("token", "id", numbers)
        none = "not_before = 0, started = 0, finished = 0"  # noted still: relays that have passed it over look there
        sql = f"UPDATE {TABLE}_attempts SET {none} WHERE id {among} AND not_before >= {FOREVER}"
        return Ask(self._store.query(sql, params), lambda answer: answer.affected)


class SqlPublished:
    """Messages that left longer ago than ``age`` seconds and are kept, as a sweeper takes them."""

    def __init__(self, store: SqlStore, age: float) -> None:
        self._store, self._age = store, round(age * 1e6)

    def sweep(self, limit: int) -> list[Ask[int]]:
        sql = f"DELETE FROM {TABLE}_published WHERE id IN (SELECT x.id FROM ({self._old()}) AS x)"
        params = {"age": self._age, "limit": limit}
        return [Ask(self._store.query(sql, params), lambda answer: answer.affected)]

    def forgotten(self, limit: int) -> list[Ask[list[tuple[int, Envelope]]]]:
        """Up to so many, to be archived, and up to `PAGE_BYTES` of them."""
        source = f"{TABLE}_published AS d JOIN ({self._old()}) AS x ON x.id = d.id, {self._store.clock}"
        sql = page(self._store, COLUMNS, source, ["d.id"])
        params = {"age": self._age, "limit": limit, "span_bytes": PAGE_BYTES}
        return [Ask(self._store.query(sql, params, writes=False), _read_kept)]

    def remove(self, seen: Sequence[tuple[int, Envelope]]) -> list[Ask[int]]:
        among, params = self._store.among("token", "id", [number for number, _ in seen])
        sql = f"DELETE FROM {TABLE}_published WHERE id {among}"
        return [Ask(self._store.query(sql, params), lambda answer: answer.affected)]

    def _old(self) -> str:
        p = self._store.p
        skip = self._store.SKIP_LOCKED.replace(" OF r", " OF k")
        return (
            f"SELECT k.id FROM {TABLE}_published AS k, {self._store.clock} "
            f"WHERE k.published <= t.now - {p('token', 'age')} ORDER BY k.published LIMIT {p('limit')}{skip}"
        )


def _backlog(answer: Rows) -> list[Backlog]:
    found: dict[str, Backlog] = {}
    for topic, paused, due, count, oldest, now, error in answer.rows:
        one, number, age = found.get(topic, Backlog(topic, 0, 0.0, 0, 0.0, False)), int(count), _age(oldest, now)
        one = one._replace(messages=one.messages + number, oldest=max(one.oldest, age), paused=bool(int(paused)))
        one = one._replace(error=error or one.error)
        found[topic] = one._replace(due=number, oldest_due=age) if int(due) else one
    return list(found.values())


def _age(instant: int | None, now: int) -> float:
    return 0.0 if instant is None else max(0.0, (int(now) - int(instant)) / 1e6)


def _relays(answer: Rows) -> list[RelaySeen]:
    return [RelaySeen(name, hold, _age(since, now), _age(seen, now)) for name, hold, since, seen, now, _ in answer.rows]


def _holders(answer: Rows) -> list[Holder]:
    return [Holder(str(name), None if seconds is None else float(seconds)) for name, seconds in answer.rows]


def _read_letters(answer: Rows) -> list[DeadLetter]:
    found = []
    for row in answer.rows:
        fields: dict[str, Any] = dict(zip(_LETTER, row, strict=False))
        found.append(
            DeadLetter(
                int(fields["id"]),
                envelope_in(fields),
                int(fields["started"]),
                int(fields["finished"]),
                fields["error"],
                int(fields["created"]),
                int(fields["dead_at"]),
                int(row[-1]),
                bool(int(fields["parked"])),
            )
        )
    return found


def _read_kept(answer: Rows) -> list[tuple[int, Envelope]]:
    rows: list[dict[str, Any]] = [dict(zip(COLUMNS, row, strict=False)) for row in answer.rows]
    return [(int(fields["id"]), envelope_in(fields)) for fields in rows]
