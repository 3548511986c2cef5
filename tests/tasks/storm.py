"""Workers that are killed one after the other while tasks are under way; the charges of each order in the end.

``python -m tests.tasks.storm`` runs it for every queue, with `once` and without, and prints the table of the how-tos.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.tasks.workers import PATIENCE, World, world

KINDS = ("celery-redis", "celery-rabbitmq", "dramatiq-redis", "taskiq-redis")
SILENCE = 6.0
"""Seconds for which copies may still come: three visibility timeouts."""


def storm(shop: World, *, kills: int, orders: int) -> Counter[int]:
    """Kill so many workers and stop one for a while, each with a task under way; count orders by their charges."""
    names = [f"order-{number}" for number in range(orders)]
    shop.start()
    shop.start()
    shop.send(*names)
    for number in range(kills):
        seen = len(shop.entries("began"))
        if number:
            shop.until(lambda seen=seen: len(shop.entries("began")) > seen, "another task begins")
        shop.begun(names[0])
        worker = shop.workers[0]
        shop.kill(worker)
        shop.open(*names[number * 2 : number * 2 + 2])
        shop.start()
    pid = shop.until(lambda: shop.entries("began"), "one begins")[-1][0]
    try:
        shop.stop(pid)
        time.sleep(SILENCE)
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:  # it was of a worker that was killed
        pass
    shop.open(*names)
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and not all(shop.rows(name, "done") for name in names):
        shop.send("nudge")
        time.sleep(1)
    time.sleep(SILENCE)
    shop.lost = sum(not shop.rows(name, "done") for name in names)
    return Counter(shop.charges(name) for name in names)


def main(kinds: list[str]) -> None:
    """Print the table."""
    for kind in kinds or KINDS:
        for guarded in (False, True):
            with tempfile.TemporaryDirectory() as folder, world(kind, Path(folder), guarded=guarded) as shop:
                counts = storm(shop, kills=6, orders=20)
                print(kind, "once" if guarded else "plain", sorted(counts.items()), "not done:", shop.lost, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
