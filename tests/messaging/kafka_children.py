"""A stream in a process of its own: `python -m tests.messaging.kafka_children URL TOPIC OUTPUT GROUP ID DIE_AT`.

DIE_AT is the call of the producer, from 1, before which the process kills itself; 0: it does not, but tells "reading"
in the first block that has records, goes on when it is told to, and tells the outcome.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from retrysafe.messaging.brokers.kafka import KafkaTransactions

CALLS = (
    "begin_transaction",
    "produce",
    "produce",
    "send_offsets_to_transaction",
    "commit_transaction",
    "begin_transaction",
)
"""The calls for a batch of two records, and the first one for the next."""


class Mortal:
    """A producer whose process dies before one of its calls."""

    def __init__(self, producer: Any, die_at: int) -> None:
        self._producer, self._left = producer, die_at

    def __getattr__(self, name: str) -> Any:
        if name in CALLS:
            self._left -= 1
            if not self._left:
                self._producer.flush(10)
                os.kill(os.getpid(), signal.SIGKILL)
        return getattr(self._producer, name)


def transformed(value: bytes) -> bytes:
    return b"f(" + value + b")"


def drain(stream: KafkaTransactions, output: str, count: int) -> list[Any]:
    """Transform until the group has so many records in all behind it; the outcomes."""
    outcomes = []
    while True:
        with stream.transaction(0.1) as tx:
            for record in tx.records:
                tx.produce(output, transformed(record.value()), key=record.key())
        if tx.records:
            outcomes.append(tx.outcome)
        places = stream._batches.client.assignment()
        if places and sum(max(0, one.offset) for one in stream._batches.client.committed(places)) >= count:
            return outcomes


def main(url: str, topic: str, output: str, group: str, name: str, die_at: int) -> None:
    with KafkaTransactions(url, topic, group=group, transactional_id=name, max_records=2, session="1s") as stream:
        if die_at:
            stream._producer = Mortal(stream._producer, die_at)  # type: ignore[assignment]
        told = False
        while not told:
            with stream.transaction(1.0) as tx:
                for record in tx.records:
                    tx.produce(output, transformed(record.value()))
                if tx.records and not die_at:
                    told = True
                    print("reading", flush=True)
                    sys.stdin.readline()
            if told:
                print(type(tx.outcome).__name__, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:6], int(sys.argv[6]))
