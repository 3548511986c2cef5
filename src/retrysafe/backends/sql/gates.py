"""How many advisory locks each open transaction of this process holds for its claims, by the transaction's number."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

from retrysafe.locks import ProcessLock
from retrysafe.protocol.requests import Rows

V = TypeVar("V")

MOST_GATES = 1000
"""How many a transaction takes. The lock table is shared by all sessions of the server, for locks of every kind."""

_MOST_COUNTED = 4096
_MOST_FULL = 16


class Gates:
    """Counts by the answers to claims: they cost no further statement, and nobody has to tell that a transaction ended.

    What a rollback to a savepoint has released stays counted. Transactions that were silent longest are forgotten: they
    start anew.
    """

    def __init__(self) -> None:
        self._held: OrderedDict[int, int] = OrderedDict()
        self._full: OrderedDict[int, None] = OrderedDict()
        self._lock = ProcessLock()

    def full(self) -> list[int]:
        """The numbers of transactions that are to take no more; each claim tells them to the server."""
        return list(self._full)

    def counted(self, answer: Rows) -> Rows:
        """The answer without its first column: the number of the transaction, if the claim may have taken a lock."""
        for number, *_ in answer.rows:
            if number is not None:
                self._count(int(number))
        return Rows([row[1:] for row in answer.rows], answer.affected)

    def _count(self, number: int) -> None:
        with self._lock.mine:
            held = self._held.pop(number, 0) + 1
            _keep(self._held, number, held, _MOST_COUNTED)
            if held >= MOST_GATES:
                self._full.pop(number, None)
                _keep(self._full, number, None, _MOST_FULL)


def _keep(kept: OrderedDict[int, V], number: int, value: V, most: int) -> None:
    kept[number] = value
    if len(kept) > most:
        kept.popitem(last=False)
