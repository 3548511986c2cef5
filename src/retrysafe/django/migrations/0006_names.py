"""Version 6: the field's terms in the place of version 0.1's names."""

from retrysafe.django.history import migration

Migration = migration(6)
