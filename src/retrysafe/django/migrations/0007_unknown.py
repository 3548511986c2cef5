"""Version 7: an index of unknown records."""

from __future__ import annotations

from django.db import migrations

from retrysafe.django.operations import Schema


class Migration(migrations.Migration):
    """Makes the index by our SQL."""

    dependencies = [("retrysafe", "0006_names")]  # noqa: RUF012 - so it is declared in Django
    operations = [migrations.SeparateDatabaseAndState(database_operations=[Schema(7)])]  # noqa: RUF012
