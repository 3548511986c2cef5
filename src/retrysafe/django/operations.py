"""The migration operation that runs our own SQL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import OperationalError, router
from django.db.migrations.operations.base import Operation

from retrysafe.backends import migrations
from retrysafe.backends.migrations import on_demand


class Schema(Operation):
    """One version of retrysafe's schema, in the SQL of the alias's database.

    Routers decide by ``allow_migrate(db, "retrysafe", model_name="record")``; a database that retrysafe does not
    know is passed over.
    """

    reduces_to_sql = True
    reversible = True

    def __init__(self, version: int) -> None:
        self.version = version

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Nothing: the models of each version are operations of their own."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Apply the version, unless it is there already."""
        if not self._is_meant(app_label, schema_editor):
            return
        _complete(schema_editor)
        if _version(schema_editor) < self.version:
            _execute_soon(schema_editor, migrations.forward(schema_editor.connection.vendor, self.version))

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Undo the version."""
        if self._is_meant(app_label, schema_editor):
            _complete(schema_editor)
            _execute_soon(schema_editor, migrations.backward(schema_editor.connection.vendor, self.version))

    def _is_meant(self, app_label: str, schema_editor: Any) -> bool:
        connection = schema_editor.connection
        known = connection.vendor in migrations.dialects()
        return known and router.allow_migrate(connection.alias, app_label, model_name="record")

    def describe(self) -> str:
        """Return the line of `migrate --plan`."""
        return f"Bring retrysafe's schema to version {self.version}"


def _version(schema_editor: Any) -> int:
    """The version that `retrysafe migrate` or a boundary has brought the database to; 0 for SQL that is collected."""
    connection = schema_editor.connection
    if schema_editor.collect_sql or "retrysafe_schema" not in connection.introspection.table_names():
        return 0
    with connection.cursor() as cursor:
        cursor.execute(migrations.VERSION)
        return int(cursor.fetchone()[0] or 0)


def _complete(schema_editor: Any) -> None:
    """Make the tables that a boundary leaves to their first use, so that every version can be applied and undone."""
    connection = schema_editor.connection
    if connection.vendor == "sqlite":
        found = connection.introspection.table_names()
        _execute(schema_editor, on_demand.completing(found, _version(schema_editor)))


_BOUNDS: dict[str, tuple[str, str]] = {
    "postgresql": ("SET LOCAL lock_timeout = '1s'", "SET LOCAL lock_timeout TO DEFAULT"),
    "mysql": ("SET SESSION lock_wait_timeout = 1", "SET SESSION lock_wait_timeout = DEFAULT"),
}
"""By vendor, what bounds the wait for a lock, behind which claims would wait, and what ends the bound."""


def _execute_soon(schema_editor: Any, statements: Iterable[str]) -> None:
    """Execute statements, but give up after a second behind the lock of another transaction."""
    bounds = _BOUNDS.get(schema_editor.connection.vendor)
    if bounds is None or schema_editor.collect_sql:
        _execute(schema_editor, statements)
        return
    bound, unbound = bounds
    try:
        _execute(schema_editor, [bound, *statements, unbound])
    except OperationalError as error:
        error.add_note(
            "If another transaction held a lock on retrysafe's tables, claims would have waited behind this migration, "
            "so it gave up. Migrate again when that transaction has ended, or run `retrysafe migrate`, which tries for "
            "a minute and names it; `manage.py migrate` finds its work done."
        )
        raise


def _execute(schema_editor: Any, statements: Iterable[str]) -> None:
    for statement in statements:
        schema_editor.execute(statement, None)
