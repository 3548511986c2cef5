"""Version 5: the lanes of the outbox by index."""

from retrysafe.django.history import migration

Migration = migration(5)
