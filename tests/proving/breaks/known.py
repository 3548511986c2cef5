"""Every break there is, by the file that lists it."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from tests.proving import breaks
from tests.proving.breaks import Break


def known() -> dict[str, list[Break]]:
    """The breaks of each module of this folder that has a `BREAKS`."""
    modules = {
        one.name: import_module(f"{breaks.__name__}.{one.name}") for one in pkgutil.iter_modules(breaks.__path__)
    }
    return {name: module.BREAKS for name, module in sorted(modules.items()) if hasattr(module, "BREAKS")}
