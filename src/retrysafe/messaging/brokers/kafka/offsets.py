"""Offsets beside the state in a SQL database: one transaction of the database, and none of the broker.

Each partition has a row: the next offset, and an epoch that the next owner of the partition counts up. A transaction
moves the offset only where it found it, and under its own epoch: a consumer that has lost the partition, and does not
know it yet, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

from confluent_kafka import Message

from retrysafe.messaging.brokers.kafka.batches import Batches, Place, after, first
from retrysafe.messaging.brokers.kafka.properties import Properties
from retrysafe.protocol.records import Duration
from retrysafe.streams.positions import NONE, Position, Positions, refuse_autocommit


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
        table: where the offsets are; `KafkaState` makes it when it is missing. The group is the job in it.
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
        table: str = "retrysafe_positions",
        max_records: int = 500,
        session: Duration = "15s",
        properties: Properties | None = None,
    ) -> None:
        self._positions, self._most = Positions(group, table, placeholder), max_records
        self._owned: dict[Place, Position] = {}
        self._in_doubt: set[Place] = set()
        """Partitions whose rows are read before their next records."""
        self._connect = connect
        self._connection: Any = connect()
        """None when one has failed and the next is not open yet."""
        refuse_autocommit(self._connection, placeholder)
        self._positions.create(self._connection)
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

    def take_over(self, places: list[Place]) -> dict[Place, int]:
        """Take partitions over, each under a new epoch: from now on their last owner changes nothing."""
        for place in sorted(places):
            self._owned[place] = self._positions.take(self._connection, _source(place))
        return {place: self._owned[place].next for place in places}

    def find_offset(self, place: Place) -> int:
        """Up to where a partition was read, and that is written down; below 0: nothing of it."""
        return self._row(place).next

    def leave(self, places: list[Place]) -> None:
        """Others may have these partitions by now."""
        for place in places:
            self._owned.pop(place, None)

    def _row(self, place: Place) -> Position:
        return self._positions.find(self._connection, _source(place)) or Position(NONE, NONE, "")

    def _move(self, place: Place, offset: int) -> bool:
        """Move the offset of a partition; whether it is ours, and stands where we left it."""
        owned = self._owned.get(place)
        if owned is None:
            return False
        return self._positions.move(self._connection, _source(place), owned, owned._replace(next=offset))


def _source(place: Place) -> str:
    return f"{place[0]}/{place[1]}"
