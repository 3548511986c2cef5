"""The events of a boundary."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

from retrysafe import Event


class Recorder:
    """Keeps every occurrence."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.waited = threading.Event()
        """Set once somebody waits; for tests whose claims are made in threads."""
        self._more = asyncio.Event()

    def __call__(self, occurrence: Event, /) -> None:
        self.told.append(occurrence)
        if occurrence.name == "waiting":
            self.waited.set()
        self._more.set()

    async def until(self, name: str) -> None:
        """Wait until an occurrence of this name was told on the running loop."""
        while name not in self.names:
            self._more.clear()
            await self._more.wait()

    @property
    def names(self) -> list[str]:
        return [occurrence.name for occurrence in self.told]

    def fields(self, name: str) -> Mapping[str, Any]:
        return next(occurrence.fields for occurrence in self.told if occurrence.name == name)
