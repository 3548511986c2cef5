"""Version 8: the table of steps, which Django has no model of."""

from retrysafe.django.history import migration

Migration = migration(8, after="0008_rights")
