"""Version 8: the table of steps."""

from __future__ import annotations

from django.db import migrations

from retrysafe.django.operations import Schema


class Migration(migrations.Migration):
    """Makes the table by our SQL."""

    dependencies = [("retrysafe", "0008_rights")]  # noqa: RUF012 - so it is declared in Django
    operations = [migrations.SeparateDatabaseAndState(database_operations=[Schema(8)])]  # noqa: RUF012
