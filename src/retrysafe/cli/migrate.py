"""`retrysafe migrate`: create or update the tables of a store."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any
from urllib.parse import urlsplit

from retrysafe.backends import migrations
from retrysafe.backends.backend import Backend
from retrysafe.backends.registry import connect
from retrysafe.backends.urls import without_password
from retrysafe.cli.opening import add_store, store_of
from retrysafe.cli.options import add_option, add_verb
from retrysafe.cli.progress import show_progress
from retrysafe.cli.rendering import as_json
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.migrating import Migration

_DIALECTS = {
    "sqlite": "sqlite",
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
    "mssql": "mssql",
}
_ASYNC_ONLY = ("postgresql+asyncpg", "mysql+asyncmy", "mariadb+asyncmy")


def add_to(verbs: Any) -> None:
    parser = add_verb(verbs, "migrate", "create or update a store's tables", run, __doc__)
    add_store(parser)
    add_option(parser, "--sql", "print the SQL instead, without connecting")
    add_option(parser, "--after N", "with --sql: only the migrations after version N")
    add_option(
        parser,
        "--partitions N",
        "PostgreSQL: create the table of records in N partitions by key hash, which sweep --rotate can rewrite",
    )


def run(options: argparse.Namespace) -> int:
    store = store_of(options)
    scheme = urlsplit(str(store)).scheme
    if options.sql:
        print(migrations.script(_dialect(scheme, str(store)), options.after or 0, options.partitions), end="")
        return 0
    if options.after is not None:
        raise ConfigurationError("--after goes with --sql only.")
    backend = connect(store, migrate=False)
    with show_progress(lambda: "migrating"):
        applied = _apply(backend, options.partitions, in_loop=scheme in _ASYNC_ONLY)
    for migration in applied:
        told = {"version": migration.version, "name": migration.name}
        print(as_json(told) if options.json else f"applied {migration.version:04d} {migration.name}")
    if not applied and not options.json:
        print("up to date")
    return 0


def _dialect(scheme: str, store: str) -> str:
    dialect = _DIALECTS.get(scheme.partition("+")[0])
    if dialect is None:
        known = ", ".join(sorted(set(_DIALECTS.values())))
        raise ConfigurationError(f"--sql: {without_password(store)!r} has no SQL schema; only {known} have one.")
    return dialect


def _apply(backend: Backend, partitions: int | None, *, in_loop: bool) -> list[Migration]:
    if in_loop:
        return asyncio.run(_amigrate(backend, partitions))
    try:
        return backend.migrate(partitions)
    finally:
        backend.close()


async def _amigrate(backend: Backend, partitions: int | None) -> list[Migration]:
    try:
        return await backend.amigrate(partitions)
    finally:
        await backend.aclose()
