"""For tests: of code that is guarded, and of stores.

`assert_once`, `concurrently` and `redelivered` make the retries, duplicates and redeliveries that production makes;
`Clock` lets time pass in every store; `crash_points` crashes an operation at every step. `StoreSuite` puts a store of
your own to everything that ours must pass, `PublisherSuite` a publisher. With retrysafe installed, pytest has them as
fixtures.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retrysafe.testing.asserting import aassert_once, assert_once
    from retrysafe.testing.clock import Clock
    from retrysafe.testing.consumers import ConsumerBench, ConsumerFeatures, ConsumerSuite
    from retrysafe.testing.crashing import crash_points
    from retrysafe.testing.duplicates import Outcome, aconcurrently, concurrently, redelivered
    from retrysafe.testing.faulty_broker import FaultyBroker
    from retrysafe.testing.harness import AsyncHarness, Harness, SyncHarness
    from retrysafe.testing.publishers import PublisherFeatures, PublisherSuite, Publishing
    from retrysafe.testing.suite import StoreSuite
    from retrysafe.testing.time_travel import age

__all__ = [
    "AsyncHarness",
    "Clock",
    "ConsumerBench",
    "ConsumerFeatures",
    "ConsumerSuite",
    "FaultyBroker",
    "Harness",
    "Outcome",
    "PublisherFeatures",
    "PublisherSuite",
    "Publishing",
    "StoreSuite",
    "SyncHarness",
    "aassert_once",
    "aconcurrently",
    "age",
    "assert_once",
    "concurrently",
    "crash_points",
    "redelivered",
]

_HOMES = {
    "asserting": ("aassert_once", "assert_once"),
    "clock": ("Clock",),
    "consumers": ("ConsumerBench", "ConsumerFeatures", "ConsumerSuite"),
    "crashing": ("crash_points",),
    "duplicates": ("Outcome", "aconcurrently", "concurrently", "redelivered"),
    "faulty_broker": ("FaultyBroker",),
    "harness": ("AsyncHarness", "Harness", "SyncHarness"),
    "publishers": ("PublisherFeatures", "PublisherSuite", "Publishing"),
    "suite": ("StoreSuite",),
    "time_travel": ("age",),
}
"""The names in each module, which is imported when one of them is first asked for."""


def __getattr__(name: str) -> Any:
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return found


def __dir__() -> list[str]:
    return __all__
