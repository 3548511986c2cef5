"""Run the shop: so many orders, two relays, two inventories, two mailers, and what the databases say in the end.

``python -m examples.shop [--broker URL] [--orders N] [--faults]``. With ``--faults`` one of the processes is killed
(SIGKILL) several times a second, as long as there is work.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sqlite3
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from retrysafe.messaging.brokers import registry

SERVICES = ("relay", "relay", "inventory", "inventory", "mail", "mail")


def start(name: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a process of the shop."""
    return subprocess.Popen([sys.executable, "-m", f"examples.shop.{name}", *arguments])


class Shop:
    """Its processes; one that has ended is replaced."""

    def __init__(self, orders: int) -> None:
        self.kills = 0
        self._orders = orders
        self._names = ["orders", *SERVICES]
        self._running = [self._start(name) for name in self._names]

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        return start(name, str(self._orders)) if name == "orders" else start(name)

    def kill_one(self) -> None:
        """Kill a process, whatever it is doing, and start it anew."""
        at = random.randrange(len(self._names))
        if self._running[at].poll() is None:  # the orders end by themselves
            self._running[at].kill()
            self._running[at].wait()
            self._running[at] = self._start(self._names[at])
            self.kills += 1

    def close(self) -> None:
        """Let all of them finish what they have begun."""
        for process in self._running:
            process.terminate()
        for process in self._running:
            process.wait()


def ask(folder: Path, service: str, sql: str) -> Any:
    """One number from a database."""
    with closing(sqlite3.connect(folder / f"{service}.db", timeout=30)) as file:
        return file.execute(sql).fetchone()[0]


OUT_OF_ORDER = """SELECT count(*) FROM reservations AS later JOIN reservations AS earlier
ON earlier.customer = later.customer AND earlier.number < later.number AND earlier.n > later.n"""


def audit(folder: Path) -> dict[str, int]:
    """Count the entries of the databases."""
    orders = ask(folder, "orders", "SELECT count(*) FROM orders")
    taken = ask(folder, "inventory", "SELECT coalesce(sum(1000 - on_hand), 0) FROM stock")
    return {
        "orders": orders,
        "reserved": ask(folder, "inventory", "SELECT count(*) FROM reservations"),
        "reserved for different orders": ask(folder, "inventory", "SELECT count(DISTINCT order_id) FROM reservations"),
        "reserved out of order": ask(folder, "inventory", OUT_OF_ORDER),
        "goods ordered": ask(folder, "orders", "SELECT coalesce(sum(quantity), 0) FROM orders"),
        "goods taken from the stock": taken,
        "mails": ask(folder, "provider", "SELECT count(*) FROM mails"),
        "orders with a mail": ask(folder, "provider", "SELECT count(DISTINCT about) FROM mails"),
    }


def kept(found: dict[str, int], orders: int) -> bool:
    """Tell whether every order was reserved once, in order, and mailed once."""
    return (
        [found[name] for name in ("orders", "reserved", "reserved for different orders", "mails", "orders with a mail")]
        == [orders] * 5
        and found["goods ordered"] == found["goods taken from the stock"]
        and not found["reserved out of order"]
    )


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m examples.shop", description=__doc__)
    parser.add_argument(
        "--broker",
        default="",
        metavar="URL",
        help=f"{', '.join(f'{spec.schemes[0]}://…' for spec in registry.specs())} (default: a SQLite file)",
    )
    parser.add_argument("--orders", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=Path("shop-data"), help="where the databases go")
    parser.add_argument("--faults", action="store_true", help="kill the processes while they work")
    parser.add_argument("--seconds", type=float, default=120.0, help="when to give up")
    options = parser.parse_args()
    if options.folder.exists():
        parser.error(f"--folder {options.folder} is there already: remove it, or name another one")
    lease = "1s" if options.faults else "6s"
    os.environ.update(SHOP_FOLDER=str(options.folder), SHOP_BROKER=options.broker, SHOP_LEASE=lease)
    from examples.shop import inventory, mail, orders, places  # makes the tables, so that they can be looked at

    del inventory, mail, orders
    asyncio.run(places.make_queues())
    with ExitStack() as stack:
        shop = Shop(options.orders)
        stack.callback(shop.close)
        deadline = time.monotonic() + options.seconds
        seen: dict[str, int] = {}
        while not kept(found := audit(options.folder), options.orders) and time.monotonic() < deadline:
            time.sleep(0.2)
            if options.faults and found != seen:  # else a slow machine would do nothing but start processes
                seen = found
                shop.kill_one()
    found = audit(options.folder)
    for name, number in found.items():
        print(f"{number:>6} {name}")
    print(f"{shop.kills:>6} processes killed")
    return 0 if kept(found, options.orders) else 1


if __name__ == "__main__":
    sys.exit(main())
