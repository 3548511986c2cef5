"""Lets time pass in Cosmos DB, for tests."""

from retrysafe.backends.time_travel import age_documents as age

__all__ = ["age"]
