"""The places where a guarded application can keep its records, and the selection of those that a test is about."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.versions import Alternative

_SERVICES: dict[str, str | None] = {
    "memory": None,
    "sqlite": None,
    "sqlite-transactional": None,
    "postgresql": "postgresql",
    "postgresql-transactional": "postgresql",
    "redis": "redis",
}
PLACES: dict[str, tuple[str | None, bool]] = {
    Alternative(name, "transactional" if name.endswith("transactional") else "leased"): (
        service,
        name.endswith("transactional"),
    )
    for name, service in _SERVICES.items()
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
