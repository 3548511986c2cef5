"""Reads Python source and finds operations that are not safe to retry. The code that is read is never imported."""
