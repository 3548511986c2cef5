"""Connections of asyncpg that end while nobody, or a handler, uses them, whatever the driver raises."""

from __future__ import annotations

import struct
from typing import Any

import asyncpg
import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine

from retrysafe import StoreUnavailable
from tests.faults.conftest import Making
from tests.faults.helpers import driven


def goodbye() -> bytes:
    """Return PostgreSQL's message when an administrator ends a session; its hang-up comes after it."""
    fields = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
    return b"E" + struct.pack("!i", len(fields) + 4) + fields


def idle_connection(boundary: Any) -> Any:
    """The connection of the boundary's own that is lent next."""
    return boundary._settings.backend.aclient().idle[-1].connection


@pytest.mark.fault(14)
async def test_after_a_goodbye_before_the_hang_up_another_connection_is_taken(migrated: str, make: Making) -> None:
    boundary = make(driven(migrated, "asyncpg"), effects="transactional")
    async with boundary.claim("first") as claim:
        claim.result = 1
    connection = idle_connection(boundary)
    connection._protocol.data_received(goodbye())
    assert not connection.is_closed()
    async with boundary.claim("second") as claim:
        assert claim.tx is not connection
        claim.result = 2
    assert connection.is_closed()
    await boundary.aclose()


@pytest.mark.fault(14)
@pytest.mark.parametrize("failing", [False, True])
async def test_a_transaction_whose_connection_was_aborted(failing: bool, migrated: str, make: Making) -> None:
    boundary = make(driven(migrated, "asyncpg"), effects="transactional")
    with pytest.raises(ValueError if failing else StoreUnavailable, match="of the handler" if failing else None):
        async with boundary.claim("key") as claim:
            claim.tx.terminate()
            if failing:
                raise ValueError("of the handler")
            claim.result = 1
    async with boundary.claim("key") as claim:
        assert not claim.replayed
        claim.result = 2
    await boundary.aclose()


@pytest.mark.fault(14)
async def test_a_transaction_of_the_caller_on_a_connection_that_is_closed(migrated: str, make: Making) -> None:
    boundary = make(driven(migrated, "asyncpg"), effects="transactional")
    connection = await asyncpg.connect(migrated)
    connection.terminate()
    with pytest.raises(StoreUnavailable, match="tx= is a connection that is closed"):
        async with boundary.claim("key", tx=connection):
            raise AssertionError("it cannot be claimed")
    await boundary.aclose()


@pytest.mark.fault(14)
@pytest.mark.parametrize("error", [asyncpg.InterfaceError, asyncpg.InternalClientError, asyncpg.ConnectionFailureError])
async def test_sqlalchemy_lets_errors_of_asyncpg_through_when_it_connects(
    error: type[Exception], migrated: str, make: Making
) -> None:
    engine = create_async_engine(migrated.replace("postgresql", "postgresql+asyncpg", 1))
    boundary = make(engine)
    async with boundary.claim("first") as claim:
        claim.result = 1
    await engine.dispose()

    def refuse(*_: Any) -> None:
        raise error("connection is closed")

    event.listen(engine.sync_engine, "connect", refuse, insert=True)
    with pytest.raises(StoreUnavailable, match="connection is closed"):
        async with boundary.claim("second"):
            raise AssertionError("it cannot be claimed")
    event.remove(engine.sync_engine, "connect", refuse)
    async with boundary.claim("second") as claim:
        claim.result = 2
    await boundary.aclose()
    await engine.dispose()
