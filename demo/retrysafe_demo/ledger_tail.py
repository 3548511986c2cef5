"""The bank's writes to its ledger since the last look."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path


class LedgerTail:
    """Reads a ledger while the bank writes it; a line that is not complete yet is read the next time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._charges: Counter[str] = Counter()

    def charged_again(self) -> list[str]:
        """The payments that were charged since the last look, and had been charged before."""
        try:
            with self._path.open("rb") as ledger:
                ledger.seek(self._read)
                written = ledger.read()
        except FileNotFoundError:  # the bank has not started yet
            return []
        whole = written[: written.rfind(b"\n") + 1]
        self._read += len(whole)
        found: list[str] = []
        for line in whole.splitlines():
            payment = str(json.loads(line)["payment"])
            self._charges[payment] += 1
            if self._charges[payment] > 1:
                found.append(payment)
        return found

    @property
    def charged_twice(self) -> int:
        """The number of payments that were charged twice or more."""
        return sum(charges > 1 for charges in self._charges.values())
