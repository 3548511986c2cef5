"""The proof of the whole pipeline: orders, outbox, three relays, a broker, three inboxes, and kills of all six."""
