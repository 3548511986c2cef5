"""Which file a path leads to, so that one file is recognised by all its names."""

from __future__ import annotations

import os
from urllib.parse import urlsplit


def file_of(path: str | None) -> tuple[str | int, ...] | None:
    """A file, whatever it is called; None for a database in memory."""
    if not path or path == ":memory:" or "mode=memory" in path:
        return None
    path = os.path.realpath(urlsplit(path).path if path.startswith("file:") else path)
    try:
        found = os.stat(path)  # noqa: PTH116 - pathlib would double the time to import
    except OSError:
        return "sqlite", path
    return "sqlite", found.st_dev, found.st_ino
