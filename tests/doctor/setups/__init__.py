"""The table of set-ups for the doctor, broken ones and sound ones, for tests and documentation.

Each broken one has to be found by its check, and by no other than those that it says belong to it; of a sound one
nothing may be found.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from retrysafe.backends.registry import specs
from retrysafe.messaging.brokers import registry
from retrysafe.messaging.inbox.operator import Consuming
from retrysafe.messaging.needs import Messages
from retrysafe.messaging.relay.procedures import OutboxStatus
from retrysafe.protocol.messages import Backlog
from tests.doctor.setups import (
    application,
    mysql,
    postgresql,
    sqlite,
    sqlserver,
    windows,
)
from tests.doctor.setups.form import Setup
from tests.doctor.setups.sound import SOUND

__all__ = ["BROKEN", "SOUND", "UNMADE"]

_BROKERS = {
    spec.title: import_module(f"{__name__}.{spec.name}")
    for spec in registry.specs()
    if spec.checks and spec.extra != "redis"
}

OF_STORES = [
    (spec, import_module(f"{__name__}.{spec.name}")) for spec in specs() if find_spec(f"{__name__}.{spec.name}")
]
"""The stores that have a module of their own here."""

BROKEN: dict[str, tuple[Setup, ...]] = {
    "PostgreSQL": postgresql.BROKEN,
    "MySQL and MariaDB": mysql.BROKEN,
    "SQLite, and whatever the store": sqlite.BROKEN,
    **{spec.title: setups.BROKEN for spec, setups in OF_STORES},
    **{title: module.BROKEN for title, module in _BROKERS.items()},
    "Inboxes beside brokers": windows.BROKEN,
    "Applications": application.BROKEN,
}

_STATUS = OutboxStatus([Backlog("orders", 5, 90.0, 5, 90.0, paused=False)], [], [], dead=1, kept=0)

UNMADE: dict[str, dict[str, Any]] = {
    **{check: facts for module in _BROKERS.values() for check, facts in getattr(module, "UNMADE", {}).items()},
    "mysql-version": {"findings": [("refuse", "version", "The server is MySQL 8.0.18.")]},
    "postgresql-held-cleanup": {"holders": [("session 7 of report in shop (psql, idle in transaction)", 90)]},
    "sqlite-network-file-system": {"file": "/mnt/shop.db", "mounts": "server:/shop /mnt nfs4 rw 0 0\n"},
    **{check: facts for _, setups in OF_STORES for check, facts in setups.UNMADE.items()},
    **sqlserver.UNMADE,
    "outbox-stalled": {"messages": Messages(_STATUS, [])},
    "dead-letters": {"messages": Messages(_STATUS, [Consuming("orders", "stock", 2, 2, 90.0)])},
}
"""Checks whose set-up would need a service, a version or a network that tests lack, with facts that fail them."""
