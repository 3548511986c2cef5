"""Brokers: one folder, or one file, each."""
