"""Version 1: records."""

from retrysafe.django.history import migration

Migration = migration(1)
