"""Version 7: an index of unknown records."""

from retrysafe.django.history import migration

Migration = migration(7)
