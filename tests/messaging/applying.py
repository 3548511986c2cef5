"""A service that applies messages: `python -m tests.messaging.applying BROKER URL TOPIC STORE`"""

from __future__ import annotations

import sys
from typing import Any

from retrysafe import Boundary
from retrysafe.messaging import Inbox, InboxMessage
from retrysafe.messaging.subscription.subscription import Subscription
from tests.messaging.harnesses import BENCHES


def applying(store: str) -> Any:
    """A handler that writes each message into the table ``applied`` of a SQLite file."""
    boundary = Boundary("inventory", store=store, effects="transactional", window="15d", observers=())

    @Inbox(boundary).handler("inventory", backoff_base="10ms", backoff_max="50ms", max_crashes=1000)
    def apply(message: InboxMessage[Any]) -> None:
        place = (message.envelope.key, int(message.envelope.payload))
        message.tx.execute("INSERT INTO applied (name, number) VALUES (?, ?)", place)

    return apply


def main(broker: str, url: str, topic: str, store: str) -> None:
    bench = BENCHES[broker](url)
    bench.topic = topic
    Subscription(bench.make(url), applying(store), lanes=2).run_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
