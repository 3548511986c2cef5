"""Common parts of the gateway's tests."""

from __future__ import annotations

import shutil

import pytest

from tests.conftest import absent


@pytest.fixture(scope="session")
def node() -> str:
    """Node.js, for services in another language."""
    found = shutil.which("node")
    if found is None:
        absent("no node: the service behind the gateway is written for Node.js")
    return found
