"""A consumer process for tests that kill it: handles the messages 0…N, of which its broker forgets none."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from retrysafe import Boundary
from retrysafe.messaging import Inbox, InboxMessage
from tests.messaging.inboxes import delivery

KEYS = 7
DIES = "CONSUMER_DIES"
"""With this in its environment a consumer waits before its last messages, until it is killed."""


def main(url: str, boundary: str, table: str, make: str, count: int, poison: int) -> None:
    inbox = Inbox(Boundary(boundary, store=url, effects="transactional", window="7d", observers=()))

    def one(message: InboxMessage[Any]) -> None:
        sql = f"INSERT INTO {table} VALUES ('{message.envelope.id}')"
        message.tx.query(sql) if hasattr(message.tx, "query") else message.tx.execute(sql)
        if int(message.envelope.id) == poison:
            os.kill(os.getpid(), signal.SIGKILL)

    def many(messages: list[InboxMessage[Any]]) -> None:
        for message in messages:
            one(message)

    handler: Any = getattr(inbox, make)("stock", max_crashes=3)(many if make == "set_handler" else one)
    print("ready", flush=True)
    waiting: set[int] = set()
    for start in range(0, count, 10):
        if start + 10 >= count and DIES in os.environ:
            sys.stdin.readline()
        numbers = [n for n in range(start, min(count, start + 10)) if n % KEYS not in waiting]
        again = make == "handler" or poison >= 0
        deliveries = [delivery(n, n % KEYS, redelivered=again) for n in numbers]
        if make == "handler":
            handled = [handler.handle(one.envelope) for one in deliveries]
        else:
            handled = handler.handle_many(deliveries)
        waiting |= {n % KEYS for n, found in zip(numbers, handled, strict=True) if not found.settled}
        print(start, flush=True)
    print("waiting" if waiting else "done", flush=True)


if __name__ == "__main__":
    url, boundary, table, make, count, poison = sys.argv[1:]
    main(url, boundary, table, make, int(count), int(poison))
