"""The faults that this project expects, by number: their effect for a user, the defence, and its limits.

Each is injected by a test that carries its number (`@pytest.mark.fault(…)`). One that no test injects gives the reason
in ``unmet`` (its subject does not exist yet) or in ``documented`` (there is no defence: a page names the cost). The
entries are in `faults.toml`. `docs/reference/faults.md` is made of them, and `test_catalogue.py` keeps them honest.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import NamedTuple


class Fault(NamedTuple):
    """A row of the catalogue; each text is a sentence at most."""

    row: int
    fault: str
    seen: str
    """Its effect for the user."""
    defence: str
    left: str = ""
    """The limit of the defence, if there is one."""
    unmet: str = ""
    """The reason why nothing can inject it yet; a row with this has no test."""
    documented: str = ""
    """The page under docs/ that names its cost, such as "explanation/which-store.md#redis"."""
    nothing_to_remove: str = ""
    """The reason why no break takes the defence out: the test has then been seen to fail in another way."""


def _read() -> dict[str, tuple[Fault, ...]]:
    groups = tomllib.loads(Path(__file__).with_name("faults.toml").read_text(encoding="utf-8"))
    return {name: tuple(Fault(int(row), **entry) for row, entry in rows.items()) for name, rows in groups.items()}


CATALOGUE = _read()
FAULTS: dict[int, Fault] = {fault.row: fault for group in CATALOGUE.values() for fault in group}
