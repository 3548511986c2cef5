"""Batch loads: the data of a run and the note that it was loaded are one commit of the target."""

from __future__ import annotations

from retrysafe.loads.loads import Load, Loads
from retrysafe.loads.work import Late, Merge, Window

__all__ = ["Late", "Load", "Loads", "Merge", "Window"]
