"""The rights of the admin's actions; the schema stays as it is."""

from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):
    """Makes Django know the permissions, which it creates after a migration."""

    dependencies = [("retrysafe", "0007_unknown")]  # noqa: RUF012 - so it is declared in Django
    operations = [  # noqa: RUF012 - as above
        migrations.AlterModelOptions(
            name="record",
            options={
                "default_permissions": ("view",),
                "permissions": [
                    ("resolve_record", "Can settle and release unknown keys"),
                    ("expire_record", "Can end the window of settled keys"),
                ],
            },
        ),
    ]
