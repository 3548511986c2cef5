"""The published conformance suite, over every store and executor."""

from __future__ import annotations

from retrysafe.testing.suite import test_conformance as test_conformance
