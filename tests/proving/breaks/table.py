"""Every break of every module of this package."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from tests.proving import breaks
from tests.proving.breaks import Break


def all_breaks() -> dict[str, Break]:
    """Every break by its name, which no two may share."""
    found: dict[str, Break] = {}
    for module in pkgutil.iter_modules(breaks.__path__, f"{breaks.__name__}."):
        if module.name.endswith("__main__"):
            continue
        for one in getattr(import_module(module.name), "BREAKS", ()):
            if one.name in found:
                raise ValueError(f"{one.name!r}: two breaks have this name, the second in {module.name}.")
            found[one.name] = one
    return found
