"""One guarded operation on one store in one mode through the proxy, and what it must have come to in the end."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from pathlib import Path
from typing import Any, Literal, NamedTuple

from retrysafe import Boundary, InProgress, LeaseLost, OutcomeUnknown, RetryTransaction, StoreUnavailable, current
from retrysafe.protocol import keys
from retrysafe.protocol.events import Observer
from tests.faults.helpers import DEADLINE, Bank, unique
from tests.faults.proxies.drivers import Driver

Mode = Literal["keyed", "external", "transactional", "transactional, tx="]
OPERATION = "charge"


class Answer(NamedTuple):
    """The answer to a caller: a receipt, or an error. The error itself would keep alive what is in its frames."""

    receipt: str | None
    name: str = "done"
    trace: str = ""
    expected: bool = True


class Cell:
    """A boundary on a driver in a mode, and the operation that it guards: charging a key once.

    Every call is made in one thread of its own, which an async driver's event loop belongs to; nobody waits for it
    longer than `DEADLINE`.
    """

    def __init__(
        self,
        driver: Driver,
        mode: Mode,
        url: str,
        observers: list[Observer],
        *,
        ledger: Path,
        table: str = "",
        rows: Callable[[], list[tuple[str, str]]] = list,
        effect: Callable[[str], str] | None = None,
        name: str = "",
    ) -> None:
        self.driver, self.mode, self.url = driver, mode, url
        self.name = name or unique("lost")
        self.bank = Bank(ledger)
        self._effect = effect
        self.fails_by_itself = effect is not None
        """True if the work meets the faults, so that it may fail and be run again."""
        self._observers, self._table, self._rows = observers, table, rows
        self._thread = ThreadPoolExecutor(1, "cell")
        self._loop: asyncio.Runner | None = None
        self._store: Any = None
        self._boundary: Boundary | None = None

    # ------------------------------------------------------------ its life

    def open(self) -> None:
        """Make the boundary anew, with connections still to be opened."""
        self._do(self._opened).result(DEADLINE)

    def _opened(self) -> None:
        if not self.driver.sync and self._loop is None:
            self._loop = asyncio.Runner()
            self._loop.get_loop()
        self._store = self._on_loop(lambda: self.driver.open(self.url))
        effects: Any = self.mode.partition(",")[0]
        self._boundary = Boundary(self.name, store=self._store, effects=effects, observers=self._observers, shared=True)
        guard = self._boundary.once(key="key", payload="key", operation=OPERATION, shared=True)
        self._charge = guard(self._sync if self.driver.sync else self._async)

    def close(self) -> None:
        """Close the boundary with its connections."""
        self._do(self._closed).result(DEADLINE)

    def _closed(self) -> None:
        if self._boundary is None:
            return
        boundary, self._boundary = self._boundary, None
        if self._loop is None:
            boundary.close()
            self.driver.close(self._store)
            return
        self._loop.run(boundary.aclose())
        disposing = self.driver.close(self._store)
        if disposing is not None:
            self._loop.run(disposing)

    def end(self) -> None:
        """Close, and end the thread."""
        self.close()
        if self._loop is not None:
            self._do(self._loop.close).result(DEADLINE)
        self._thread.shutdown()

    def go_on(self) -> None:
        """Let what was left to the background go on, which on an event loop nobody runs between two operations."""
        loop = self._loop
        if loop is not None:
            self._do(lambda: loop.run(asyncio.sleep(0.01))).result(DEADLINE)

    def _on_loop(self, make: Callable[[], Any]) -> Any:
        if self._loop is None:
            return make()

        async def on_loop() -> Any:
            return make()

        return self._loop.run(on_loop())

    # ------------------------------------------------------------ the operation

    def begin(self, key: str) -> Future[Answer]:
        """Charge a key, in the cell's thread."""
        return self._do(lambda: self._answer(key))

    def charge(self, key: str) -> Answer:
        """Charge a key; whoever hangs is told where."""
        return ended(self.begin(key))

    def _answer(self, key: str) -> Answer:
        try:
            if self._loop is None:
                return Answer(self._called(key))
            return Answer(self._loop.run(self._acalled(key)))
        except Exception as error:  # noqa: BLE001 - judged by `is_expected`
            return Answer(None, type(error).__name__, "".join(traceback.format_exception(error)), is_expected(error))

    def _called(self, key: str) -> str:
        if self.driver.begin is None or self.mode != "transactional, tx=":
            return str(self._charge(key))
        with self.driver.begin(self._store, self.url) as tx:
            return str(self._charge(key, tx=tx))

    async def _acalled(self, key: str) -> str:
        if self.driver.begin is None or self.mode != "transactional, tx=":
            return str(await self._charge(key))
        async with self.driver.begin(self._store, self.url) as tx:
            return str(await self._charge(key, tx=tx))

    def _sync(self, key: str, tx: Any = None) -> str:
        if not self._table:
            return self._outside()
        sql, receipt = self._insert_of(key)
        assert self.driver.insert is not None
        self.driver.insert(current().tx, sql)
        return receipt

    async def _async(self, key: str, tx: Any = None) -> str:
        if not self._table:
            return self._outside()
        sql, receipt = self._insert_of(key)
        assert self.driver.insert is not None
        await self.driver.insert(current().tx, sql)
        return receipt

    def _outside(self) -> str:
        return (self._effect or self.bank.charge)(current().key_for("bank"))

    def _insert_of(self, key: str) -> tuple[str, str]:
        receipt = unique("receipt")
        return f"INSERT INTO {self._table} VALUES ('{key}', '{receipt}')", receipt

    def _do(self, work: Callable[[], Any]) -> Future[Any]:
        return self._thread.submit(work)

    # ------------------------------------------------------------ what came of it

    def record_key(self, key: str) -> bytes:
        """The key of its record."""
        return keys.lookup(None, self.name, "", OPERATION, key)

    def receipts(self, key: str) -> list[str]:
        """The receipt of every effect that a key has had."""
        if self._table:
            return [receipt for found, receipt in self._rows() if found == key]
        receipt = self.bank.charges.get(self._at_the_bank(key))
        return [] if receipt is None else [receipt]

    def runs(self, key: str) -> int:
        """Count the requests to the bank, or the effects."""
        return len(self.receipts(key)) if self._table else self.bank.requests[self._at_the_bank(key)]

    def _at_the_bank(self, key: str) -> str:
        return keys.derive(None, self.record_key(key), "bank")


def ended(call: Future[Answer]) -> Answer:
    """The answer of a call that must not hang."""
    try:
        return call.result(DEADLINE)
    except Late:
        import faulthandler

        faulthandler.dump_traceback()
        raise AssertionError("a caller hangs") from None


RETRYSAFE = (StoreUnavailable, InProgress, OutcomeUnknown, RetryTransaction, LeaseLost)


def is_expected(error: BaseException) -> bool:
    """Tell whether a caller may meet this error when a message is lost: one of ours, or the library's own."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, (*RETRYSAFE, OSError, EOFError)) or bool(
        kinds
        & {"Error", "MySQLError", "PostgresError", "InterfaceError", "DBAPIError", "RuntimeError", "HTTPException"}
    )
