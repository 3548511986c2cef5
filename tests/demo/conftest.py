"""Banks of a test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.demo.banks import OpenBank


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[OpenBank]:
    opened = OpenBank(tmp_path)
    yield opened
    opened.child.remove()


@pytest.fixture
def keyless(tmp_path: Path) -> Iterator[OpenBank]:
    opened = OpenBank(tmp_path, "--without-keys")
    yield opened
    opened.child.remove()
