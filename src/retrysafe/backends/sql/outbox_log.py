"""The questions of a relay to PostgreSQL about messages that it has read from the log. Every method is pure.

The log says that a message was committed; the table says whether it is still to leave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from retrysafe.backends.sql.outbox import TABLE
from retrysafe.backends.sql.postgresql import PostgresqlStore
from retrysafe.protocol.records import Micros
from retrysafe.protocol.requests import Ask, Rows, nothing

_XIDS = 1 << 32
"""The log numbers transactions modulo this."""


class Waiting(NamedTuple):
    """A message that is in the table: whether it may leave now, and the attempts to publish it."""

    message_id: str
    free: bool
    started: int
    finished: int
    noted: bool


class TableLook(NamedTuple):
    """The table's view of messages: the present ones by number, the time, and the transactions that it shows."""

    waiting: Mapping[int, Waiting]
    now: Micros
    snapshot: str

    def shows(self, xid: int) -> bool:
        """Tell whether what a transaction has written is visible: a commit is in the log a moment before it is."""
        _, upper, running = self.snapshot.split(":")
        begun_later = (xid - int(upper)) % _XIDS < _XIDS // 2
        return not begun_later and xid not in {int(one) % _XIDS for one in running.split(",") if one}


class SqlOutboxLog:
    """The outbox of a PostgreSQL, for a relay that reads its log."""

    def __init__(self, store: PostgresqlStore) -> None:
        self._store = store

    def hold(self, numbers: Sequence[int], silence: float) -> Ask[None]:
        """Hold buckets to the end of the transaction; wait for relays that hold them.

        In one order, so that no two wait for each other. For ``silence``, see `SqlOutbox.hold`.
        """
        among, buckets = self._store.among("token", "bucket", numbers)
        sql = (
            f"SELECT b.bucket{self._store.SILENCE} FROM {TABLE}_buckets AS b WHERE b.bucket {among} "
            "ORDER BY b.bucket FOR UPDATE"
        )
        return Ask(self._store.query(sql, {**buckets, "silence": f"{silence * 1000:.0f}"}), nothing)

    def look(self, ids: Sequence[int], shut: Sequence[str]) -> Ask[TableLook]:
        """Find those of these messages that are in the table.

        None may leave that is behind one of its lane that waits, or that is not among these; or is of a topic that is
        paused or ``shut``.
        """
        among, numbers = self._store.among("token", "id", ids)
        closed, topics = self._store.among("operation", "shut", shut)
        delayed = "d.bucket = p.bucket AND d.lane = p.lane AND d.id + 0 <= p.id AND d.not_before + 0 > t.now"
        older = f"o.bucket = p.bucket AND o.lane = p.lane AND o.id < p.id AND (o.id {among}) IS NOT TRUE"
        unless = (
            f"EXISTS (SELECT 1 FROM {TABLE}_attempts AS d WHERE {delayed})",
            f"EXISTS (SELECT 1 FROM {TABLE}_paused AS q WHERE q.topic = p.topic)",
            f"EXISTS (SELECT 1 FROM {TABLE} AS o WHERE {older})",
            f"p.topic {closed}",
        )
        sql = (
            f"SELECT CAST(pg_current_snapshot() AS text), t.now, p.id, p.message_id, "
            f"CASE WHEN {' OR '.join(unless)} THEN 0 ELSE 1 END, "
            "coalesce(w.started, 0), coalesce(w.finished, 0), w.id "
            f"FROM {self._store.clock} LEFT JOIN {TABLE} AS p ON p.id {among} "
            f"LEFT JOIN {TABLE}_attempts AS w ON w.id = p.id"
        )
        return Ask(self._store.query(sql, {**numbers, **topics}, writes=False), _look)


def _look(answer: Rows) -> TableLook:
    waiting = {
        int(number): Waiting(message_id, int(free) == 1, int(started), int(finished), noted is not None)
        for _, _, number, message_id, free, started, finished, noted in answer.rows
        if number is not None
    }
    return TableLook(waiting, int(answer.rows[0][1]), answer.rows[0][0])
