"""The published suite catches stores that break a promise, and runs in a package of somebody else's."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from retrysafe import Boundary, testing
from retrysafe.backends.backend import Backend
from retrysafe.backends.memory.store import AsyncMemoryClient, MemoryClient, MemoryStore
from retrysafe.backends.spec import StoreAccess
from retrysafe.protocol.records import ClaimRequest, Clocks, EffectiveState, Ownership, Record, StoredResult
from retrysafe.protocol.requests import Ask
from retrysafe.protocol.store import OperableStore
from retrysafe.protocol.transitions import Transition
from retrysafe.testing import AsyncHarness, StoreSuite, SyncHarness, assert_once, differential
from retrysafe.testing.conformance import CASES, Bench
from tests.testing.test_plugin import Runs

__all__ = ["runs"]
from tests.tables import each_row
from tests.testing.test_plugin import runs


def harness_of(store: OperableStore) -> SyncHarness:
    client = MemoryClient()
    return SyncHarness(Backend(store, StoreAccess("broken", sync=lambda: client)))


@pytest.mark.one_of("suites of a user's store")
class TestSync(StoreSuite):
    """The suite as a class, over sync code."""

    @pytest.fixture
    def harness(self) -> SyncHarness:
        return harness_of(MemoryStore())


@pytest.mark.one_of("suites of a user's store")
class TestAsync(StoreSuite):
    """The same over async code."""

    @pytest.fixture
    def harness(self) -> Any:
        client = MemoryClient()
        make = lambda: AsyncMemoryClient(client)  # noqa: E731
        made = AsyncHarness(Backend(MemoryStore(), StoreAccess("other", asynchronous=make)))
        yield made
        made.close()


class Trusting(MemoryStore):
    """Lets anybody settle."""

    def settle(self, ownership: Ownership, event: Transition, result: StoredResult | None) -> Ask[bool]:
        def step(records: dict[bytes, Record], now: int) -> bool:
            record = records.get(ownership.key)
            if record is None:
                return False
            mine = ownership._replace(attempt=record.attempt, token=record.token)
            return bool(MemoryStore.settle(self, mine, event, result).request(records, now))

        return Ask(step, bool)


class Forgetful(MemoryStore):
    """Deletes a record that is released."""

    def settle(self, ownership: Ownership, event: Transition, result: StoredResult | None) -> Ask[bool]:
        asked = super().settle(ownership, event, result)

        def step(records: dict[bytes, Record], now: int) -> bool:
            done: bool = asked.request(records, now)
            if done and event is Transition.RELEASE:
                del records[ownership.key]
            return done

        return Ask(step, bool)


class Hasty(MemoryStore):
    """Gives the lease half its length."""

    def take(self, want: ClaimRequest, seen: Record) -> Ask[Record | None]:
        clocks = Clocks(want.clocks.lease // 2, want.clocks.window, want.clocks.memory)
        return super().take(want._replace(clocks=clocks), seen)


class Lying(MemoryStore):
    """Does what it should, and says that it did not."""

    def settle(self, ownership: Ownership, event: Transition, result: StoredResult | None) -> Ask[bool]:
        return Ask(super().settle(ownership, event, result).request, lambda done: not done)


@each_row(
    ("broken", "told"),
    [
        (Trusting, "the store answers True, the table False"),
        (Forgetful, "instead of"),
        (Hasty, "the store answers"),
        (Lying, "the store answers False, the table True"),
    ],
)
def test_a_broken_store_fails_the_differential_test(broken: Callable[[], OperableStore], told: str) -> None:
    harness = harness_of(broken())
    with pytest.raises(AssertionError, match=told):
        for standing in EffectiveState:
            differential.check(harness, standing)


@each_row("broken", [Trusting, Forgetful])
def test_a_broken_store_fails_the_conformance_suite(broken: Callable[[], OperableStore]) -> None:
    failed = []
    for name, case in CASES.items():
        try:
            case(Bench(harness_of(broken()), os.urandom(32)))
        except AssertionError:
            failed.append(name)
    assert failed


def test_a_backend_of_ones_own_is_a_store() -> None:
    client = MemoryClient()
    backend = Backend(MemoryStore(), StoreAccess("mine://", sync=lambda: client))
    boundary = Boundary("mine", store=backend, observers=())
    runs: list[str] = []

    @boundary.once(key="order", operation="charge")
    def charge(order: str) -> None:
        runs.append(order)

    assert_once(lambda: charge("A-1"), effects=runs)
    assert boundary.entrypoint.address == "mine://"
    with testing.Clock(boundary) as clock:
        assert clock.advance("25h") == 1
    charge("A-1")
    assert runs == ["A-1", "A-1"]
    boundary.close()


PACKAGE = """
import pytest
from retrysafe.backends.backend import Backend
from retrysafe.backends.memory.store import MemoryClient
from retrysafe.backends.memory.store import MemoryStore
from retrysafe.backends.spec import StoreAccess
from retrysafe.testing import StoreSuite, SyncHarness

class Forgetful(MemoryStore):
    def read(self, key):
        return super().read(b"another")

class TestForgetful(StoreSuite):
    @pytest.fixture
    def harness(self):
        client = MemoryClient()
        return SyncHarness(Backend(Forgetful(), StoreAccess("", sync=lambda: client)))

class TestWhole(StoreSuite):
    @pytest.fixture
    def harness(self):
        client = MemoryClient()
        return SyncHarness(Backend(MemoryStore(), StoreAccess("", sync=lambda: client)))
"""


@pytest.mark.slow
def test_a_package_of_somebody_else_runs_every_case(runs: Runs) -> None:
    whole = runs(PACKAGE, "-k", "TestWhole").parseoutcomes()
    assert whole == {"passed": len(CASES) + len(EffectiveState) + 2, "deselected": len(CASES) + len(EffectiveState) + 2}
    broken = runs(PACKAGE, "-k", "TestForgetful").parseoutcomes()
    assert broken["failed"] > len(CASES) / 2


@pytest.mark.slow
def test_random_histories_that_cannot_run_are_told(runs: Runs) -> None:
    runs.pytester.mkpydir("hypothesis").joinpath("__init__.py").write_text("raise ModuleNotFoundError('not here')\n")
    done = runs(PACKAGE, "-rs", "-k", "TestWhole and random")
    done.assert_outcomes(skipped=1, deselected=2 * (len(CASES) + len(EffectiveState) + 2) - 1)
    done.stdout.fnmatch_lines(["*random histories need it: pip install 'retrysafe?testing?'*"])
