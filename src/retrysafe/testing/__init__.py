"""For tests: the conformance suite that every store passes, and the simulator of the protocol."""
