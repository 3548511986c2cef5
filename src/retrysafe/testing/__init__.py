"""For tests: the conformance suite that every store passes, and the simulator of the protocol."""

from retrysafe.testing.crashing import crash_points as crash_points
