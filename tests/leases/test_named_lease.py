"""One holder at a time, with a token that never falls: released, killed, stopped, with a clock that jumps."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Boundary, ConfigurationError, InProgress, InvalidKey, LeaseLost, current, wait
from retrysafe.protocol.procedures import sweep
from retrysafe.testing import Clock
from tests.faults.redis_servers import WithItsClock
from tests.leases.holders import STORES, astopped, boundary_on, closing, elsewhere, jobs, stopped
from tests.processes import Child
from tests.tables import each_row

LONG = 10 * 365 * 86400


def _token(boundary: Boundary, name: str = "nightly", **options: Any) -> int:
    def take() -> int:
        with boundary.lease(name, **options) as lease:
            lease.ensure_held()
            return lease.token

    taken: int = elsewhere(take)
    return taken


@each_row("store", STORES)
def test_a_lease_has_one_holder_whose_token_is_the_highest(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with boundary_on(request, store, tmp_path) as boundary, Clock(boundary) as clock:
        with boundary.lease("nightly") as first:
            assert first.name == "nightly"
            for taken in (elsewhere, lambda take: take()):  # also by the one that has it, which would wait for itself
                with pytest.raises(InProgress, match="nightly") as busy:
                    taken(lambda: boundary.lease("nightly").__enter__())
                assert busy.value.retry_after > 0
            tokens = [first.token]
            assert _token(boundary, "weekly") > 0
            assert _token(boundary, scope="another tenant") > 0
        tokens.append(_token(boundary))
        with pytest.raises(ZeroDivisionError), boundary.lease("nightly") as failing:
            tokens.append(failing.token)
            raise ZeroDivisionError
        with stopped(boundary, "nightly") as zombie:
            tokens.append(zombie.token)
            tokens.append(_token(boundary))
        clock.advance("4000d")
        backend = boundary.entrypoint.backend
        backend.run(sweep(backend.store, 1000))
        tokens.append(_token(boundary))
        assert tokens == sorted(set(tokens))


@each_row("store", ["memory", "sqlite", "redis"])
async def test_async_code_holds_a_lease_and_is_stopped_when_it_is_lost(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with boundary_on(request, store, tmp_path) as boundary:
        async with boundary.lease("nightly") as lease:
            first = lease.token
            with pytest.raises(InProgress):
                async with boundary.lease("nightly"):
                    raise AssertionError
        async with astopped(boundary, "nightly") as zombie, boundary.lease("nightly") as lease:
            assert first < zombie.token < lease.token
        with pytest.raises(LeaseLost):
            async with boundary.lease("nightly") as lease:
                lease._claim._held.lose()  # type: ignore[union-attr] - as the heartbeat does when a renewal is refused
                await asyncio.Event().wait()
        await boundary.aclose()


def test_a_boundary_that_waits_lets_the_next_holder_wait() -> None:
    waiting, tokens = threading.Event(), []

    def observe(event: Any) -> None:
        if event.name == "waiting":
            waiting.set()

    boundary = jobs(concurrency=wait("20s"), observers=[observe])

    def second() -> None:
        with boundary.lease("nightly") as lease:
            tokens.append(lease.token)

    thread = threading.Thread(target=second)
    with closing(boundary):
        with boundary.lease("nightly") as lease:
            tokens.append(lease.token)
            thread.start()
            assert waiting.wait(10)
            assert len(tokens) == 1
        thread.join(20)
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 2


def test_an_operation_is_itself_inside_and_around_a_lease(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'jobs.db'}"
    boundary, transactional = jobs(store), jobs(store, effects="transactional")
    with closing(boundary, transactional):
        with boundary.claim("order") as claim, boundary.lease("nightly"):
            assert current() is claim, "derived keys are the order's, not those of the lease"
            claim.step("charge", lambda: 1)
        with boundary.lease("nightly"):
            with pytest.raises(ConfigurationError, match="outside"):
                current()
            with boundary.claim("order") as claim, transactional.claim("row"):
                assert claim.replayed
        with transactional.lease("nightly") as lease:
            lease.ensure_held()
        with transactional.claim("row 2"), pytest.raises(ConfigurationError, match="before or after"):
            boundary.lease("nightly").__enter__()


def test_a_lease_is_refused_where_it_would_not_be_held() -> None:
    boundary, closed = jobs(), jobs()
    closed.close()
    lease = boundary.lease("nightly")
    with closing(boundary):
        cases: list[tuple[Callable[[], object], str]] = [
            (lambda: lease.token, "inside its block"),
            (lease.ensure_held, "inside its block"),
            (lambda: lease.set(None, "key", "value"), "inside its block"),
            (lambda: boundary.lease("nightly", lease="soon"), "not a duration"),
            (lambda: closed.lease("nightly"), "closed"),
        ]
        for call, said in cases:
            with pytest.raises(ConfigurationError, match=said):
                call()
        for name in ("", "a\nb"):
            with pytest.raises(InvalidKey):
                boundary.lease(name)
        with lease:
            lease.ensure_held()
        for call, said in cases[:3]:
            with pytest.raises(ConfigurationError, match=said):
                call()
        with pytest.raises(ConfigurationError, match="only once"):
            lease.__enter__()


@pytest.mark.slow
def test_a_lease_is_renewed_while_its_block_runs() -> None:
    renewed = threading.Event()

    def observe(event: Any) -> None:
        if event.name == "store_request" and event.fields["step"] == "renew":
            renewed.set()

    boundary = jobs(observers=[observe])
    with closing(boundary), boundary.lease("nightly", lease="300ms") as lease:
        assert renewed.wait(10)
        lease.ensure_held()


HOLDER = """
import sys
from retrysafe import Boundary
with Boundary(sys.argv[2], store=sys.argv[1]).lease("nightly") as lease:
    print(lease.token, flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_a_lease_of_a_killed_holder_is_taken_over_with_a_higher_token(tmp_path: Path) -> None:
    boundary = jobs(f"sqlite:///{tmp_path / 'jobs.db'}")
    with closing(boundary), Child(sys.executable, "-c", HOLDER, boundary.address, boundary.name) as holder:
        token = int(holder.hears())
        holder.kill()
        with pytest.raises(InProgress):
            _token(boundary)
        with Clock(boundary) as clock:
            clock.lapse()
        assert _token(boundary) > token


@pytest.mark.slow
def test_a_token_from_a_clock_that_was_ahead_is_not_forgotten() -> None:
    """Were it remembered for the boundary's memory alone, the last holder would be refused by every resource."""
    server = WithItsClock()
    boundary, tokens = jobs(server.url, window="1h"), list[int]()
    try:
        for seconds in (0, LONG, 0, 86400):
            server.set_clock(seconds)
            tokens.append(_token(boundary))
    finally:
        boundary.close()
        server.close()
    assert tokens == sorted(set(tokens))
