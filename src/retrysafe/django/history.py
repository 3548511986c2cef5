"""The schema's history as Django migrations: our SQL for the database, and what became of the models for Django."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.db import migrations, models
from django.db.migrations.operations.base import Operation

from retrysafe.backends.migrations.history import (
    HISTORY,
    AddColumn,
    Change,
    Column,
    RenameColumn,
    RenameTable,
    SchemaShape,
    Table,
    steps,
)
from retrysafe.django.operations import Schema

MODELS: Mapping[str, str] = {
    "retrysafe_records": "Record",
    "retrysafe_outbox": "OutboxMessage",
    "retrysafe_outbox_troubles": "OutboxTrouble",
    "retrysafe_outbox_attempts": "OutboxAttempt",
    "retrysafe_outbox_dead": "OutboxDeadLetter",
    "retrysafe_outbox_published": "OutboxPublished",
    "retrysafe_outbox_paused": "OutboxPaused",
    "retrysafe_outbox_relays": "OutboxRelay",
    "retrysafe_inbox_troubles": "InboxTrouble",
    "retrysafe_inbox_attempts": "InboxAttempt",
    "retrysafe_inbox_dead": "InboxDeadLetter",
    "retrysafe_inbox_sequences": "InboxSequence",
}
"""The model of each table that Django knows."""
_FIELDS: Mapping[str, Any] = {
    **dict.fromkeys(("hash", "holder", "bytes", "body"), models.BinaryField),
    **dict.fromkeys(("text", "name", "short", "state", "effects"), models.TextField),
    "big": models.BigIntegerField,
    "int": models.IntegerField,
    "small": models.SmallIntegerField,
    "serial": models.BigAutoField,
}


def migration(version: int, after: str | None = None) -> type[migrations.Migration]:
    """The migration of a version, ``after`` another one than that of the version before."""
    names = [f"{number:04d}_{name}" for number, name in enumerate(HISTORY, 1)]
    before = after or (names[version - 2] if version > 1 else None)
    changes = [(change, after) for number, change, _, after in steps() if number == version]
    state = [one for change, after in changes for one in _state(change, after)]
    return type(
        "Migration",
        (migrations.Migration,),
        {
            "__doc__": f"Version {version}, by our SQL.",
            "initial": version == 1 or None,
            "dependencies": [("retrysafe", before)] if before else [],
            "operations": [migrations.SeparateDatabaseAndState([Schema(version)], state)],
        },
    )


def _state(change: Change, after: SchemaShape) -> Iterator[Operation]:
    match change:
        case Table(name) if name in MODELS:
            yield _model(change)
        case AddColumn(table) if table in MODELS:
            column = after.tables[table].columns[-1]
            yield migrations.AddField(MODELS[table], column.name, _field(column))
        case RenameTable(old, new) if old in MODELS:
            yield migrations.RenameModel(MODELS[old], MODELS[new])
            yield migrations.AlterModelTable(MODELS[new], new)
        case RenameColumn(table, old, new) if table in MODELS:
            yield migrations.RenameField(MODELS[table], old, new)
        case _:
            return


def _model(table: Table) -> migrations.CreateModel:
    columns = [one for one in table.columns if one.kind in _FIELDS]
    fields = [(one.name, _field(one, key=at == 0)) for at, one in enumerate(columns)]
    return migrations.CreateModel(
        MODELS[table.name], fields, {"db_table": table.name, "default_permissions": ("view",)}
    )


def _field(column: Column, *, key: bool = False) -> Any:
    options: dict[str, Any] = {"primary_key": True, "serialize": False} if key else {}
    return _FIELDS[column.kind](**options, **({"null": True} if column.null else {}))
