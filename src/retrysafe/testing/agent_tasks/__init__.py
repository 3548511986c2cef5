"""Ten tasks for coding agents, and their checks: a solution is crashed at each of its calls, and must hold.

`python -m retrysafe.testing.agent_tasks` tells the tasks, and checks the solutions of a file.
"""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from retrysafe.backends.registry import connect
from retrysafe.testing.agent_tasks import bank
from retrysafe.testing.crashing import Report, crash_points

SCHEMA = """
CREATE TABLE accounts (name TEXT PRIMARY KEY, balance INT);
INSERT INTO accounts VALUES ('ann', 100), ('bob', 0);
CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT, payment TEXT);
CREATE TABLE stock (item TEXT PRIMARY KEY, left_over INT);
INSERT INTO stock VALUES ('lamp', 10);
"""


class TaskState(NamedTuple):
    """The place of one run's work.

    url: of the database, as a boundary is told it.
    bank: the URL at which a POST charges.
    account: at the bank, of the run's own: the body of a charge.
    """

    url: str
    bank: str
    account: str


class Expected(NamedTuple):
    """The state after a task: what a query of the database answers, and how many charges the bank has."""

    query: str
    answer: tuple[Any, ...]
    charges: tuple[int, ...] = (0,)


ORDERS = "SELECT count(*), (SELECT left_over FROM stock) FROM orders"
BALANCES = "SELECT group_concat(balance) FROM (SELECT balance FROM accounts ORDER BY name)"
TASKS = {
    "place_order_in_my_transaction": Expected(ORDERS, (1, 9)),
    "transfer_between_accounts": Expected(BALANCES, ("70,30",)),
    "charge_a_provider": Expected(ORDERS, (0, 10), charges=(1,)),
    "charge_a_provider_with_asyncio": Expected(ORDERS, (0, 10), charges=(1,)),
    "charge_and_insert": Expected(ORDERS, (1, 10), charges=(1,)),
    "call_what_recognises_nothing": Expected(ORDERS, (0, 10), charges=(0, 1)),
    "store_a_refusal": Expected(ORDERS, (0, 10), charges=(1,)),
    "write_an_event_with_the_order": Expected(
        "SELECT count(*), (SELECT count(*) FROM retrysafe_outbox) FROM orders", (1, 1)
    ),
    "handle_a_message": Expected(ORDERS, (0, 8)),
    "import_a_file": Expected(BALANCES, ("100,6",)),
}


@contextmanager
def running_bank(folder: Path) -> Iterator[tuple[str, str]]:
    """The URL and the ledger of a bank in a process of its own."""
    ledger = str(folder / "ledger.db")
    with subprocess.Popen([sys.executable, bank.__file__, ledger], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}", ledger
        finally:
            process.kill()


def crash(solution: Callable[[TaskState], Any], expected: Expected, folder: Path, at: tuple[str, str]) -> Report:
    """Crash a solution at each of its calls, each time in a database of its own in the folder."""
    (address, ledger), template = at, folder / "template.db"
    backend = connect(f"sqlite:///{template}")
    backend.migrate()
    backend.close()
    with closing(sqlite3.connect(template)) as db, db:
        db.executescript(SCHEMA)

    def fresh() -> TaskState:
        path = folder / f"{uuid4()}.db"
        shutil.copyfile(template, path)
        return TaskState(f"sqlite:///{path}", f"{address}/charges", str(path))

    def check(state: TaskState) -> None:
        with closing(sqlite3.connect(state.url.removeprefix("sqlite:///"))) as db:
            assert db.execute(expected.query).fetchone() == expected.answer
        assert bank.charges(ledger, state.account) in expected.charges

    return crash_points(solution, fresh=fresh, check=check, pairs=0)
