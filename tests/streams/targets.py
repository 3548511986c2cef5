"""Places to write a stream to: a ledger, and what the data looks like to a reader."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from retrysafe.streams import Ledger, SqlLedger

SQL = ("sqlite", "postgresql", "mysql")


class _Target:
    """Closes the ledgers that it has made. It is pickled without them."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "made": []}

    def close(self) -> None:
        for ledger in self.made:
            ledger.close()


class SqlTarget(_Target):
    """A table of numbers in a database."""

    def __init__(self, kind: str, url: str) -> None:
        super().__init__()
        self.kind, self.url, self.name = kind, url, f"t{secrets.token_hex(6)}"
        self.mark = "?" if kind == "sqlite" else "%s"
        self.do(f"CREATE TABLE {self.name} (number INTEGER NOT NULL)")

    def connect(self) -> Any:
        if self.kind == "sqlite":
            return sqlite3.connect(self.url, timeout=30)
        if self.kind == "postgresql":
            import psycopg

            return psycopg.connect(self.url)
        import pymysql

        at = urlsplit(self.url)
        return pymysql.connect(
            host=at.hostname, port=at.port or 3306, user=at.username, password=at.password or "", database=at.path[1:]
        )

    def ledger(self) -> Ledger:
        self.made.append(SqlLedger(self.connect, self.name, placeholder=self.mark, table=f"{self.name}_positions"))
        return self.made[-1]  # type: ignore[no-any-return]

    def write(self, numbers: Any, connection: Any) -> None:
        cursor = connection.cursor()
        for number in numbers:
            cursor.execute(f"INSERT INTO {self.name} VALUES ({self.mark})", (number,))

    def written(self) -> list[int]:
        return [number for (number,) in self.do(f"SELECT number FROM {self.name} ORDER BY number")]

    def do(self, sql: str) -> list[Any]:
        with closing(self.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute(sql)
            rows = list(cursor.fetchall()) if cursor.description else []
            connection.commit()
            return rows

    def close(self) -> None:
        super().close()
        self.do(f"DROP TABLE {self.name}")
        self.do(f"DROP TABLE IF EXISTS {self.name}_positions")


class KafkaTarget(_Target):
    """A topic of numbers."""

    def __init__(self, url: str, name: str = "") -> None:
        from retrysafe.messaging.brokers.kafka import declare

        super().__init__()
        self.url, self.name = url, name or f"t{secrets.token_hex(6)}"
        declare(url, [self.name], partitions=1)

    @classmethod
    def fed(cls, name: str, numbers: Iterable[int]) -> KafkaTarget:
        """A topic that has numbers already."""
        from confluent_kafka import Producer

        from retrysafe.messaging.brokers.kafka.properties import properties_of

        made = cls(os.environ["RETRYSAFE_TEST_KAFKA"], name)
        producer = Producer(properties_of(made.url, {}))
        for number in numbers:
            producer.produce(name, b"%d" % number)
        assert producer.flush(20) == 0
        return made

    def ledger(self) -> Ledger:
        from retrysafe.messaging.brokers.kafka import KafkaLedger

        self.made.append(KafkaLedger(self.url, self.name, timeout="20s"))
        return self.made[-1]  # type: ignore[no-any-return]

    def write(self, numbers: Any, tx: Any) -> None:
        for number in numbers:
            tx.produce(self.name, b"%d" % number)

    def written(self) -> list[int]:
        """Return the committed numbers, up to the end of those sent by now."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        from retrysafe.messaging.brokers.kafka.properties import properties_of
        from retrysafe.messaging.brokers.kafka.topics import admin

        place = TopicPartition(self.name, 0, OFFSET_BEGINNING)
        asking = admin(properties_of(self.url, {}))  # with it would go what was asked
        end = asking.list_offsets({place: OffsetSpec.latest()})[place].result(30).offset  # type: ignore[no-untyped-call]
        reading = {"group.id": self.name, "enable.partition.eof": True, "isolation.level": "read_committed"}
        consumer, found = Consumer(properties_of(self.url, reading)), []
        consumer.assign([place])
        while True:
            message = consumer.poll(30)
            assert message is not None, "the topic did not end in time"
            if message.error() is None:
                found.append(int(message.value() or b""))
            elif (message.offset() or 0) >= end:
                consumer.close()
                return sorted(found)

    def close(self) -> None:
        super().close()
        from retrysafe.messaging.brokers.kafka.properties import properties_of
        from retrysafe.messaging.brokers.kafka.topics import admin

        asking = admin(properties_of(self.url, {}))
        for gone in asking.delete_topics([self.name, f"{self.name}.positions"]).values():
            gone.exception(30)


Target = SqlTarget | KafkaTarget


def target(kind: str, folder: Any) -> Target:
    """A new place of one kind; ``require`` its service before."""
    if kind == "sqlite":
        return SqlTarget(kind, str(folder / "data.db"))
    url = os.environ[f"RETRYSAFE_TEST_{kind.upper()}"]
    return KafkaTarget(url) if kind == "kafka" else SqlTarget(kind, url)
