"""The memory store behind its clients."""

from __future__ import annotations

from pathlib import Path

from retrysafe.backends.backend import Backend
from retrysafe.backends.memory.store import AsyncMemoryClient, MemoryClient, MemoryStore
from retrysafe.backends.spec import StoreAccess
from retrysafe.testing.harness import AsyncHarness, SyncHarness
from tests.laboratory.specification import Traits
from tests.stores.harnesses.base import RUNS, TWICE, Loss, Settings, StoreHarness


class FakeClock:
    """Time that passes only when a test says so, and by a microsecond whenever it is asked for."""

    def __init__(self) -> None:
        self.now = 1_800_000_000_000_000

    def __call__(self) -> int:
        self.now += 1
        return self.now

    def elapse(self, seconds: float) -> None:
        self.now += round(seconds * 1e6)


def memory_backend(clock: FakeClock) -> Backend:
    client = MemoryClient(clock)
    return Backend(
        MemoryStore(),
        StoreAccess("memory://", sync=lambda: client, asynchronous=lambda: AsyncMemoryClient(client)),
    )


def memory(path: Path) -> SyncHarness:
    clock = FakeClock()
    return SyncHarness(memory_backend(clock))


def memory_async(path: Path) -> AsyncHarness:
    clock = FakeClock()
    return AsyncHarness(memory_backend(clock))


HARNESS = StoreHarness(
    executors={
        "memory": (None, memory),
        "memory async": (None, memory_async),
    },
    drivers=("memory", "memory async"),
    traits={
        "memory": Traits(),
    },
    settings={
        "memory": Settings("nothing", "nothing"),
    },
    losses={
        "memory": (
            Loss("the process ends", "everything", RUNS, TWICE),
            Loss(
                "a second process",
                "nothing: each has records of its own",
                "runs in each, with the same derived keys",
                TWICE,
            ),
        ),
    },
)
