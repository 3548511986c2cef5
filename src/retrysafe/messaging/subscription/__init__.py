"""A subscription: messages of a broker, handled by an inbox."""
