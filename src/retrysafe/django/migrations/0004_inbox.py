"""Version 4: the inbox."""

from retrysafe.django.history import migration

Migration = migration(4)
