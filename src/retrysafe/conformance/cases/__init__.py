"""The cases, one per rule that shows from outside: pure scripts over a `Harness`, with no state between them."""

from __future__ import annotations

from retrysafe.conformance.cases import failures, fingerprints, keys, neighbours, replays, sizes, states
from retrysafe.conformance.cases.registry import CASES, Case

__all__ = ["CASES", "Case", "failures", "fingerprints", "keys", "neighbours", "replays", "sizes", "states"]
