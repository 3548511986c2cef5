"""The published conformance suite, over every store and executor."""

from __future__ import annotations

import pytest

from retrysafe.testing.suite import test_conformance as test_conformance
from tests.stores.harnesses import DRIVERS

pytestmark = pytest.mark.thinned(0.4, whole=DRIVERS)
