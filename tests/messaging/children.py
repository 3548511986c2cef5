"""Relays in processes of their own: `python -m tests.messaging.children STORE LEDGER HOLD KEEP SEED MODE`.

What is published goes to a SQLite file, the ledger, in its own committed transaction: a broker that is never down. MODE
"suicidal" kills the process at seeded moments, before and after publishing; "slow" waits in its first publish until the
file LEDGER.go is there; "once" ends when nothing more is due.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from retrysafe.messaging.relay.relay import Relay
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus


class Ledger:
    """A publisher that writes down what it is given, in the order in which it was."""

    def __init__(self, path: str, chance: random.Random | None = None, *, slow: bool = False) -> None:
        self.path, self._chance, self._slow = path, chance, slow
        with closing(sqlite3.connect(path, timeout=60)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS taken (n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT, topic TEXT, key TEXT, "
                "sequence INTEGER, body TEXT)"
            )

    def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        if self._slow:
            self._slow = False
            Path(f"{self.path}.begun").touch()
            while not Path(f"{self.path}.go").exists():
                time.sleep(0.005)
        self._maybe_die(0.05)
        rows = [(one.id, one.topic, one.key, one.sequence, one.payload.decode()) for one in envelopes]
        with closing(sqlite3.connect(self.path, timeout=60)) as connection, connection:
            connection.execute("PRAGMA synchronous = OFF")
            connection.executemany("INSERT INTO taken (id, topic, key, sequence, body) VALUES (?, ?, ?, ?, ?)", rows)
        self._maybe_die(0.1)
        return [PublishResult(PublishStatus.ACKED)] * len(envelopes)

    def _maybe_die(self, chance: float) -> None:
        if self._chance is not None and self._chance.random() < chance:
            os.kill(os.getpid(), signal.SIGKILL)

    def close(self) -> None:
        """Nothing to hang up."""


class AsyncLedger(Ledger):
    """The same for async code."""

    async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:  # type: ignore[override]
        return await asyncio.to_thread(Ledger.publish, self, envelopes)

    async def aclose(self) -> None:
        """Nothing to hang up."""


def taken(path: str) -> list[tuple[str, str, str, int]]:
    """Read the published messages, in their order: id, topic, key and sequence."""
    if not Path(path).exists():
        return []
    with closing(sqlite3.connect(path, timeout=60)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'taken'").fetchall():
            return []  # it is being made
        return list(connection.execute("SELECT id, topic, key, sequence FROM taken ORDER BY n"))


def ledger() -> Ledger:
    """For the command line: the ledger that the environment names, slow until it is told to go on."""
    return Ledger(os.environ["LEDGER"], slow="SLOW" in os.environ)


class Poisoned(Ledger):
    """Takes all but one message, of which its process dies."""

    poison = ""

    def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        if self.poison in [one.id for one in envelopes]:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().publish(envelopes)


class AsyncPoisoned(Poisoned):
    """The same for async code."""

    async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:  # type: ignore[override]
        return await asyncio.to_thread(Poisoned.publish, self, envelopes)

    async def aclose(self) -> None:
        """Nothing to hang up."""


def main() -> None:
    store, path, hold, keep, seed, mode = sys.argv[1:]
    chance = random.Random(seed) if mode == "suicidal" else None
    colour = AsyncLedger if json.loads(keep)["async"] else Ledger
    relay = Relay(
        store,
        colour(path, chance),
        hold=hold,  # type: ignore[arg-type]
        keep_published=json.loads(keep)["keep"],
        lease="1s",
        max_crashes=1000,  # they are innocent
        batch=20,
        backoff_base="10ms",
        backoff_max="20ms",
        observers=(),
    )
    if colour is AsyncLedger:
        asyncio.run(relay.arun_forever())
    else:
        relay.run_forever()


if __name__ == "__main__":
    main()
