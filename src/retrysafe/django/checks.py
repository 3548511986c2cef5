"""System checks: the tables of retrysafe are in the databases that are checked, and its middleware can be built."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.utils.module_loading import import_string

from retrysafe.backends.registry import connect
from retrysafe.errors import ConfigurationError, RetrysafeError, SchemaOutdated, StoreMisconfigured
from retrysafe.http.django import IdempotencyMiddleware, guard_of_settings


def check_middleware(**_: Any) -> Iterable[CheckMessage]:
    """Report a guard of MIDDLEWARE that its setting does not allow, which else the first request would meet."""
    for path in settings.MIDDLEWARE:
        try:
            found = import_string(path)
        except ImportError:  # told by Django
            continue
        if isinstance(found, type) and issubclass(found, IdempotencyMiddleware):
            try:
                guard_of_settings(found.setting)
            except ConfigurationError as error:
                yield Error(error.detail, id="retrysafe.E001")


def check_tables(*, databases: Sequence[str] | None = None, **_: Any) -> Iterable[CheckMessage]:
    """Warn of each database that guarded views could not use; a database that does not answer is no mistake.

    Django asks for it with ``manage.py check --database default``, and before ``migrate``, which is not disturbed.
    """
    if sys.argv[1:2] == ["migrate"]:
        return
    for alias in databases or ():
        try:
            connect(alias).ready_client()
        except SchemaOutdated as error:
            command = f"python manage.py migrate retrysafe --database={alias}"
            yield Warning(f"Database {alias!r}: {error.detail}", hint=f"Run {command}", id="retrysafe.W001")
        except (StoreMisconfigured, ConfigurationError) as error:
            yield Warning(f"Database {alias!r}: {error.detail}", id="retrysafe.W002")
        except RetrysafeError:
            continue
