"""Benchmarks: what retrysafe costs beside the same work written by hand, measured in one interleaved run."""
