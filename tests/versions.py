"""The same servers in other versions: tests of stores, transactions and brokers run on each of them too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

Make = TypeVar("Make")

OTHER_VERSIONS = {
    "postgresql-18": "postgresql",
    "mysql-8": "mysql",
    "mysql-9": "mysql",
    "redis-8": "redis",
    "valkey-9": "redis",
    "rabbitmq-4": "rabbitmq",
}
"""A service of `scripts/services` → the service whose place it takes in a test."""


def variable_of(service: str) -> str:
    """The environment variable that leads to a service."""
    return f"RETRYSAFE_TEST_{service.upper().replace('-', '_')}"


def and_on_other_versions(
    table: Mapping[str, tuple[str | None, Make]], names: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str | None, Make]]:
    """The table, and its rows ``names`` (by service) once more for each other version of their service."""
    further = {
        f"{name}, {version}": (version, table[name][1])
        for version, service in OTHER_VERSIONS.items()
        for name in names.get(service, ())
    }
    return {**table, **further}
