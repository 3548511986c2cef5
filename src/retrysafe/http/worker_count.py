"""The number of processes that serve the application, as far as its server's command line tells."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from retrysafe.claims.observers import logger
from retrysafe.entrypoint import EntryPoint

_SERVERS = frozenset({"uvicorn", "gunicorn", "hypercorn", "granian", "fastapi"})
"""The names of scripts, and of packages whose `__main__.py` is run."""
_WORKERS = re.compile(r"(?:-w|--workers)=?(\d+)?")


def count_workers(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """The number of worker processes that a server was told to start; 1 for other programs, or where it is not told."""
    if not arguments or _SERVERS.isdisjoint(Path(arguments[0]).parts[-2:]):
        return 1
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        found = _WORKERS.fullmatch(argument)
        if found is not None:
            said = found[1] or following
            return int(said) if said.isdecimal() else 1
    said = environment.get("WEB_CONCURRENCY", "")
    return int(said) if said.isdecimal() else 1


def warn_of_memory(entry: EntryPoint) -> None:
    """Warn of a store in memory behind several worker processes, each of which has its own."""
    if entry.backend.kind != "memory":
        return
    count = count_workers(sys.argv, os.environ)
    if count > 1:
        logger().warning(
            "Boundary %r keeps its records in memory, and %d worker processes are started: a retry that another of "
            "them gets runs again. Give a store that they share, such as store='sqlite:///shop.db'.",
            entry.name,
            count,
        )
