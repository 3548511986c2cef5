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
_STORES: dict[str, str] = {}
"""Executor → the store that it puts requests to, of every table of executors."""


class Alternative(str):
    """The name of something a test meets as well as any other of its kind."""

    __slots__ = ("kind",)
    kind: str

    def __new__(cls, name: str, kind: str) -> Alternative:
        """The name, and its kind."""
        made = super().__new__(cls, name)
        made.kind = kind
        return made


def variable_of(service: str) -> str:
    """The environment variable that leads to a service."""
    return f"RETRYSAFE_TEST_{service.upper().replace('-', '_')}"


def and_on_other_versions(
    table: Mapping[str, tuple[str | None, Make]], names: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str | None, Make]]:
    """The table of executors, and its rows ``names`` (by service) once more for each other version of their service."""
    further = {
        f"{name}, {version}": (version, table[name][1])
        for version, service in OTHER_VERSIONS.items()
        for name in names.get(service, ())
    }
    whole = {**table, **further}
    for name, (service, _) in whole.items():
        local = "sqlite" if "sqlite" in name.lower() else name.split()[0]
        _STORES[name] = service or local
    return whole


def kind_of(value: str, *, versions: bool) -> str:
    """The kind of an alternative, the store of an executor, the service of another version, or the text itself.

    With ``versions``, those of one server are kinds of their own.
    """
    if isinstance(value, Alternative):
        return value.kind
    kind = _STORES.get(value, value)
    return kind if versions else OTHER_VERSIONS.get(kind, kind)
