"""The time of the console's pages on a store with many records, and the way in which the database finds their rows.

    python -m tests.console.measuring                          ten million records; prints what it found
    python -m tests.console.measuring --rows 100000 --record   writes it to pages.json, for the page of the reference

It uses a SQLite file and a PostgreSQL server of its own, in a temporary directory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from retrysafe.backends import registry
from retrysafe.backends.backend import Backend
from retrysafe.backends.driver import run
from retrysafe.console import EVERY_RIGHT, Console, Principal
from retrysafe.protocol.requests import Ask, Query, ask
from retrysafe.runtime import PerProcess
from tests.console.crowd import fill
from tests.console.visiting import Page, Visitor
from tests.faults.servers import Cluster, postgresql_programs

RECORDED = Path(__file__).with_name("pages.json")
ROWS = 10_000_000
LOADS = 5
FIND = "find order-1042"
PATHS = (
    "/",
    "/keys",
    "/keys?boundary=payments&state=failed&scope=tenant-7",
    "/keys?state=lapsed",
    "/keys?boundary=no+such+boundary",
    "/unknown",
    "/unknown?boundary=payments&older-than=1h",
    "/keys/resolve?boundary=payments",
    "/messages",
    "/messages/dead",
    "/messages/inbox",
    "/boundaries",
    "/operations",
)
"""The pages that are loaded."""


class Reads(NamedTuple):
    """A plan's ways into the table of records, and the rows that each has read, where the database tells."""

    ways: dict[str, int]

    @classmethod
    def of(cls, found: Iterable[tuple[str, int]]) -> Reads:
        """The sum of several."""
        total: Counter[str] = Counter()
        for way, rows in found:
            total[way] += rows
        return cls(dict(total))


class Recording:
    """A client that keeps the statements it performs."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.performed: list[Query] = []

    def __call__(self, request: Any, /) -> Any:
        self.performed.append(request)
        return self._inner(request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def explained(backend: Backend, query: Query) -> Any:
    """Ask the database to explain a statement; PostgreSQL performs it."""
    words = "EXPLAIN QUERY PLAN" if backend.kind == "sqlite" else "EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON)"
    one = Ask(query._replace(sql=f"{words} {query.sql}"), lambda answer: answer.rows)

    def put() -> Any:
        return (yield from ask(one))

    return run(put(), backend.client())


def reads(backend: Backend, query: Query) -> Iterator[tuple[str, int]]:
    """Yield the ways in which a statement reads the table of records."""
    found = explained(backend, query)
    return _of_sqlite(found) if backend.kind == "sqlite" else _of_postgresql(found[0][0])


def _of_sqlite(plan: list[Any]) -> Iterator[tuple[str, int]]:
    """SQLite says no numbers of rows. What stands under `looked` reads the table, and the rest reads `looked`."""
    lines = {number: (under, line) for number, under, _, line in plan}
    bounded = any(line.endswith(" looked") for _, line in lines.values())
    for under, line in lines.values():
        above = lines[under][1] if under in lines else ""
        if re.match(r"(SCAN|SEARCH) (r|retrysafe_records)\b", line) and (not bounded or above.endswith(" looked")):
            index = re.search(r"INDEX (\w+)", line)
            yield (f"`{index[1]}`" if index else line), 0


def _of_postgresql(plan: Any) -> Iterator[tuple[str, int]]:
    waiting = [(plan if isinstance(plan, list) else json.loads(plan))[0]["Plan"]]
    while waiting:
        node = waiting.pop()
        waiting += node.get("Plans", [])
        if node.get("Relation Name") == "retrysafe_records":
            rows = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
            way = f"`{node['Index Name']}`" if "Index Name" in node else node["Node Type"]
            yield way, round(rows * node["Actual Loops"])


class Measured(NamedTuple):
    """One page of one store: how long it took each time, and how long it kept a processor on average.

    The latter is the same on a machine that does something else too: it is that of this process and of the server.
    """

    milliseconds: list[float]
    processor: float
    statements: int
    reads: dict[str, int]


async def loaded(visitor: Visitor, path: str) -> Page:
    """Load a page, or find a key as the form of the list does."""
    if path != FIND:
        return await visitor.get(path)
    home = await visitor.get("/keys")
    return await visitor.submit(home, "/keys/find", {"key": "order-1042"})


def on_processors(pids: Iterable[str]) -> float:
    """Milliseconds for which these processes have run; the kernel counts them in nanoseconds."""
    total = 0
    for pid in pids:
        with suppress(FileNotFoundError):  # a process that has ended, such as PostgreSQL's autovacuum
            tasks = [*Path(f"/proc/{pid}/task").iterdir()]
            total += sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)
    return total / 1e6


def children(pid: int) -> list[str]:
    """The processes that a process has started."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


async def measure(url: str, server: Cluster | None) -> dict[str, Measured]:
    """Load every page, and explain the statements that it needs."""
    console = Console(url, access=lambda request: Principal("ada", EVERY_RIGHT), audit=lambda entry: None)
    backend, visitor = registry.connect(url), Visitor(console)
    recording = Recording(backend.client())
    backend.client = PerProcess(lambda: recording)  # type: ignore[assignment]
    found = {}
    for path in (*PATHS, FIND):
        await loaded(visitor, path)
        times = []
        ours = [str(os.getpid()), *(children(server.process.pid) if server else ())]
        before = on_processors(ours)
        for _ in range(LOADS):
            recording.performed.clear()
            began = time.perf_counter()
            page = await loaded(visitor, path)
            times.append(round(1000 * (time.perf_counter() - began), 1))
            assert page.status == 200, (path, page.text)
        processor = round((on_processors(ours) - before) / LOADS, 1)
        asked = [one for one in recording.performed if one.sql.lstrip().startswith(("SELECT", "WITH"))]
        ways = Reads.of(way for one in asked if "retrysafe_records" in one.sql for way in reads(backend, one))
        found[path] = Measured(sorted(times), processor, len(asked), ways.ways)
        print(f"{backend.kind:10} {times} {processor:7.1f} ms  {path}  {ways.ways}", file=sys.stderr)
    await visitor.close()
    console.close()
    return found


def measured(url: str, rows: int, server: Cluster | None = None) -> dict[str, Any]:
    """Fill a store, and measure the pages on it."""
    with closing(registry.connect(url)) as backend:
        backend.migrate()
        began = time.perf_counter()
        fill(url, rows)
        print(f"{backend.kind}: {rows:,} records written in {time.perf_counter() - began:.0f} s", file=sys.stderr)
        return {path: one._asdict() for path, one in asyncio.run(measure(url, server)).items()}


def main() -> int:
    """Measure both stores."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=ROWS, help=f"records of each store (default {ROWS:,})")
    parser.add_argument("--record", action="store_true", help="write what was found, for the page of the reference")
    given = parser.parse_args()
    programs = postgresql_programs()
    if programs is None:
        parser.error("no PostgreSQL server programs under /usr/lib/postgresql")
    with tempfile.TemporaryDirectory(prefix="retrysafe-pages-") as folder:
        lite = measured(f"sqlite:///{folder}/keys.db", given.rows)
    with closing(Cluster(programs)) as cluster:
        server = measured(cluster.url, given.rows, cluster)
        with cluster.admin() as admin:
            version = str(admin.execute("SHOW server_version").fetchone()[0]).split()[0]
    found = {
        "rows": given.rows,
        "on": time.strftime("%Y-%m-%d", time.gmtime()),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[2], 1),
        "versions": {"Python": platform.python_version(), "SQLite": sqlite3.sqlite_version, "PostgreSQL": version},
        "pages": {path: {"sqlite": lite[path], "postgresql": server[path]} for path in lite},
    }
    text = json.dumps(found, indent=1) + "\n"
    if given.record:
        RECORDED.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
