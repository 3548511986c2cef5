"""Every broker under the suites of publishers and consumers: a module for each, named like its folder."""

from __future__ import annotations

import importlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from retrysafe.messaging.brokers.registry import BROKERS
from tests.messaging.harnesses import sqs
from tests.messaging.harnesses.base import Harness
from tests.versions import and_on_other_versions, variable_of

_MADE = [importlib.import_module(f"{__name__}.{name}").HARNESS for name in ("memory", *BROKERS, "webhook")]
_MADE.insert(-1, sqs.FANOUT)  # two services, one folder
HARNESSES: dict[str, Harness] = {harness.name: harness for harness in _MADE}
BENCHES: dict[str, Any] = {name: harness.bench for name, harness in HARNESSES.items() if harness.bench is not None}
PUBLISHINGS = and_on_other_versions(
    {name: (harness.service, opens) for harness in _MADE for name, opens in harness.publishings.items()},
    {harness.service: harness.on_other_versions for harness in _MADE if harness.service},
)


@asynccontextmanager
async def bench(name: str, url: str = "", **options: Any) -> AsyncIterator[Any]:
    """A new topic of a broker, by default of the shared one."""
    made = await BENCHES[name](url or os.environ.get(variable_of(name), ""), **options).open()
    try:
        yield made
    finally:
        await made.close()
