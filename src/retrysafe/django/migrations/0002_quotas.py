"""Version 2: who holds a key, for quotas."""

from retrysafe.django.history import migration

Migration = migration(2)
