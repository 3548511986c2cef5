"""One message of a named kind is lost, late, or never answered. FAULTS 2, 13, 14, 15, 17, 18.

`test_crash_points` loses every message of an operation once; here each fault stands by itself.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import retrysafe.backends.sql.drivers.deadline as deadline
from retrysafe import LeaseLost, StoreUnavailable, wait
from tests.faults.conftest import Making
from tests.faults.helpers import DEADLINE, Bank, Proxy, Told, auntil, driven, reached, records_of, until

pytestmark = pytest.mark.slow

PATIENCE = 60
COMPLETED = b"UPDATE 1\x00"
"""The server's answer to a completion."""


def _lose(proxy: Proxy, text: bytes, direction: str, lost: str, make: Making, bank: Bank, told: Told) -> None:
    """A claim or completion with one message lost is as if none had been."""
    boundary = make(proxy.url, lease="60s")
    with boundary.claim("warm"):
        pass
    claim = boundary.claim("key")
    if lost == "claim":
        proxy.cut_on(text or claim.attempt_id.encode(), direction)
    with claim:
        assert not claim.replayed
        claim.result = bank.charge(claim.key_for("bank"))
        if lost == "completion":
            proxy.cut_on(text or claim.attempt_id.encode(), direction)
    assert proxy.cut is not None
    assert proxy.cut[0] == direction
    with boundary.claim("key") as again:
        assert (again.replayed, [again.result]) == (True, list(bank.charges.values()))
    assert sum(bank.requests.values()) == 1
    assert not {"takeover", "conflict", "result_not_stored", "lease_lost", "released"} & set(told.names)
    assert told.names["completed"] == 2


@pytest.mark.fault(13)
@pytest.mark.parametrize("lost", ["claim", "completion"])
def test_a_request_that_is_lost_is_put_again(lost: str, proxy: Proxy, make: Making, bank: Bank, told: Told) -> None:
    _lose(proxy, b"", ">", lost, make, bank, told)


@pytest.mark.fault(2, 14)
def test_a_claim_whose_reply_is_lost_is_recognised(proxy: Proxy, make: Making, bank: Bank, told: Told) -> None:
    _lose(proxy, b"", "<", "claim", make, bank, told)


@pytest.mark.fault(14)
def test_a_completion_whose_reply_is_lost_is_read_back(proxy: Proxy, make: Making, bank: Bank, told: Told) -> None:
    _lose(proxy, COMPLETED, "<", "completion", make, bank, told)


@pytest.mark.fault(15, 17)
@pytest.mark.parametrize("ending", ["result", "error"])
def test_a_completion_that_is_delayed_beyond_its_lease_changes_nothing(
    ending: str, proxy: Proxy, migrated: str, make: Making, told: Told
) -> None:
    """It arrives while another attempt is at work."""
    first = make(proxy.url, lease="2s")
    second = make(migrated, name=first.name, lease="60s", concurrency=wait(PATIENCE))
    outcomes: list[Any] = []
    holding = threading.Event()

    def work() -> None:
        try:
            with first.claim("key") as claim:
                proxy.hold()  # the heartbeat's requests too
                holding.set()
                claim.result = "late"
                if ending == "error":
                    raise ZeroDivisionError
        except (LeaseLost, ZeroDivisionError) as error:
            outcomes.append(type(error))

    late = threading.Thread(target=work, daemon=True)
    late.start()
    reached(holding)
    with second.claim("key") as claim:
        assert not claim.replayed
        reached(proxy.held)
        proxy.let_go()
        late.join(PATIENCE)
        assert records_of(migrated, first.name) == [("running", 2)]
        claim.result = "second"
    assert outcomes == [LeaseLost if ending == "result" else ZeroDivisionError]
    assert told.names["lease_lost"] == 1
    with second.claim("key") as claim:
        assert (claim.replayed, claim.result) == (True, "second")
    assert records_of(migrated, first.name) == [("completed", 2)]


@pytest.mark.fault(18)
@pytest.mark.parametrize("effects", ["keyed", "transactional"])
@pytest.mark.parametrize("step", ["claim", "completion"])
def test_a_server_that_falls_silent_does_not_hang_a_claim(
    step: str, effects: str, proxy: Proxy, make: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    boundary = make(proxy.url, effects=effects, lease="5s")
    with boundary.claim("warm"):
        pass
    outcomes: list[str] = []

    def stall() -> None:
        monkeypatch.setattr(deadline, "DEADLINE", 0.3)
        proxy.stall()

    def work() -> None:
        if step == "claim":
            stall()
        try:
            with boundary.claim("key"):
                outcomes.append("claimed")
                stall()
        except StoreUnavailable:
            outcomes.append("unavailable")
        outcomes.append("ended")

    caller = threading.Thread(target=work, daemon=True)
    caller.start()
    until(lambda: outcomes[-1:] == ["ended"], PATIENCE)
    proxy.refuse()  # for the teardown, which a silent server would keep waiting
    unavailable = ["unavailable", "ended"]
    if step == "claim":
        assert outcomes == unavailable
    else:
        assert outcomes == ["claimed", *(["ended"] if effects == "keyed" else unavailable)]


@pytest.mark.fault(18)
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.parametrize("effects", ["keyed", "transactional"])
@pytest.mark.parametrize("step", ["claim", "completion"])
async def test_a_server_that_falls_silent_does_not_hang_a_task(
    step: str, effects: str, driver: str, proxy: Proxy, make: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    boundary = make(driven(proxy.url, driver), effects=effects, lease="60s")
    async with boundary.claim("warm"):
        pass
    outcomes: list[str] = []

    def stall() -> None:
        monkeypatch.setattr(deadline, "DEADLINE", 0.3)
        proxy.stall()

    async def work() -> None:
        if step == "claim":
            stall()
        try:
            async with boundary.claim("key"):
                outcomes.append("claimed")
                stall()
        except StoreUnavailable:
            outcomes.append("unavailable")

    caller = asyncio.ensure_future(work())
    try:
        await auntil(caller.done, 9)  # a cancelled statement would be waited for longer
        assert outcomes == (
            ["unavailable"] if step == "claim" else ["claimed", "unavailable"][: 1 + (effects != "keyed")]
        )
    finally:
        proxy.close()
        await asyncio.wait_for(asyncio.gather(caller, return_exceptions=True), DEADLINE)
        await asyncio.wait_for(boundary.aclose(), DEADLINE)
