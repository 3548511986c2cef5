"""Version 9: the table of loads, which Django has no model of."""

from retrysafe.django.history import migration

Migration = migration(9)
