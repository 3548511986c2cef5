"""A process of the pipeline: it works until its standard input ends, or until it is killed."""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from retrysafe import Boundary
from retrysafe.messaging import Handler, Relay, Subscription
from retrysafe.messaging.brokers.sqlite import SqliteConsumer, SqlitePublisher
from retrysafe_demo.pipeline import shop
from retrysafe_demo.pipeline.mishaps import Death, Mishaps, Point, Role, UnreliableConsumer, UnreliablePublisher
from retrysafe_demo.pipeline.shop import LEASE, Places

LONGEST_PAUSE = 0.04
"""Seconds until the next customer comes, at most."""


def when_told(end: Callable[[], None]) -> None:
    """Call ``end`` when standard input ends: nobody wants this process any more."""

    def listen() -> None:
        sys.stdin.buffer.read()
        end()

    threading.Thread(target=listen, daemon=True).start()


def take_orders(places: Places, mishaps: Mishaps, seed: int, number: int) -> None:
    """Take all orders from the first; those that were taken in an earlier life are replayed."""
    boundary, take = shop.taking(places, written=lambda: mishaps.at(Point.ORDER_WRITTEN))
    for order in shop.intents(seed, number):
        if take(order):
            mishaps.at(Point.ORDER_TAKEN)
            time.sleep(mishaps.chance.uniform(0.0, LONGEST_PAUSE))
    boundary.close()
    sys.stdin.buffer.read()


def relay(places: Places, mishaps: Mishaps) -> None:
    """Publish what the orders have written."""
    publisher = UnreliablePublisher(SqlitePublisher(places.broker), mishaps)
    working = Relay(places.orders, publisher, lease=LEASE)
    when_told(working.stop)
    working.run_forever()


def consume(places: Places, mishaps: Mishaps, queue: str, opened: tuple[Boundary, Handler[..., None]]) -> None:
    """Handle what comes to a queue."""
    boundary, handler = opened

    async def work() -> None:
        consumer = UnreliableConsumer(SqliteConsumer(places.broker, queue, hold=LEASE), mishaps)
        subscription = Subscription(consumer, handler, lanes=4)
        when_told(subscription.stop)
        await subscription.arun_forever()
        await boundary.aclose()

    asyncio.run(work())


def main() -> None:
    """Work in the role that the arguments say."""
    parser = argparse.ArgumentParser(prog="retrysafe_demo.pipeline.worker")
    parser.add_argument("role", type=Role)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--orders", type=int, required=True)
    parser.add_argument("--life", required=True, help="seeds what comes twice")
    parser.add_argument("--dies-at", choices=Point.__members__)
    parser.add_argument("--after", type=int, default=1)
    given = parser.parse_args()
    death = None if given.dies_at is None else Death(Point[given.dies_at], given.after)
    places, mishaps = Places(given.folder), Mishaps(death, f"{given.seed} {given.life}")
    hook = lambda: mishaps.at(Point.HANDLING)  # noqa: E731
    match given.role:
        case Role.ORDERS:
            take_orders(places, mishaps, given.seed, given.orders)
        case Role.RELAY:
            relay(places, mishaps)
        case Role.INVENTORY:
            consume(places, mishaps, "inventory", shop.reserving(places, written=hook))
        case Role.MAIL:
            consume(places, mishaps, "mail", shop.mailing(places, sent=hook))


if __name__ == "__main__":
    main()
