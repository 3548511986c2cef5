"""Chromium."""

from __future__ import annotations

import shutil
from pathlib import Path

from serviceparts.service import Programs


class Chromium(Programs):
    """The browser that `make prove` shows pages in; tests find it on the path."""

    name = "chromium"
    of_proving = True
    NAMES = ("chromium", "chromium-browser", "google-chrome")

    @property
    def program(self) -> str | None:
        return next(filter(None, map(shutil.which, self.NAMES)), None)

    @property
    def directory(self) -> Path:
        return Path(self.program or "").parent

    def packages(self) -> list[str]:
        return [] if self.program else ["chromium"]

    def ready(self) -> bool:
        return self.program is not None
