"""The arguments of a rule: a module, and the project's facts about it."""

from __future__ import annotations

from typing import NamedTuple

from retrysafe.scan.effects import Effects
from retrysafe.scan.entrypoints import EntryPoints
from retrysafe.scan.module import Module
from retrysafe.scan.project import Project


class View(NamedTuple):
    """One module of a project."""

    project: Project
    module: Module
    effects: Effects
    entry_points: EntryPoints
