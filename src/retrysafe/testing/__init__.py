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
    "AsyncHarness": "harness",
    "Clock": "clock",
    "ConsumerBench": "consumers",
    "ConsumerFeatures": "consumers",
    "ConsumerSuite": "consumers",
    "FaultyBroker": "faulty_broker",
    "Harness": "harness",
    "Outcome": "duplicates",
    "PublisherFeatures": "publishers",
    "PublisherSuite": "publishers",
    "Publishing": "publishers",
    "StoreSuite": "suite",
    "SyncHarness": "harness",
    "aassert_once": "asserting",
    "aconcurrently": "duplicates",
    "age": "time_travel",
    "assert_once": "asserting",
    "concurrently": "duplicates",
    "crash_points": "crashing",
    "redelivered": "duplicates",
}
"""The module of each name; it is imported when it is first asked for."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return __all__
