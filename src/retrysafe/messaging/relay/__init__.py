"""The relay: it publishes what is in an outbox."""
