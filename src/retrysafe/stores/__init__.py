"""What to ask of each kind of store: pure renderings of the transition table."""
