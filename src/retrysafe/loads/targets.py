"""The target of loads that a URL or an object stands for; its module is imported when it is chosen."""

from __future__ import annotations

from typing import Any

from retrysafe.backends.spec import library
from retrysafe.loads.work import Target

KINDS = {"duckdb": "DuckdbTarget", "delta": "DeltaTarget", "iceberg": "IcebergTarget"}
_OBJECTS = {"duckdb": "duckdb", "_duckdb": "duckdb", "pyiceberg": "iceberg"}
"""The packages whose objects are targets."""


def target_of(given: Any) -> Target:
    """The target. Raises `ConfigurationError` when its library is missing."""
    if isinstance(given, str):
        kind, _, rest = given.partition(":")
        given_there = rest.removeprefix("//") if kind in KINDS else given
    else:
        packages = {base.__module__.partition(".")[0] for base in type(given).__mro__}
        kind = next((_OBJECTS[package] for package in packages if package in _OBJECTS), "")
        given_there = given
    name = KINDS.get(kind, "SqlTarget")
    module = library(f"retrysafe.loads.{kind if kind in KINDS else 'sql'}", kind if kind in KINDS else "", "target=")
    target: Target = getattr(module, name)(given_there)
    return target
