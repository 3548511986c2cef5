"""Brokers of our own, for one machine: publisher and consumer in one module each."""
