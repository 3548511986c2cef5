"""Brokers that messages are relayed to and consumed from: ours, and the raw client that does the same work."""
