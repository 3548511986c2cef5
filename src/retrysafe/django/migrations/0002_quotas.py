"""Version 2: who holds a key, for quotas."""

from __future__ import annotations

from django.db import migrations, models

from retrysafe.django.operations import Schema

_QUOTA = migrations.AddField("Record", "quota", models.BinaryField(null=True))


class Migration(migrations.Migration):
    """Adds the column and its index by our SQL."""

    dependencies = [("retrysafe", "0001_records")]  # noqa: RUF012 - so it is declared in Django
    operations = [  # noqa: RUF012
        migrations.SeparateDatabaseAndState(database_operations=[Schema(2)], state_operations=[_QUOTA]),
    ]
