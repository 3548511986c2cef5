"""Version 6: the field's terms in the place of version 0.1's names."""

from __future__ import annotations

from typing import Any

from django.db import migrations

from retrysafe.django.operations import Schema

_TABLES = {"OutboxTrouble": "OutboxAttempt", "InboxTrouble": "InboxAttempt"}
_COLUMNS = (
    ("record", "forget", "tombstone_until"),
    ("outboxdeadletter", "died", "dead_at"),
    ("inboxdeadletter", "died", "dead_at"),
    ("outboxpaused", "since", "paused_at"),
    ("outboxrelay", "since", "started_at"),
    ("outboxrelay", "seen", "last_seen_at"),
)
_STATE: list[Any] = [
    *(migrations.RenameModel(old, new) for old, new in _TABLES.items()),
    migrations.AlterModelTable("outboxattempt", "retrysafe_outbox_attempts"),
    migrations.AlterModelTable("inboxattempt", "retrysafe_inbox_attempts"),
    *(migrations.RenameField(model, old, new) for model, old, new in _COLUMNS),
]


class Migration(migrations.Migration):
    """Renames by our SQL."""

    dependencies = [("retrysafe", "0005_lanes")]  # noqa: RUF012 - so it is declared in Django
    operations = [  # noqa: RUF012
        migrations.SeparateDatabaseAndState(database_operations=[Schema(6)], state_operations=_STATE),
    ]
