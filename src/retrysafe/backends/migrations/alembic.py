"""retrysafe's schema in the revisions of Alembic, online and offline (``--sql``).

In a revision:

    from retrysafe.backends.migrations import alembic as retrysafe

    def upgrade() -> None:
        retrysafe.upgrade(op, 1)

    def downgrade() -> None:
        retrysafe.downgrade(op, 1)

In env.py, so that autogenerate leaves our tables alone: ``context.configure(…, include_name=retrysafe.include_name)``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy

from retrysafe.backends import migrations
from retrysafe.backends.migrations import on_demand
from retrysafe.backends.migrations.history import present
from retrysafe.errors import ConfigurationError

TABLES = frozenset(name for name, table in present().tables.items() if table.only is None)
"""The names of our tables, by which autogenerate is told to leave them alone."""


def upgrade(op: Any, version: int) -> None:
    """Apply one version of retrysafe's schema, by the dialect of ``op``; nothing is done where it is there already."""
    _complete(op)
    statements = migrations.forward(_dialect(op), version)
    if op.get_context().as_sql or _version(op.get_bind()) < version:
        _execute(op, statements)


def downgrade(op: Any, version: int) -> None:
    """Undo one version of retrysafe's schema. Undoing version 1 drops every record, and with it every guarantee."""
    _complete(op)
    _execute(op, migrations.backward(_dialect(op), version))


def _complete(op: Any) -> None:
    """Make the tables that a boundary leaves to their first use, so that every version can be applied and undone."""
    if _dialect(op) != "sqlite" or op.get_context().as_sql:
        return
    bind = op.get_bind()
    _execute(op, on_demand.completing(sqlalchemy.inspect(bind).get_table_names(), _version(bind)))


def include_name(name: str | None, type_: str, parent_names: Any) -> bool:
    """Leave our tables out of autogenerate; combine it with a filter of your own by ``and``."""
    return not (type_ == "table" and name in TABLES)


def _dialect(op: Any) -> str:
    name = str(op.get_context().dialect.name)
    if name not in migrations.dialects():
        raise ConfigurationError(
            f"retrysafe has no schema for {name!r}; it has one for {', '.join(migrations.dialects())}."
        )
    return name


def _version(connection: Any) -> int:
    """The version that a database has, 0 when it has none: SQLite files get theirs when a boundary is built."""
    if not sqlalchemy.inspect(connection).has_table("retrysafe_schema"):
        return 0
    return connection.exec_driver_sql(migrations.VERSION).scalar() or 0


def _execute(op: Any, statements: Iterable[str]) -> None:
    for statement in statements:
        op.execute(statement.replace(":", "\\:"))  # a colon would be read as a parameter
