"""The cells of the matrix, and how the rules are checked in one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from retrysafe.conformance import RULES, Mode, Report, Result, check
from retrysafe.conformance.capabilities import MODES
from retrysafe.conformance.running import read
from retrysafe.conformance.wire import address as parsed
from tests.http.contract.integrations import INTEGRATIONS
from tests.http.contract.stores import STORES, opened

STORES_WITHOUT_TRANSACTIONS = ("memory", "redis")
_LONG = ("R19",)
"""Rules whose case waits: the others are checked meanwhile."""
_ALONE = ("R9", "R21", "R25")
"""Rules whose case takes the store away or lets time pass, for all of the server's keys."""


class Cell(NamedTuple):
    """One integration on one store in one mode."""

    integration: str
    store: str
    mode: Mode

    @property
    def id(self) -> str:
        """The cell's name in tests and results."""
        return "-".join(self)

    @property
    def cannot_be(self) -> str | None:
        """Why there is no such cell."""
        if self.mode == "transactional" and self.store in STORES_WITHOUT_TRANSACTIONS:
            return f"{self.store} has no transactions"
        return None


def cells(integrations: Iterable[str] = INTEGRATIONS) -> Iterator[Cell]:
    """All cells, those that can't be included."""
    for integration in integrations:
        for store in STORES:
            for mode in MODES:
                yield Cell(integration, store, mode)


def checked(cell: Cell, folder: Path, *, patient: bool = True) -> Report:
    """Serve the fixture in a cell and check every rule on it; only the patient check those whose case waits."""
    with (
        opened(cell.store, cell.mode == "transactional", folder) as place,
        INTEGRATIONS[cell.integration].serve(place) as address,
    ):
        able = read(parsed(address))
        found: dict[str, Result] = {}

        def look(*rules: str) -> None:
            found.update((rule, check(rule, address, able)) for rule in rules)

        with ThreadPoolExecutor(1) as waiting:
            long = waiting.submit(look, *(_LONG if patient else ()))
            look(*(rule for rule in RULES if rule not in _LONG + _ALONE))
            long.result()
        look(*_ALONE)
        return Report(address, able, [found[rule] for rule in RULES if rule in found])
