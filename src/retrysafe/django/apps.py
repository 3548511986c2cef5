"""The app's configuration."""

from __future__ import annotations

from django.apps import AppConfig


class RetrysafeConfig(AppConfig):
    """The app is called ``retrysafe`` in commands such as ``manage.py migrate retrysafe``."""

    name = "retrysafe.django"
    label = "retrysafe"
    verbose_name = "retrysafe"
