"""One test, every store= and tx=."""

from __future__ import annotations

from tests.boundary.conftest import shop as shop
