"""Deliberate breaks: each takes one defence out of the code, and names the tests that must fail without it."""

from __future__ import annotations

from typing import NamedTuple


class Break(NamedTuple):
    """One text of one source file replaced by another. Without the defence, each test that is named fails."""

    name: str
    """What is broken, in words: "a terminal write is not fenced"."""
    file: str
    """Under src/retrysafe, such as "protocol/transitions.py"; a file of the demo under the root, from "demo/" on."""
    old: str
    """Occurs in the file exactly once."""
    new: str
    killed_by: tuple[str, ...]
    """Node ids of tests, such as "tests/faults/test_clocks.py::test_name[sqlite]"; all of them must fail."""
    rows: tuple[int, ...] = ()
    """The rows of the fault catalogue that the defence is for."""
