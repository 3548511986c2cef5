"""`Clock`: time that passes for boundaries in every store."""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from retrysafe import Boundary, ConfigurationError, LeaseLost, Quota, QuotaExceeded, layered
from retrysafe.testing import Clock
from tests.conftest import require
from tests.faults.helpers import unique
from tests.stores.harnesses.dynamodb import dynamodb_url
from tests.stores.harnesses.redis import redis_url
from tests.stores.harnesses.sql import mysql_url, postgresql_url
from tests.tables import each_row


def done(boundary: Boundary, key: str = "K") -> str:
    """The answer of a guarded block that counts its runs."""
    with boundary.claim(key) as claim:
        if not claim.replayed:
            claim.result = f"attempt {claim.attempt_id}"
        answer: str = claim.result
        return answer


async def adone(boundary: Boundary, key: str = "K") -> str:
    async with boundary.claim(key) as claim:
        if not claim.replayed:
            claim.result = f"attempt {claim.attempt_id}"
        answer: str = claim.result
        return answer


def test_a_window_ends(url: str) -> None:
    boundary, other = (Boundary(unique(), store=url, window="24h", observers=()) for _ in range(2))
    with Clock(boundary) as clock:
        first, untouched = done(boundary), done(other)
        assert clock.advance("23h") == 1
        assert done(boundary) == first
        clock.advance("2h")
        assert done(boundary) != first
        assert done(other) == untouched
    boundary.close()
    other.close()


def test_a_lease_lapses_under_its_holder(url: str) -> None:
    boundary = Boundary(unique(), store=url, lease="10m", observers=())
    with Clock(boundary) as clock:
        with pytest.raises(LeaseLost), boundary.claim("K") as frozen:
            assert clock.lapse() == 1
            with ThreadPoolExecutor(1) as thread:
                second = thread.submit(done, boundary).result()
        assert second != f"attempt {frozen.attempt_id}"
        assert done(boundary) == second
    boundary.close()


def test_a_whole_store_grows_older(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    boundaries = [Boundary(name, store=url, observers=()) for name in ("one", "two")]
    first = [done(boundary) for boundary in boundaries]
    with Clock(url) as clock:
        assert clock.advance("25h") == 2
    assert [done(boundary) for boundary in boundaries] != first
    for boundary in boundaries:
        boundary.close()


def test_memory_has_time_of_its_own_too() -> None:
    boundary = Boundary("memory", store="memory://", window="1h", observers=())
    first = done(boundary)
    clock = Clock(boundary)
    clock.advance("59m")
    assert done(boundary) == first
    clock.advance("2m")
    assert done(boundary) != first


def test_the_memory_of_no_boundary_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="give Clock\\(\\) the boundary"):
        Clock("memory://")


@pytest.mark.parametrize("driver", ["postgresql+asyncpg", "mysql+asyncmy", "sqlite", "redis", "dynamodb"])
def test_async_code_has_the_same_clock(driver: str, tmp_path: Path) -> None:
    kind = driver.partition("+")[0]
    if kind == "sqlite":
        url = f"sqlite:///{tmp_path / 'store.db'}"
    else:
        require(kind)
        url = {
            "postgresql": postgresql_url,
            "mysql": mysql_url,
            "redis": redis_url,
            "dynamodb": dynamodb_url,
        }[kind]().replace(f"{kind}:", f"{driver}:")

    async def course() -> None:
        boundary = Boundary(unique(), store=url, lease="10m", observers=())
        if kind not in ("redis", "sqlite"):
            await boundary._settings.backend.amigrate()
        async with Clock(boundary) as clock:
            first = await adone(boundary)
            assert await clock.aadvance("25h") == 1
            second = await adone(boundary)
            assert second != first
            with pytest.raises(LeaseLost):
                async with boundary.claim("other"):
                    assert await clock.alapse() == 1
                    elsewhere = contextvars.Context()
                    assert await asyncio.create_task(adone(boundary, "other"), context=elsewhere)
            assert await adone(boundary) == second
        await boundary.aclose()

    asyncio.run(course())


@each_row("driver", ["postgresql+asyncpg", "mysql+asyncmy"])
def test_sync_code_lets_time_pass_for_a_driver_of_async_code_alone(driver: str) -> None:
    kind, _, _ = driver.partition("+")
    require(kind)
    url = {"postgresql": postgresql_url, "mysql": mysql_url}[kind]()
    store = driver + url[url.index(":") :]

    async def main() -> None:
        boundary = Boundary(unique(), store=store, window="24h", observers=())
        first = await adone(boundary)
        with Clock(boundary) as clock:
            assert await adone(boundary) == first
            assert clock.advance("25h") == 1
            assert await adone(boundary) != first
        await boundary.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mysql", "redis"])
def test_quotas_see_time_pass(kind: str, tmp_path: Path) -> None:
    from tests.testing.conftest import url_of

    boundary = Boundary(unique(), store=url_of(kind, tmp_path), quota=Quota(rate="1/1h"), observers=())
    with Clock(boundary) as clock:
        done(boundary, "one")
        with pytest.raises(QuotaExceeded):
            done(boundary, "two")
        clock.advance("61m")
        assert done(boundary, "two")
    boundary.close()


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_cache_in_front_does_not_answer_from_before(colour: str, tmp_path: Path) -> None:
    require("redis")
    name = unique()
    store = layered(redis_url(), f"sqlite:///{tmp_path / 'truth.db'}", name=name, at_most="12h")
    boundary = Boundary(name, store=store, observers=())

    async def passes(clock: Clock) -> None:
        await clock.aadvance("25h")

    first = done(boundary)
    assert done(boundary) == done(boundary) == first  # by now from the cache
    clock = Clock(boundary)
    clock.advance("25h") if colour == "sync" else asyncio.run(passes(clock))
    clock.close()
    assert done(boundary) != first
    boundary.close()


def test_a_clock_closes_what_it_opened_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    boundary = Boundary("mine", store=url, observers=())
    done(boundary)
    backend = boundary._settings.backend
    with Clock(boundary):
        assert backend.users == 2
    assert backend.users == 1
    boundary.close()
    with Clock(url) as clock:
        clock.advance("1h")
        alone = clock._places[0].backend
        assert alone.client._made
    assert not alone.client._made


def test_memory_lets_go_of_what_is_over() -> None:
    boundary = Boundary("memory", store="memory://", window="1h", observers=())
    records = boundary.entrypoint.backend.client().records  # type: ignore[attr-defined]
    with Clock(boundary) as clock, boundary.claim("held"):
        for number in range(998):
            with boundary.claim(str(number)) as claim:
                claim.step("one", str, number)
                claim.result = number
        clock.advance("2h")
        done(boundary, "of now")
        assert (len(records), len(records.steps)) == (1000, 998)
        done(boundary, "one more")
        assert (len(records), len(records.steps)) == (3, 0)
    boundary.close()
