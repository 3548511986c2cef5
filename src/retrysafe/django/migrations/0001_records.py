"""Version 1: records."""

from __future__ import annotations

from django.db import migrations, models

from retrysafe.django.operations import Schema

_RECORD = migrations.CreateModel(
    name="Record",
    fields=[
        ("key_hash", models.BinaryField(primary_key=True, serialize=False)),
        ("boundary", models.TextField()),
        ("scope", models.TextField()),
        ("operation", models.TextField()),
        ("fingerprint", models.BinaryField()),
        ("state", models.TextField()),
        ("attempt", models.TextField()),
        ("token", models.BigIntegerField()),
        ("attempts", models.IntegerField()),
        ("effects", models.TextField()),
        ("lease_until", models.BigIntegerField()),
        ("created", models.BigIntegerField()),
        ("updated", models.BigIntegerField()),
        ("expires", models.BigIntegerField()),
        ("forget", models.BigIntegerField()),
        ("version", models.BigIntegerField()),
        ("result", models.BinaryField(null=True)),
        ("media_type", models.TextField(null=True)),
        ("codec_version", models.IntegerField(null=True)),
    ],
    options={"db_table": "retrysafe_records", "default_permissions": ("view",)},
)


class Migration(migrations.Migration):
    """Makes both tables by our SQL."""

    initial = True
    operations = [  # noqa: RUF012 - so it is declared in Django
        migrations.SeparateDatabaseAndState(database_operations=[Schema(1)], state_operations=[_RECORD]),
    ]
