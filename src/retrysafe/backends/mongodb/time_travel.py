"""Lets time pass in MongoDB, for tests."""

from retrysafe.backends.time_travel import age_documents as age

__all__ = ["age"]
