"""The HTTP contract, over real connections: every rule on every integration, on every store, in every mode."""
