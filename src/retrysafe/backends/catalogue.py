"""Every store there is, for whatever speaks of them all: documentation and tests."""

from __future__ import annotations

from typing import Any

from retrysafe.backends import registry

STORES: tuple[type[Any], ...] = tuple(spec.load(store) for spec in registry.specs() for store in spec.stores)
