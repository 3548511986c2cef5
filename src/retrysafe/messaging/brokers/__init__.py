"""Brokers that need no server."""
