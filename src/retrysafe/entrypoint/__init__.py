"""What HTTP, webhooks and messages need of a boundary."""
