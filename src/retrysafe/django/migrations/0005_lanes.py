"""Version 5: the lanes of the outbox by index."""

from __future__ import annotations

from django.db import migrations

from retrysafe.django.operations import Schema


class Migration(migrations.Migration):
    """Makes indexes by our SQL."""

    dependencies = [("retrysafe", "0004_inbox")]  # noqa: RUF012 - so it is declared in Django
    operations = [migrations.SeparateDatabaseAndState(database_operations=[Schema(5)])]  # noqa: RUF012
