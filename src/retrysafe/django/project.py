"""The settings of a project for the store that its commands and its admin operate."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections

from retrysafe.admin.audit import Audit, AuditFile
from retrysafe.admin.operator import Operator

_AUDIT = logging.getLogger("retrysafe.audit")


def store() -> Any:
    """``RETRYSAFE_STORE``: an alias of DATABASES, or what else ``Boundary(store=…)`` takes; by default "default"."""
    return getattr(settings, "RETRYSAFE_STORE", None) or DEFAULT_DB_ALIAS


def alias() -> str | None:
    """The alias of the store; None for one that is not in DATABASES."""
    named = store()
    return named if isinstance(named, str) and named in connections else None


def secret() -> str | bytes | None:
    """``RETRYSAFE_SECRET``: the boundaries' ``secret=``, if they have one."""
    return getattr(settings, "RETRYSAFE_SECRET", None)


def operator(actor: str) -> Operator:
    """An operator of the store, whose changes are audited in the name of ``actor``."""
    return Operator(store(), actor=actor, observers=(), secret=secret(), audit=_audit())


def _audit() -> Audit:
    """``RETRYSAFE_AUDIT``: the file that the audit is appended to; without it the logger "retrysafe.audit" has it."""
    path = getattr(settings, "RETRYSAFE_AUDIT", None)
    return AuditFile(path) if path else _log


def _log(entry: Mapping[str, Any], /) -> None:
    _AUDIT.info("%s", json.dumps(entry, ensure_ascii=False))
