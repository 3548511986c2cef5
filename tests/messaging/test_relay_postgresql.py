"""PostgreSQL's peculiarities for relays: numbers without a transaction, restarted numbers, frozen snapshots."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest

from retrysafe.backends.driver import run
from retrysafe.backends.sql.outbox import TABLE
from retrysafe.messaging import Message
from retrysafe.messaging.brokers.memory.publisher import MemoryPublisher
from retrysafe.messaging.relay.bucket import Totals, _take
from retrysafe.messaging.relay.procedures import take
from retrysafe.protocol.messages import Envelope, PublishResult, Queued
from retrysafe.protocol.outbox_walk import Walk, most
from retrysafe.protocol.requests import Query, Rows, ask
from tests.faults.helpers import own_database, until
from tests.messaging.test_operating import Place
from tests.tables import each_row


@pytest.fixture
def place(postgresql: str) -> Iterator[Place]:
    """A database of its own: its tables are given triggers, and emptied with their numbers."""
    with own_database(postgresql) as url:
        yield Place("postgresql", url)


@contextmanager
def stopped_between_number_and_row(place: Place) -> Iterator[Callable[[], None]]:
    """Stop the writer of a message with a sequence when its number is drawn, before its transaction has one."""
    place.sql(
        "CREATE FUNCTION stop_here() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF new.sequence = 1 THEN PERFORM pg_advisory_xact_lock_shared(7001); END IF; RETURN new; END $$;"
        "CREATE TRIGGER stop_here BEFORE INSERT ON retrysafe_outbox FOR EACH ROW EXECUTE FUNCTION stop_here()"
    )
    try:
        with closing(place.open()) as holder:
            holder.execute("SELECT pg_advisory_lock(7001)")
            holder.commit()
            yield holder.close
    finally:
        place.sql("DROP FUNCTION stop_here() CASCADE")


@pytest.mark.fault(35)
@each_row("hold", [None, "lease"])
def test_a_number_that_was_drawn_before_its_transaction_had_one_is_not_passed_over(hold: Any, place: Place) -> None:
    """A look in between would take its transaction for one that has begun later, with higher numbers only."""
    clock, publisher = [0.0], MemoryPublisher()
    relay = place.relay(publisher, hold=hold)
    relay._low._clock = lambda: clock[0]

    def look() -> None:
        place.write(Message("a", 1, key="B"))
        clock[0] += 60.0
        while relay._round(setting, client, Totals()):
            pass

    with (
        stopped_between_number_and_row(place) as go_on,
        closing(place.open()) as early,
        relay._working(relay._open()) as (setting, client),
        ThreadPoolExecutor() as pool,
    ):
        look()  # later ones draw their number from what the sequence has in stock, which takes no transaction
        writing = pool.submit(place.outbox.add, early, "a", "drawn first", key="A", sequence=1)
        until(lambda: place.sql("SELECT 1 FROM pg_locks WHERE objid = 7001 AND NOT granted"))
        relay._low.reset()
        look()
        go_on()
        late = writing.result()
        own = early.execute("SELECT txid_current()").fetchone()[0]
        until(lambda: place.sql("SELECT txid_snapshot_xmin(txid_current_snapshot())")[0][0] == own)
        for _ in range(3):
            look()
        early.commit()
        (last,) = place.write(Message("a", 2, key="A"))
        while relay._round(setting, client, Totals()):
            pass
        look()
    assert [one.id for one in publisher.published if one.id in (late.id, last)] == [late.id, last]


def test_the_mark_goes_back_when_numbers_begin_anew(place: Place) -> None:
    """A table that was emptied with its numbers: what is written then waits for one full look, not for each."""
    low = place.relay()._low
    transactions = itertools.count(1)

    def look(oldest: int | None) -> int:
        answer = Rows([(oldest, next(transactions), next(transactions))], 1)
        run(low.steps(), lambda request: answer)
        return low.mark

    def took(number: int) -> None:
        envelope = Envelope("id", "a", None, "a.v1", "/shop", None, {}, b"", "text/plain")
        low.record([Queued(number, 1, 0, 0, 0, envelope, 0)])

    took(1000)
    assert [look(None) for _ in range(3)] == [0, 0, 1001]
    assert look(3) == 0
    took(3)
    assert [look(None) for _ in range(3)] == [0, 0, 4]


@each_row("level", ["repeatable read", "serializable"])
def test_a_bucket_that_comes_free_is_read_as_it_is_then(level: str, place: Place) -> None:
    """For any default level: a message that another relay has just published would leave again after it."""
    place.sql(f"ALTER DATABASE {place.url.rpartition('/')[2]} SET default_transaction_isolation = '{level}'")
    place.write(Message("a", 1, key="A"), Message("a", 2, key="A"))
    relay = place.relay()
    with relay._working(relay._open()) as (setting, client), client.transaction() as opened:
        (number,) = run(ask(setting.outbox.waiting()), client)

        def execute(query: Query) -> Rows:
            if f"{TABLE}_buckets" in query.sql:
                opened.execute(Query("SELECT 1", {}))  # a statement takes its snapshot before it gets the lock
                assert place.relay().run_once().published == 2
            return opened.execute(query)

        assert run(take(setting.store, setting.outbox, number, most(10, 1 << 20), 0, Walk(), 60.0), execute) == []


def test_a_server_that_ends_silent_transactions_soon_ends_none_that_publishes(place: Place) -> None:
    """Ended in the middle of each wave, it would be published again for ever, and nothing would leave."""
    name = place.url.rpartition("/")[2]
    place.sql(f"ALTER DATABASE {name} SET idle_in_transaction_session_timeout = '300ms'")

    class Slow(MemoryPublisher):
        def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
            """Until the server has ended a transaction that is silent for a shorter time than the relay's."""
            with closing(place.open()) as other:
                (pid,) = other.execute("SELECT pg_backend_pid()").fetchone()
                until(lambda: not place.sql(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}"))
            return super().publish(envelopes)

    place.write(Message("a", 1, key="A"))
    publisher = Slow()
    assert place.relay(publisher).run_once().published == 1
    assert len(publisher.published) == 1


def test_the_transaction_of_a_relay_that_is_frozen_ends_by_itself(place: Place) -> None:
    """Others have its buckets then: the server waits a little longer than the relay waits for its publisher."""
    place.write(Message("a", 1, key="A"))
    relay = place.relay(publish_timeout="20s")
    with relay._working(relay._open()) as (setting, client), client.transaction() as opened:
        (number,) = run(ask(setting.outbox.waiting()), client)
        assert len(run(_take(setting, number), opened.execute) or ()) == 1
        shown = opened.execute(Query("SHOW idle_in_transaction_session_timeout", {}))
        assert shown.rows[0][0] == "35s"
