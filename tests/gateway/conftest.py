"""What the tests of the gateway share."""

from __future__ import annotations

import shutil

import pytest


@pytest.fixture(scope="session")
def node() -> str:
    """Node.js, for services in another language."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("needs node: the service behind the gateway is written for Node.js")
    return found
