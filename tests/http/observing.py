"""What a boundary told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retrysafe import Occurrence


class Recorder:
    """Keeps every occurrence."""

    def __init__(self) -> None:
        self.told: list[Occurrence] = []

    def __call__(self, occurrence: Occurrence, /) -> None:
        self.told.append(occurrence)

    @property
    def names(self) -> list[str]:
        return [occurrence.name for occurrence in self.told]

    def fields(self, name: str) -> Mapping[str, Any]:
        return next(occurrence.fields for occurrence in self.told if occurrence.name == name)
