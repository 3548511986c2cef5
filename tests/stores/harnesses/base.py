"""The description of a backend's harness."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from retrysafe.backends.registry import connect
from retrysafe.testing.harness import AsyncHarness, SyncHarness

AnyHarness = SyncHarness | AsyncHarness
Makes = Mapping[str, tuple[str | None, Callable[[Path], AnyHarness]]]


def migrated(url: str) -> str:
    """The URL, when its tables are there."""
    backend = connect(url)
    backend.migrate()
    backend.close()
    return url


def nothing() -> None:
    """Nothing is left to be done."""


class StoreHarness(NamedTuple):
    """The stores of one backend behind each of their executors.

    executors: by name the service that each needs, and how its harness is made in a folder of its own.
    drivers: those of the executors that are drivers of our own, on the usual version of their server.
    urls: by kind of store the service that it needs, and its URL, with the tables made, in a folder of its own.
    on_other_versions: for a service, the executors that are tested on its other versions too.
    finish: removes what the tests of a process have left with the service.
    """

    executors: Makes
    drivers: Sequence[str] = ()
    urls: Mapping[str, tuple[str | None, Callable[[Path], str]]] = {}
    on_other_versions: Mapping[str, Sequence[str]] = {}
    finish: Callable[[], None] = nothing
