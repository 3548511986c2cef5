"""retrysafe's schema in the revisions of Alembic."""
