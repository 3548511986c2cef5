"""Offsets beside the state in a SQL database: one transaction of the database, and none of the broker.

Each partition has a row: the next offset, and an epoch that whoever takes the partition over counts up. A transaction
moves the offset only where it found it, and under its own epoch: a consumer that has lost the partition, and does not
know it yet, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, NamedTuple

from confluent_kafka import Message

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.kafka.batches import Batches, Place, after, first
from retrysafe.messaging.brokers.kafka.properties import Properties
from retrysafe.protocol.records import Duration

TABLE = """CREATE TABLE IF NOT EXISTS {table} (
    consumer VARCHAR(255) NOT NULL,
    topic VARCHAR(249) NOT NULL,
    part INTEGER NOT NULL,
    next_offset BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    PRIMARY KEY (consumer, topic, part)
)"""
_NONE = -1
"""The next offset of a partition of which nothing was read yet."""


class _Owned(NamedTuple):
    """A partition under our epoch, and where its row stands."""

    next: int
    epoch: int


class StateTransaction:
    """A batch of records, in a transaction of the database.

    Attributes:
        records: in their order within each partition.
        connection: of the database; its transaction is committed when the block is left.
        is_committed: whether it was; if not, another consumer has taken a partition over, and nothing was changed.
    """

    def __init__(self, connection: Any, records: Sequence[Message]) -> None:
        self.connection, self.records = connection, records
        self.is_committed = False


class KafkaState(Batches):
    """Reads topics into a database: the state that is made of records, and their offsets, are committed together.

    ::

        with KafkaState(url, "orders", group="totals", connect=connect) as stream:
            while True:
                with stream.transaction() as tx:
                    for record in tx.records:
                        tx.connection.execute("UPDATE totals SET …", …)

    Use it in one thread. An exception rolls back, the records are read again, and the exception goes on. If it was the
    commit that failed, the table tells whether it was made, and where to go on. Kafka's own offsets of the group are
    not used.

    Arguments:
        url: of the brokers, as `KafkaPublisher` takes it.
        topics: that are read.
        group: whose consumers share the partitions.
        connect: opens a connection of the DB-API, not in autocommit; called again when one has failed.
        placeholder: of a parameter in its SQL: "?" for SQLite.
        table: where the offsets are; `KafkaState` makes it when it is missing.
        max_records: of one transaction.
        session: for how long a dead consumer keeps its partitions.
        properties: further ones of librdkafka.
    """

    def __init__(
        self,
        url: str,
        topics: str | Iterable[str],
        *,
        group: str,
        connect: Callable[[], Any],
        placeholder: str = "%s",
        table: str = "kafka_offsets",
        max_records: int = 500,
        session: Duration = "15s",
        properties: Properties | None = None,
    ) -> None:
        self._group, self._table, self._mark, self._most = group, table, placeholder, max_records
        self._owned: dict[Place, _Owned] = {}
        self._in_doubt: set[Place] = set()
        """Partitions whose rows are read before their next records."""
        self._connect = connect
        self._connection: Any = connect()
        """None when one has failed and the next is not open yet."""
        if getattr(self._connection, "autocommit", False) is True or (
            getattr(self._connection, "isolation_level", "") is None and placeholder == "?"
        ):
            raise ConfigurationError("connect= opens connections in autocommit: offsets and state would part.")
        self._perform(TABLE.format(table=table))
        self._connection.commit()
        super().__init__(url, topics, group, session, properties)

    def __enter__(self) -> KafkaState:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Leave the group, and close the connection."""
        super().close()
        if self._connection is not None:
            self._connection.close()

    @contextmanager
    def transaction(self, wait: float = 1.0) -> Iterator[StateTransaction]:
        """A transaction over the next records; waits so many seconds for the first one."""
        self._resolve_doubt()
        read = self.read(self._most, wait)
        tx = StateTransaction(self._connection, [one for records in read.values() for one in records])
        try:
            yield tx
            moved = {place: after(records) for place, records in read.items()}
            if not all(self._move(place, offset) for place, offset in sorted(moved.items())):
                return
            self._connection.commit()
            tx.is_committed = True
            for place, offset in moved.items():
                self._owned[place] = self._owned[place]._replace(next=offset)
        finally:
            if not tx.is_committed:
                self._in_doubt |= read.keys()
                self._roll_back()
                self.return_to({place: first(records) for place, records in read.items()})

    def _roll_back(self) -> None:
        """End the transaction; a connection that cannot is replaced."""
        try:
            self._connection.rollback()
        except Exception:  # noqa: BLE001 - of whatever driver
            with suppress(Exception):
                self._connection.close()
            self._connection = None

    def _resolve_doubt(self) -> None:
        """Go on where the rows of partitions stand: a commit that failed here may have been made there."""
        if self._connection is None:
            self._connection = self._connect()
        for place in list(self._in_doubt):
            owned, found = self._owned.get(place), self._row(place)
            if owned is not None and found.epoch == owned.epoch and found.next != owned.next:
                self._owned[place] = found
                self.return_to({place: found.next})
            self._in_doubt.discard(place)

    def begun(self, places: list[Place]) -> dict[Place, int]:
        """Take partitions over, each under a new epoch: from now on their last owner changes nothing."""
        for place in sorted(places):
            self._owned[place] = self._taken(place)
        return {place: self._owned[place].next for place in places}

    def reached(self, place: Place) -> int:
        """Up to where a partition was read, and that is written down; below 0: nothing of it."""
        return self._row(place).next

    def left(self, places: list[Place]) -> None:
        """Others may have these partitions by now."""
        for place in places:
            self._owned.pop(place, None)

    def _taken(self, place: Place) -> _Owned:
        where = f"WHERE consumer = {self._mark} AND topic = {self._mark} AND part = {self._mark}"
        of = (self._group, *place)
        values = ", ".join([self._mark] * 5)
        inserting = f"INSERT INTO {self._table} (consumer, topic, part, next_offset, epoch) VALUES ({values})"
        if not self._perform(f"UPDATE {self._table} SET epoch = epoch + 1 {where}", of).rowcount:
            with suppress(Exception):  # whoever else takes it for the first time
                self._perform(inserting, (*of, _NONE, 0))
                self._connection.commit()
            self._connection.rollback()
            self._perform(f"UPDATE {self._table} SET epoch = epoch + 1 {where}", of)
        return self._row(place)

    def _row(self, place: Place) -> _Owned:
        where = f"WHERE consumer = {self._mark} AND topic = {self._mark} AND part = {self._mark}"
        reading = f"SELECT next_offset, epoch FROM {self._table} {where}"
        found = self._perform(reading, (self._group, *place)).fetchone()
        self._connection.commit()
        return _Owned(*found)

    def _move(self, place: Place, offset: int) -> bool:
        """Move the offset of a partition; whether it is ours, and stands where we left it."""
        owned = self._owned.get(place)
        if owned is None:
            return False
        mark = self._mark
        moving = (
            f"UPDATE {self._table} SET next_offset = {mark} WHERE consumer = {mark} AND topic = {mark} "
            f"AND part = {mark} AND next_offset = {mark} AND epoch = {mark}"
        )
        moved: int = self._perform(moving, (offset, self._group, *place, owned.next, owned.epoch)).rowcount
        return moved == 1

    def _perform(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        cursor = self._connection.cursor()
        cursor.execute(sql, parameters)
        return cursor
