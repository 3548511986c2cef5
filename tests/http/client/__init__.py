"""The client beside servers that drop, delay, reset, duplicate and lie."""
