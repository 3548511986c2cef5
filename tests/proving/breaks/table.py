"""Every break of every module of this package."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from tests.proving import breaks
from tests.proving.breaks import Break


def tables() -> dict[str, list[Break]]:
    """The breaks of each module, by its name without the package."""
    names = [module.name for module in pkgutil.iter_modules(breaks.__path__) if module.name != "__main__"]
    found = {name: getattr(import_module(f"{breaks.__name__}.{name}"), "BREAKS", []) for name in names}
    return {name: table for name, table in found.items() if table}


def all_breaks() -> dict[str, Break]:
    """Every break by its name, which no two may share."""
    found: dict[str, Break] = {}
    for table, entries in tables().items():
        for one in entries:
            if one.name in found:
                raise ValueError(f"{one.name!r}: two breaks have this name, the second in {table}.py.")
            found[one.name] = one
    return found
