"""Requests and their duplicates against workers that are killed all the time, and what the ledger says afterwards.

``python -m tests.http.killing [STORE…]`` runs 10,000 requests with a kill every second, by default on SQLite and every
service that the environment leads to.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import secrets
import sqlite3
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

import psycopg

from retrysafe.admin.operator import Operator
from retrysafe.backends.registry import connect
from retrysafe.protocol.records import Filter
from tests.http.apps import ledger
from tests.http.fleet import Fleet

CLIENTS = 48
WORKERS = 4
PATIENCE = 30.0
"""Seconds after which a client takes a connection for dead."""


class Answer(NamedTuple):
    """A final answer: what a replay must repeat, and whether it was marked as one."""

    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    replayed: bool


@dataclass
class Report:
    """The report of a run."""

    store: str
    requests: int
    kills: int = 0
    seconds: float = 0.0
    lost: int = 0
    """Requests whose connection broke before the answer."""
    refused: Counter[int] = field(default_factory=Counter)
    takeovers: int = 0
    """Attempts that began after another one had died with the key."""
    answers: dict[str, list[Answer]] = field(default_factory=lambda: defaultdict(list))
    lines: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """The ledger: the lines of each order."""
    recognised: int = 0
    """Calls of the bank with a key that it had seen."""

    answered: int = 0
    progress: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def replays(self) -> int:
        return sum(answer.replayed for given in self.answers.values() for answer in given)

    def check(self) -> None:
        """Every order has one line, and every answer to it is that line's, byte by byte."""
        assert sum(map(len, self.answers.values())) == self.requests
        assert self.lines.keys() == self.answers.keys()
        assert {len(lines) for lines in self.lines.values()} == {1}
        for order, given in self.answers.items():
            assert {answer.body for answer in given} == {_body(order, self.lines[order][0])}
            assert len({answer.headers for answer in given}) == 1
            assert sum(not answer.replayed for answer in given) <= 1

    def __str__(self) -> str:
        refused = ", ".join(f"{status}: {count}" for status, count in sorted(self.refused.items()))
        return (
            f"{self.store}: {self.requests} requests for {len(self.answers)} orders in {self.seconds:.1f} s; "
            f"{self.kills} kills, {self.lost} answers lost, {self.takeovers} takeovers, {self.replays} replays, "
            f"refused {{{refused}}}, {self.recognised} calls recognised by the bank"
        )


Pace = Callable[[Report], Awaitable[None]]
"""Waits until the next worker is to be killed."""


def _body(order: str, line: str) -> bytes:
    return json.dumps({"order": order, "line": line}, separators=(",", ":")).encode()


def schedule(requests: int, chance: random.Random) -> list[str]:
    """The orders of all requests: a third are duplicates, half of them at once with the first, half later."""
    duplicates = requests // 3
    orders = [f"order-{number}" for number in range(requests - duplicates)]
    twins = set(chance.sample(range(len(orders)), duplicates // 2))
    course = [order for number, order in enumerate(orders) for _ in range(1 + (number in twins))]
    for order in chance.sample(orders, duplicates - len(twins)):
        after = course.index(order) + CLIENTS
        course.insert(chance.randint(min(after, len(course)), len(course)), order)
    return course


async def run(store: str, pace: Pace, *, bank: bool, requests: int) -> Report:
    """Send the requests while workers are killed at this pace; not yet checked."""
    report = Report(f"{urlsplit(store).scheme} {'keyed' if bank else 'transactional'}", requests)
    name = f"ledger {secrets.token_hex(4)}"
    waiting = schedule(requests, random.Random(requests))[::-1]
    async with (
        _bank(report) as address,
        Fleet(WORKERS, ledger.guarded, name, store, address if bank else None) as fleet,
    ):
        began = time.monotonic()
        clients = asyncio.gather(*(_client(fleet.address, waiting, report) for _ in range(CLIENTS)))
        killing = asyncio.ensure_future(_kill(fleet, pace, report))
        ended, others = await asyncio.wait((clients, killing), return_when=asyncio.FIRST_COMPLETED)
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for one in ended:
            await one  # the killer ends only by an error
        report.seconds, report.kills = time.monotonic() - began, fleet.kills
    with Operator(store, observers=()) as operator:
        report.takeovers = sum(record.attempts - 1 for record in operator.each(Filter(name)))
    return report


async def _kill(fleet: Fleet, pace: Pace, report: Report) -> None:
    while True:
        await pace(report)
        await fleet.kill_one()


def every_seconds(seconds: float) -> Pace:
    """A kill at this interval."""
    return lambda report: asyncio.sleep(seconds)


def every_answers(number: int) -> Pace:
    """A kill after so many answers, however long they take."""

    async def pace(report: Report) -> None:
        enough = report.answered + number
        while report.answered < enough:
            report.progress.clear()
            await report.progress.wait()

    return pace


# ---------------------------------------------------------------- clients


async def _client(address: tuple[str, int], waiting: list[str], report: Report) -> None:
    """Take one request after the other, and send each with the same key until it is answered."""
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    chance = random.Random(0)
    while waiting:
        order = waiting.pop()
        while True:
            try:
                connection = connection or await asyncio.open_connection(*address)
                status, answer = await asyncio.wait_for(_ask(*connection, order), PATIENCE)
            except (OSError, EOFError, TimeoutError):
                if connection is not None:
                    connection[1].close()
                connection = None
                report.lost += 1
                continue
            if status == 201:
                report.answers[order].append(answer)
                report.answered += 1
                report.progress.set()
                break
            if status not in (409, 503):
                raise AssertionError(f"{status}: {answer.body!r}")
            report.refused[status] += 1
            await asyncio.sleep(chance.uniform(0.02, 0.2))  # a client's pause before it tries again
    if connection is not None:
        connection[1].close()
        with suppress(OSError):
            await connection[1].wait_closed()


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, order: str) -> tuple[int, Answer]:
    body = json.dumps({"order": order}).encode()
    writer.write(
        b"POST /orders HTTP/1.1\r\nHost: shop\r\nContent-Type: application/json\r\n"
        b'Idempotency-Key: "%s"\r\nContent-Length: %d\r\n\r\n%s' % (order.encode(), len(body), body)
    )
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[:-2]
    headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    found = dict(headers)
    content = await reader.readexactly(int(found[b"content-length"]))
    end_to_end = tuple(sorted(pair for pair in headers if pair[0] not in _RENEWED))
    return int(first.split()[1]), Answer(end_to_end, content, b"idempotent-replayed" in found)


_RENEWED = (b"date", b"idempotent-replayed", b"cache-control")


# ---------------------------------------------------------------- the world outside


@asynccontextmanager
async def _bank(report: Report) -> AsyncIterator[tuple[str, int]]:
    """A service that is never killed, and recognises keys that it has seen."""
    by_key: dict[str, str] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError):
            order, key = json.loads(await reader.readline())
            if key in by_key:
                report.recognised += 1
            else:
                by_key[key] = secrets.token_hex(8)
                report.lines[order].append(by_key[key])
            writer.write(by_key[key].encode() + b"\n")
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        address: tuple[str, int] = server.sockets[0].getsockname()
        yield address


def prepare(store: str) -> None:
    """Make the tables of records and of the ledger."""
    if store.startswith("postgresql"):
        connect(store).migrate()
        with psycopg.connect(store) as connection:
            connection.execute(b"DROP TABLE IF EXISTS ledger")
            connection.execute(ledger.TABLE.encode())
    elif store.startswith("sqlite"):
        connect(store).migrate()
        with closing(sqlite3.connect(store.removeprefix("sqlite:///"))) as file:
            file.execute(ledger.TABLE)


def read_ledger(store: str, report: Report) -> None:
    """Read the ledger that is in the store's database."""
    sql = "SELECT order_id, line FROM ledger"
    if store.startswith("postgresql"):
        with psycopg.connect(store) as connection:
            found = connection.execute(sql.encode()).fetchall()
    else:
        with closing(sqlite3.connect(store.removeprefix("sqlite:///"))) as file:
            found = file.execute(sql).fetchall()
    for order, line in found:
        report.lines[order].append(line)


async def judge(store: str, pace: Pace, *, bank: bool, requests: int) -> Report:
    """The whole: prepare, run, read the ledger, check."""
    prepare(store)
    report = await run(store, pace, bank=bank, requests=requests)
    if not bank:
        read_ledger(store, report)
    report.check()
    return report


# ---------------------------------------------------------------- the long run


@contextmanager
def _stores(wanted: Sequence[str]) -> Iterator[list[tuple[str, bool]]]:
    """The stores to run on, and whether with a bank, each in a database of its own."""
    postgresql, redis = (os.environ.get(f"RETRYSAFE_TEST_{name}") for name in ("POSTGRESQL", "REDIS"))
    name = f"retrysafe_kills_{os.getpid()}"
    with tempfile.TemporaryDirectory() as folder:
        stores = [("sqlite", f"sqlite:///{folder}/own.db", False), ("sqlite", f"sqlite:///{folder}/keyed.db", True)]
        if postgresql:
            url = urlsplit(postgresql)._replace(path=f"/{name}").geturl()
            stores += [("postgresql", url, False), ("postgresql", url, True)]
        if redis:
            stores.append(("redis", redis, True))
        chosen = [(store, bank) for kind, store, bank in stores if not wanted or kind in wanted]
        if not postgresql:
            yield chosen
            return
        with psycopg.connect(postgresql, autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name}".encode())
            try:
                yield chosen
            finally:
                admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def main() -> None:
    """Run, and print what happened; an `AssertionError` is a broken promise."""
    parser = argparse.ArgumentParser(prog="python -m tests.http.killing", description=__doc__)
    parser.add_argument("stores", nargs="*", choices=["sqlite", "postgresql", "redis", []], metavar="STORE")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--every", type=float, default=1.0, metavar="SECONDS", help="between two kills")
    options = parser.parse_args()
    with _stores(options.stores) as stores:
        for store, bank in stores:
            print(
                asyncio.run(judge(store, every_seconds(options.every), bank=bank, requests=options.requests)),
                flush=True,
            )


if __name__ == "__main__":
    main()
