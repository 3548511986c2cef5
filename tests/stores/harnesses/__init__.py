"""Harnesses of the conformance suite: every store behind every executor, on real servers.

A module for each backend, named like its folder, has its harness.
"""

from __future__ import annotations

import importlib

from retrysafe.backends.registry import BACKENDS
from tests.stores.harnesses.base import StoreHarness
from tests.versions import and_on_other_versions

_MADE: list[StoreHarness] = [importlib.import_module(f"{__name__}.{name}").HARNESS for name in BACKENDS]
HARNESSES = and_on_other_versions(
    {name: row for made in _MADE for name, row in made.executors.items()},
    {service: names for made in _MADE for service, names in made.on_other_versions.items()},
)
"""Name → the service it needs, and how it is made in a directory of its own."""
DRIVERS = tuple(name for made in _MADE for name in made.drivers)
"""The harnesses of the drivers of our own, on the usual versions. The others put the same requests to the same stores
through a user's engine or client, in another topology, or to another version of the server."""
URLS = {kind: row for made in _MADE for kind, row in made.urls.items()}
"""Kind of store → the service it needs, and its URL for a directory of the test's own."""
PROXIED = {name: row for made in _MADE for name, row in made.proxied.items()}
TRAITS = {kind: traits for made in _MADE for kind, traits in made.traits.items()}
SETTINGS = {kind: settings for made in _MADE for kind, settings in made.settings.items()}
LOSSES = {kind: losses for made in _MADE for kind, losses in made.losses.items()}
EXAMPLES = {variable: row for made in _MADE for variable, row in made.examples.items()}


def finish() -> None:
    """Remove what the tests of this process have left with services."""
    for made in _MADE:
        made.finish()
