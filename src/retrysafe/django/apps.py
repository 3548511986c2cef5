"""The app's configuration."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import Tags, register

from retrysafe.django.checks import check_middleware, check_tables


class RetrysafeConfig(AppConfig):
    """The app is called ``retrysafe`` in commands such as ``manage.py migrate retrysafe``."""

    name = "retrysafe.django"
    label = "retrysafe"
    verbose_name = "retrysafe"

    def ready(self) -> None:
        """Register the system checks."""
        register(check_middleware)
        register(check_tables, Tags.database)
