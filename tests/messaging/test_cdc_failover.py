"""A relay that reads the log of a primary which dies: it goes on with the standby that was promoted. FAULTS 21, 22."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from retrysafe.backends.registry import connect
from retrysafe.messaging.cdc import Slot
from tests.conftest import absent, require
from tests.faults.helpers import auntil, until
from tests.faults.servers import LogicalCluster, Replica, postgresql_programs, programs_of
from tests.messaging.test_cdc import Place

pytestmark = pytest.mark.fault(21, 22)


class Pair(Place):
    """A primary with an outbox, its standby, and a slot wherever the primary is."""

    def __init__(self, primary: LogicalCluster, standby: Replica) -> None:
        ports = ",".join(f"127.0.0.1:{server.port}" for server in (primary, standby))
        super().__init__(primary, f"postgresql://retrysafe@{ports}/postgres?target_session_attrs=read-write")
        self.standby = standby
        self.slot = Slot(self.url, heartbeat="50ms")

    async def fail_over(self) -> None:
        """Kill the primary, and promote the standby, which has whatever was committed."""
        await asyncio.to_thread(until, self.standby.has_all)
        await asyncio.to_thread(self.server.kill)
        await asyncio.to_thread(self.standby.promote)

    def keep_slots_on_the_standby(self) -> None:
        """Have the standby synchronise the slot, which a person has made for that."""
        made = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', failover => true)"
        with self.server.admin() as person:
            person.execute("SELECT pg_create_physical_replication_slot('second')")
            person.execute("CREATE PUBLICATION retrysafe_outbox FOR TABLE retrysafe_outbox WITH (publish = 'insert')")
            person.execute(made, [self.slot.name])
        primary = f"host=127.0.0.1 port={self.server.port} user=retrysafe dbname=postgres application_name=second"
        self.standby.set(
            primary_conninfo=primary,
            primary_slot_name="second",
            hot_standby_feedback="on",
            sync_replication_slots="on",
        )

    def has_synchronised(self) -> bool:
        """Tell whether the standby has the slot, and its present position."""
        asked = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s AND NOT temporary"
        with self.server.admin() as primary, self.standby.admin() as standby:
            there, here = (server.execute(asked, [self.slot.name]).fetchall() for server in (primary, standby))
            return bool(here) and here == there


@contextmanager
def pair(programs: Path) -> Iterator[Pair]:
    with closing(LogicalCluster(programs)) as primary:
        with closing(connect(primary.url)) as backend:
            backend.migrate()
        with closing(primary.replica("second")) as standby:
            yield Pair(primary, standby)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that could not be read is tried again at once."""
    monkeypatch.setattr("retrysafe.messaging.cdc.following.AGAIN", 0.05)


@pytest.mark.one_of("failovers of a log", of=3)
@pytest.mark.slow
async def test_a_standby_without_the_slot_gets_one_and_the_table_has_what_the_lost_log_had() -> None:
    programs = postgresql_programs()
    if programs is None:
        absent("there is no PostgreSQL server to start")
    with pair(programs) as place:
        async with place.relaying():
            place.write(1)
            await place.until_took(1)
            place.broker.away = True
            place.write(2, 3)
            await auntil(lambda: place.told("relay_failed"))
            await place.fail_over()
            place.write(4)
            place.broker.away = False
            await place.until_took(4)
            await auntil(place.is_read)
            place.write(5)
            await place.until_took(5)
        assert place.broker.bodies() == [1, 2, 3, 4, 5]
        assert place.told("slot_created") == 2 * [{"slot": place.slot.name, "reason": "missing"}]


@pytest.mark.one_of("failovers of a log", of=3)
@pytest.mark.slow
async def test_a_slot_that_the_server_keeps_on_its_standby_is_read_on() -> None:
    """PostgreSQL 17 and later: ``failover`` and ``sync_replication_slots``."""
    require("postgresql-18")
    with pair(programs_of(os.environ["RETRYSAFE_TEST_POSTGRESQL_18"])) as place:
        place.keep_slots_on_the_standby()
        async with place.relaying():
            place.write(1)
            await place.until_took(1)
            await asyncio.to_thread(until, place.has_synchronised)
            await place.fail_over()
            await auntil(place.is_read)
            place.write(2)
            await place.until_took(2)
        assert place.broker.bodies() == [1, 2]
        assert not place.told("slot_created")


@pytest.mark.one_of("failovers of a log", of=3)
@pytest.mark.slow
async def test_a_standby_that_lagged_repeats_what_it_has_not_seen_leave() -> None:
    """A commit that never reached it may have left: the message of a transaction that is lost."""
    programs = postgresql_programs()
    if programs is None:
        absent("there is no PostgreSQL server to start")
    with pair(programs) as place:
        async with place.relaying():
            place.broker.away = True
            place.write(1)
            await asyncio.to_thread(place.standby.hear_no_more)
            place.broker.away = False
            place.write(2)
            await place.until_took(2)
            await asyncio.to_thread(place.server.kill)
            await asyncio.to_thread(place.standby.promote)
            place.write(3)
            await place.until_took(4)
            await auntil(place.is_read)
        assert sorted(place.broker.bodies()) == [1, 1, 2, 3]
        assert len({one.id for one in place.broker.took}) == 3
