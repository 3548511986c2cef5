"""The published conformance suite, over every store and executor."""

from __future__ import annotations

import secrets

import pytest

from retrysafe.testing.conformance import CASES, Bench
from tests.stores.harnesses.base import AnyHarness
from tests.tables import each_row


@pytest.mark.every_value
@each_row("name", CASES)
def test_conformance(name: str, harness: AnyHarness) -> None:
    CASES[name](Bench(harness, secrets.token_bytes(32)))
