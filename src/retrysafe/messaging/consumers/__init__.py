"""Consumers: what messages are taken from."""
