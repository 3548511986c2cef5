"""Where a guarded application can keep its records, and which of these a test can be about."""

from __future__ import annotations

from collections.abc import Callable

import pytest

PLACES: dict[str, tuple[str | None, bool]] = {
    "memory": (None, False),
    "sqlite": (None, False),
    "sqlite-transactional": (None, True),
    "postgresql": ("postgresql", False),
    "postgresql-transactional": ("postgresql", True),
    "redis": ("redis", False),
}
"""By name: the service that is needed, and whether the boundary is transactional."""


def only(wanted: Callable[[str], bool]) -> pytest.MarkDecorator:
    """The test is about these places alone."""
    return pytest.mark.parametrize("place", [name for name in PLACES if wanted(name)], indirect=True)


LEASED = only(lambda name: not name.endswith("transactional"))
"""A transactional claim has no lease, and a transactional response does not stream."""
SEVERAL_AT_ONCE = only(lambda name: name != "sqlite-transactional")
"""SQLite's transactions are serial: a duplicate waits for the file, and then gets 503."""
MEMORY = only(lambda name: name == "memory")
"""One store that is down is like the other."""
POSTGRESQL_TRANSACTIONAL = only(lambda name: name == "postgresql-transactional")
"""Only PostgreSQL has serialization failures here."""
POSTGRESQL_LEASED = only(lambda name: name == "postgresql")
