"""The description of a backend's harness."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from retrysafe.backends.registry import connect
from retrysafe.testing.harness import AsyncHarness, SyncHarness
from tests.laboratory.specification import Traits

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


class Settings(NamedTuple):
    """The settings that are checked before the first claim of a process."""

    refused: str
    warned: str


class Loss(NamedTuple):
    """Something that happens to a store, and what a retry then does to the effects of each mode."""

    happens: str
    lost: str
    keyed: str
    external: str
    transactional: str = ""


RUNS = "runs again, with the same derived keys"
TWICE = "**the effect may happen twice**"
TOGETHER = "the effect is lost with its record; a retry runs again, and has it once"
CRASH = "what was not on disk"
FAILOVER = "what the replica had not received"
RESTORED = "what was recorded since"


class StoreHarness(NamedTuple):
    """The stores of one backend behind each of their executors.

    executors: by name the service that each needs, and how its harness is made in a folder of its own.
    drivers: those of the executors that are drivers of our own, on the usual version of their server.
    urls: by kind of store the service that it needs, and its URL, with the tables made, in a folder of its own.
    on_other_versions: for a service, the executors that are tested on its other versions too.
    finish: removes what the tests of a process have left with the service.
    proxied: for an executor the URL of its store as it is reached through a proxy, and that of the server in it.
    traits: for a kind of store the peculiarities that a checker of histories has to know.
    settings: for a kind of store the settings that are checked before the first claim, for its guarantees.
    losses: for a kind of store all that can happen to it, for the page on code that can still run twice.
    examples: for a variable of documentation pages the service, and its URL with a place of the page's own.
    """

    executors: Makes
    drivers: Sequence[str] = ()
    urls: Mapping[str, tuple[str | None, Callable[[Path], str]]] = {}
    on_other_versions: Mapping[str, Sequence[str]] = {}
    finish: Callable[[], None] = nothing
    proxied: Mapping[str, tuple[Callable[[], str], Callable[[], str]]] = {}
    traits: Mapping[str, Traits] = {}
    settings: Mapping[str, Settings] = {}
    losses: Mapping[str, Sequence[Loss]] = {}
    examples: Mapping[str, tuple[str, Callable[[], AbstractContextManager[str]]]] = {}
