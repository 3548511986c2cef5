"""Decisions: pure functions and tables. Time, randomness and ids come in as arguments."""
