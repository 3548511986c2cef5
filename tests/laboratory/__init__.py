"""The laboratory: a simulation of the protocol, and a checker of recorded histories, with which we prove retrysafe."""
