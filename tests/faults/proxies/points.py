"""One point: an operation that faults befall, its retries to the end, and the judgement of what it came to."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from retrysafe import StoreUnavailable
from tests.faults.helpers import unique, until
from tests.faults.proxies.cells import Answer, Cell, ended
from tests.faults.proxies.proxy import Fault, Hit, Proxy
from tests.stores.ageing import Age

LAPSE = 60_000_000
"""Microseconds beyond every lease of these tests."""
PATIENT_TRIES = 3
"""The number of requests for a key before a message that is to be applied late is let go."""
MOST_IDLE = 3
"""Connections that one caller at a time leaves open for the next."""


class Bench(NamedTuple):
    """A cell with what surrounds it."""

    cell: Cell
    proxy: Proxy
    age: Age
    elsewhere: Cell
    """The same boundary in another process, so to speak: on connections that do not lead through the proxy."""


class Point(NamedTuple):
    """A point of faults: at the k-th messages, counted from the first one of a new connection or not."""

    faults: tuple[Fault, ...]
    greetings: bool = False
    late: bool = False
    """True if a delayed message is let go only after the caller has given up and asked again."""


class Story:
    """The events at a point."""

    def __init__(self, bench: Bench, point: Point) -> None:
        self.bench, self.point = bench, point
        self.key = unique("key")
        self.answers: list[Answer] = []
        self.hits: Sequence[Hit] = ()
        self.aged = False

    def run(self) -> Story:
        """Inject the faults, ask again until there is an answer, and judge."""
        cell, proxy = self.bench.cell, self.bench.proxy
        if self.point.greetings:
            cell.close()
            cell.open()
        proxy.arm(*self.point.faults, greetings=self.point.greetings)
        self._note(self._asked())
        try:
            self._to_the_end()
        finally:
            self.hits = list(proxy.hits)
            proxy.disarm()
            proxy.go()
        self._judge()
        return self

    @property
    def wording(self) -> str:
        """The faults, in the words of the proofs."""
        words = ["applied late" if self.point.late else hit.wording for hit in self.hits]
        return words[0] if len(words) == 1 else "two faults"

    def _asked(self) -> Answer:
        """Ask. While a message is delayed, the same key is asked for elsewhere; then it is let go."""
        call, holding = self.bench.cell.begin(self.key), self.bench.proxy.holding
        while until(lambda: call.done() or (holding.is_set() and not self.point.late)) and not call.done():
            self._note(self.bench.elsewhere.charge(self.key), ours=False)
            self.bench.proxy.go()
        return ended(call)

    def _to_the_end(self) -> None:
        self._until(self._ended, "the key is never answered")
        self._until(lambda: self._ended(once_more=True), "what was answered is not answered again")

    def _ended(self, *, once_more: bool = False) -> bool:
        if not once_more and self._is_over(self.answers[-1]):
            return True
        if self.answers[-1].name == "InProgress" and "transactional" not in self.bench.cell.mode:
            self.aged = True
            with suppress(StoreUnavailable):  # its connections have short deadlines too
                self.bench.age(self.bench.cell.record_key(self.key), LAPSE)
        if len(self.answers) >= PATIENT_TRIES:
            self.bench.proxy.go()
        self._note(self._asked())
        return self._is_over(self.answers[-1])

    def _is_over(self, answer: Answer) -> bool:
        return answer.receipt is not None or (self.bench.cell.mode == "external" and answer.name == "OutcomeUnknown")

    def _note(self, answer: Answer, *, ours: bool = True) -> None:
        assert answer.expected, f"{self}\n{answer.trace}"
        self.answers.insert(len(self.answers) if ours else 0, answer)

    # ------------------------------------------------------------ judging

    def _judge(self) -> None:
        bench, cell = self.bench, self.bench.cell
        receipts = cell.receipts(self.key)
        told = {answer.receipt for answer in self.answers if answer.receipt is not None}
        last = self._elsewhere()
        if last.receipt is not None:
            assert receipts == [last.receipt], f"{self}: effects {receipts}, replayed {last.receipt}"
            assert told <= {last.receipt}, f"{self}: callers were told {told}, replayed {last.receipt}"
        else:
            assert cell.mode == "external", f"{self}: {last.trace}"
            assert len(receipts) <= 1, f"{self}: {receipts}"
        runs = cell.runs(self.key)
        again = cell.mode == "keyed" and (self.aged or cell.fails_by_itself)
        assert runs == 1 or (runs == 0 and last.receipt is None) or again, f"{self}: it ran {runs} times"
        self._until(self._gives_up, "a silent connection was not given up")
        assert bench.proxy.connections <= MOST_IDLE, f"{self}: {bench.proxy.connections} connections are open"

    def _gives_up(self) -> bool:
        if self.bench.proxy.half_open:
            self.bench.cell.go_on()  # such as the settling of an outcome, which has a deadline
            gc.collect()  # a connection of a caller's own that timed out while it was made belongs to a cycle
        return self.bench.proxy.half_open == 0

    def _elsewhere(self) -> Answer:
        """Ask by another process: no key is left locked."""
        found: list[Answer] = []

        def told() -> bool:
            found.append(self.bench.elsewhere.charge(self.key))
            return self._is_over(found[-1])

        self._until(told, "the key stays locked")
        return found[-1]

    def _until(self, condition: Callable[[], object], otherwise: str) -> None:
        try:
            until(condition)
        except AssertionError as error:
            if str(error).startswith("the condition"):
                raise AssertionError(f"{self}: {otherwise}") from None
            raise

    def __str__(self) -> str:
        cell = self.bench.cell
        befell = [f"{hit.fault} {hit.direction} {hit.message[:60]!r}" for hit in self.hits or self.bench.proxy.hits]
        told = [answer.receipt or answer.trace.strip().rpartition("\n")[2] for answer in self.answers]
        return f"{cell.driver.name}, {cell.mode}, {self.point}: {befell}; the callers were told {told}"
