"""Version 3: the outbox."""

from retrysafe.django.history import migration

Migration = migration(3)
