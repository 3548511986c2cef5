"""Aliases of DATABASES that come and go with a test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4


def set_up() -> None:
    """Configure Django in this process."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.django.settings")
    import django
    from django.db.backends.signals import connection_created

    django.setup()
    connection_created.connect(_remember, dispatch_uid="tests")


def add_alias(kind: str, **settings: Any) -> str:
    """A new alias on a kind of database ("sqlite" or "postgresql"), with these settings over the usual ones."""
    set_up()
    from django.db import connections

    from tests.django.settings import database

    alias = f"alias_{uuid4().hex[:12]}"
    connections.settings[alias] = database(kind, alias) | settings
    connections.configure_settings(connections.settings)
    return alias


def remove_alias(alias: str) -> None:
    """Close its connections, of whichever thread or task they are, and forget the alias."""
    from django.db import connections

    with blocking_allowed():
        for connection in _opened.pop(alias, ()):
            connection.inc_thread_sharing()
            connection.close()
    with suppress(AttributeError):
        del connections[alias]
    del connections.settings[alias]


_opened: dict[str, list[Any]] = {}


def opened(alias: str) -> list[Any]:
    """The connections that were opened on an alias, of whichever thread."""
    return _opened.get(alias, [])


def _remember(connection: Any, **_: Any) -> None:
    if not connection.alias.startswith("alias_"):
        return  # of the settings: kept here, the connection of every thread would stay open for as long as we live
    _opened.setdefault(connection.alias, []).append(connection)


@contextmanager
def blocking_allowed() -> Iterator[None]:
    """Let Django work on an event loop, where it would block."""
    before = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("DJANGO_ALLOW_ASYNC_UNSAFE", None)
        else:
            os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = before
