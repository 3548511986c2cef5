"""Version 4: the inbox."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

from retrysafe.django.operations import Schema


def _model(name: str, table: str, fields: list[tuple[str, Any]]) -> Any:
    key = ("key_hash", models.BinaryField(max_length=32, primary_key=True, serialize=False))
    options = {"db_table": f"retrysafe_inbox_{table}", "default_permissions": ("view",)}
    return migrations.CreateModel(name=name, fields=[key, *fields], options=options)


_MODELS = [
    _model(
        "InboxTrouble",
        "troubles",
        [
            ("consumer", models.TextField()),
            ("started", models.IntegerField()),
            ("finished", models.IntegerField()),
            ("error", models.TextField()),
            ("updated", models.BigIntegerField()),
        ],
    ),
    _model(
        "InboxDeadLetter",
        "dead",
        [
            ("record_key", models.BinaryField(max_length=32)),
            ("boundary", models.TextField()),
            ("consumer", models.TextField()),
            ("message_id", models.TextField()),
            ("topic", models.TextField()),
            ("message_key", models.TextField(null=True)),
            ("message_type", models.TextField()),
            ("source", models.TextField()),
            ("sequence", models.BigIntegerField(null=True)),
            ("headers", models.TextField()),
            ("payload", models.BinaryField()),
            ("media_type", models.TextField()),
            ("started", models.IntegerField()),
            ("finished", models.IntegerField()),
            ("error", models.TextField()),
            ("died", models.BigIntegerField()),
            ("redrive", models.BigIntegerField(null=True)),
        ],
    ),
    _model(
        "InboxSequence",
        "sequences",
        [
            ("boundary", models.TextField()),
            ("consumer", models.TextField()),
            ("entity", models.TextField()),
            ("sequence", models.BigIntegerField()),
            ("updated", models.BigIntegerField()),
        ],
    ),
]


class Migration(migrations.Migration):
    """Creates the tables by our SQL; the models are for Django's own view of them."""

    dependencies = [("retrysafe", "0003_outbox")]  # noqa: RUF012 - so it is declared in Django
    operations = [  # noqa: RUF012
        migrations.SeparateDatabaseAndState(database_operations=[Schema(4)], state_operations=_MODELS),
    ]
