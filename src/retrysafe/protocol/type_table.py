"""A table by exact type, which imports no module for the sake of its types."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TypeVar

V = TypeVar("V")


class TypeTable(dict[type, V]):
    """Values for some types, and ``other`` for all others.

    ``late`` types are named "module.name", as to import them would cost milliseconds: a value of theirs can only be
    met after someone else has imported them, and then they are entries as any other.
    """

    def __init__(self, known: Mapping[type, V], *, late: Mapping[str, V], other: V) -> None:
        super().__init__(known)
        self._late = late
        self._modules = {name.partition(".")[0] for name in late}
        self._other = other

    def __missing__(self, kind: type) -> V:
        if kind.__module__ not in self._modules:
            return self._other
        module, name = sys.modules.get(kind.__module__), kind.__qualname__
        if getattr(module, name, None) is not kind:
            return self._other
        self[kind] = entry = self._late.get(f"{kind.__module__}.{name}", self._other)
        return entry
