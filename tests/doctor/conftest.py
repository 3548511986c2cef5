"""Running command lines."""

from __future__ import annotations

from tests.operating.conftest import command

__all__ = ["command"]
