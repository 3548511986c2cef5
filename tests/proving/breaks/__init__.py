"""Deliberate breaks: each takes one defence out of the code, and names the tests that must fail without it."""

from __future__ import annotations

from typing import NamedTuple

from tests.proving.breaks.mutations import Change


class Break(NamedTuple):
    """One change of one symbol. Without the defence, each test that is named fails."""

    name: str
    """The defect, in words: "a terminal write is not fenced"."""
    symbol: str
    """A function, a class attribute or a constant, such as "protocol.transitions:Decision.take" under retrysafe, or
    "retrysafe_demo.pipeline.shop:mailing" in the demo."""
    change: Change
    """See `tests.proving.breaks.mutations`."""
    killed_by: tuple[str, ...]
    """Node ids of tests, such as "tests/faults/test_clocks.py::test_name"; all of them, in all their cases, must fail.
    With its parameters a name stands for one case."""
    rows: tuple[int, ...] = ()
    """The rows of the fault catalogue that the defence is for."""

    @property
    def file(self) -> str:
        """The source file, from the root of the checkout."""
        return f"{self._home}/{self.symbol.partition(':')[0].replace('.', '/')}.py"

    @property
    def _home(self) -> str:
        return "demo" if self.symbol.startswith("retrysafe_demo.") else "src/retrysafe"
