"""The migration operation that runs our own SQL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import router
from django.db.migrations.operations.base import Operation

from retrysafe.backends import migrations


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
        if self._is_meant(app_label, schema_editor) and not self._is_there(schema_editor):
            _execute(schema_editor, migrations.forward(schema_editor.connection.vendor, self.version))

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Undo the version."""
        if self._is_meant(app_label, schema_editor):
            _execute(schema_editor, migrations.backward(schema_editor.connection.vendor, self.version))

    def _is_meant(self, app_label: str, schema_editor: Any) -> bool:
        connection = schema_editor.connection
        known = connection.vendor in migrations.dialects()
        return known and router.allow_migrate(connection.alias, app_label, model_name="record")

    def _is_there(self, schema_editor: Any) -> bool:
        """Whether `retrysafe migrate` was here before."""
        connection = schema_editor.connection
        if schema_editor.collect_sql or "retrysafe_schema" not in connection.introspection.table_names():
            return False
        with connection.cursor() as cursor:
            cursor.execute(migrations.VERSION)
            return bool((cursor.fetchone()[0] or 0) >= self.version)

    def describe(self) -> str:
        """What `migrate --plan` shows."""
        return f"Bring retrysafe's schema to version {self.version}"


def _execute(schema_editor: Any, statements: Iterable[str]) -> None:
    for statement in statements:
        schema_editor.execute(statement, None)
