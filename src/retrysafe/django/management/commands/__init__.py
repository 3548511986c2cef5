"""Commands of ``manage.py``, by the names of their modules."""
