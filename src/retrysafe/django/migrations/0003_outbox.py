"""Version 3: the outbox."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

from retrysafe.django.operations import Schema

_MESSAGE: list[tuple[str, Any]] = [
    ("bucket", models.SmallIntegerField()),
    ("lane", models.BigIntegerField()),
    ("message_id", models.TextField()),
    ("topic", models.TextField()),
    ("message_key", models.TextField(null=True)),
    ("message_type", models.TextField()),
    ("source", models.TextField()),
    ("sequence", models.BigIntegerField(null=True)),
    ("created", models.BigIntegerField()),
    ("headers", models.TextField()),
    ("payload", models.BinaryField()),
    ("media_type", models.TextField()),
]


def _model(name: str, table: str, fields: list[tuple[str, Any]]) -> Any:
    options = {"db_table": f"retrysafe_outbox{table}", "default_permissions": ("view",)}
    return migrations.CreateModel(name=name, fields=fields, options=options)


def _number() -> tuple[str, Any]:
    return ("id", models.BigIntegerField(primary_key=True, serialize=False))


def _name(column: str) -> tuple[str, Any]:
    return (column, models.TextField(primary_key=True, serialize=False))


def _attempts() -> list[tuple[str, Any]]:
    return [("started", models.IntegerField()), ("finished", models.IntegerField())]


_MODELS = [
    _model("OutboxMessage", "", [("id", models.BigAutoField(primary_key=True, serialize=False)), *_MESSAGE]),
    _model(
        "OutboxDeadLetter",
        "_dead",
        [_number(), *_MESSAGE, *_attempts(), ("error", models.TextField()), ("died", models.BigIntegerField())],
    ),
    _model("OutboxPublished", "_published", [_number(), *_MESSAGE, ("published", models.BigIntegerField())]),
    _model(
        "OutboxTrouble",
        "_troubles",
        [
            _number(),
            ("bucket", models.SmallIntegerField()),
            ("lane", models.BigIntegerField()),
            *_attempts(),
            ("not_before", models.BigIntegerField()),
            ("error", models.TextField()),
        ],
    ),
    _model("OutboxPaused", "_paused", [_name("topic"), ("since", models.BigIntegerField())]),
    _model(
        "OutboxRelay",
        "_relays",
        [
            _name("name"),
            ("hold", models.TextField()),
            ("since", models.BigIntegerField()),
            ("seen", models.BigIntegerField()),
        ],
    ),
]


class Migration(migrations.Migration):
    """Makes the tables by our SQL."""

    dependencies = [("retrysafe", "0002_quotas")]  # noqa: RUF012 - so it is declared in Django
    operations = [  # noqa: RUF012
        migrations.SeparateDatabaseAndState(database_operations=[Schema(3)], state_operations=_MODELS),
    ]
