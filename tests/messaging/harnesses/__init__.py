"""Every broker under the suites of publishers and consumers: a module for each, named like its folder."""

from __future__ import annotations

import importlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from retrysafe.messaging.brokers.registry import BROKERS
from tests.messaging.harnesses.base import Harness
from tests.versions import and_on_other_versions, variable_of

_MODULES = {name: importlib.import_module(f"{__name__}.{name}") for name in ("memory", *BROKERS, "webhook")}
BY_FOLDER = {
    name: [one for one in vars(module).values() if isinstance(one, Harness)] for name, module in _MODULES.items()
}
HARNESSES = {harness.name: harness for made in BY_FOLDER.values() for harness in made}
BENCHES: dict[str, Any] = {name: harness.bench for name, harness in HARNESSES.items() if harness.bench is not None}
PUBLISHINGS = and_on_other_versions(
    {name: (harness.service, opens) for harness in HARNESSES.values() for name, opens in harness.publishings.items()},
    {harness.service: harness.on_other_versions for harness in HARNESSES.values() if harness.service},
)


@asynccontextmanager
async def bench(name: str, url: str = "", **options: Any) -> AsyncIterator[Any]:
    """A new topic of a broker, by default of the shared one."""
    made = await BENCHES[name](url or os.environ.get(variable_of(name), ""), **options).open()
    try:
        yield made
    finally:
        await made.close()
