"""The faults of relays: they are killed, told to stop, and see late commits; nothing is lost or out of order."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from retrysafe import ConfigurationError, StoreUnavailable
from retrysafe.backends.migrations.alembic import TABLES
from retrysafe.messaging import Message, Outbox, Relay, Relayed
from retrysafe.messaging.brokers.memory.publisher import MemoryPublisher
from retrysafe.messaging.relay.bucket import KILLS, Totals
from retrysafe.protocol.events import Event
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus
from tests.faults.helpers import environment, until
from tests.messaging.children import AsyncPoisoned, Ledger, Poisoned, taken
from tests.messaging.test_operating import Place
from tests.messaging.test_operating import place as place
from tests.processes import Program, ended_by
from tests.tables import each_row

ACKED = PublishResult(PublishStatus.ACKED)


class Spy(MemoryPublisher):
    """Looks into the database while it publishes, and may fail then."""

    def __init__(self, place: Place, error: BaseException | None = None) -> None:
        super().__init__()
        self.place, self.error = place, error
        self.there: list[int] = []

    def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        self.there.append(self.place.sql("SELECT count(*) FROM retrysafe_outbox")[0][0])
        super().publish(envelopes)
        if self.error is not None:
            raise self.error
        return [ACKED] * len(envelopes)


@pytest.mark.fault(8)
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("hold", [None, "lease"])
def test_a_message_is_marked_after_it_was_published(hold: Any, keep: bool, place: Place) -> None:
    place.write(Message("a", 1, key="A"))
    spy = Spy(place)
    assert place.relay(spy, hold=hold, keep_published=keep).run_once().published == 1
    assert spy.there == [1], "others still see it while it is published"
    assert place.sql("SELECT count(*) FROM retrysafe_outbox")[0][0] == 0
    assert place.sql("SELECT count(*) FROM retrysafe_outbox_published")[0][0] == keep


class Waves(MemoryPublisher):
    """Keeps the groups in which it was given messages."""

    def __init__(self) -> None:
        super().__init__()
        self.waves: list[list[str]] = []

    def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        self.waves.append([one.id for one in envelopes])
        return super().publish(envelopes)


class Died(BaseException):
    """The end of a relay."""


@pytest.mark.fault(7)
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("hold", [None, "lease"])
def test_published_and_not_marked_it_goes_out_again_under_the_same_id(hold: Any, keep: bool, place: Place) -> None:
    (id_,) = place.write(Message("a", 1, key="A"))
    first = Spy(place, Died())
    with pytest.raises(Died):
        place.relay(first, hold=hold, keep_published=keep).run_once()
    second = MemoryPublisher()
    until(lambda: place.relay(second, hold=hold, keep_published=keep).run_once().published)
    assert [one.id for one in first.published + second.published] == [id_, id_]
    assert first.published == second.published


@pytest.mark.fault(35)
def test_a_row_that_commits_late_is_not_passed_over(place: Place) -> None:
    """Its number was drawn first, and is lower than those that have left."""
    if place.kind == "sqlite":
        with closing(place.open()) as early:
            early.execute("BEGIN IMMEDIATE")
            place.outbox.add(early, "a", "first", key="A")
            early.commit()
        assert place.relay().run_once().published == 1  # writers are serial: no number is drawn before another commits
        return
    publisher = MemoryPublisher()
    with closing(place.open()) as early:
        if place.kind == "mysql":
            early.begin()
        late = place.outbox.add(early, "a", "drawn first", key="A")
        (other,) = place.write(Message("b", "drawn second", key="B"))
        assert place.relay(publisher).run_once().published == 1
        early.commit()
    assert place.relay(publisher).run_once().published == 1
    assert [one.id for one in publisher.published] == [other, late.id]


@pytest.mark.fault(35)
@each_row("hold", [None, "lease"])
def test_a_row_that_commits_late_is_not_overtaken_by_the_next_one_of_its_key(hold: Any, place: Place) -> None:
    """A writer that waits for the lock of a key adds the next message the moment the first one is committed."""
    if place.kind == "sqlite":
        return  # no number is drawn before another one commits
    clock, publisher = [0.0], MemoryPublisher()
    relay = place.relay(publisher, hold=hold)
    relay._low._clock = lambda: clock[0]
    with closing(place.open()) as early, relay._working(relay._open()) as (setting, client):
        if place.kind == "mysql":
            early.begin()
        late = place.outbox.add(early, "a", "drawn first", key="A")
        for _ in range(4):
            place.write(Message("a", 1, key="B"), Message("a", 2, key="C"))
            clock[0] += 60.0
            while relay._round(setting, client, Totals()):
                pass
        with closing(early.cursor()) as cursor:
            cursor.execute(f"SELECT id FROM retrysafe_outbox WHERE message_id = '{late.id}'")
            number = cursor.fetchone()[0]
        assert relay._low.mark <= number
        early.commit()
        (last,) = place.write(Message("a", 3, key="A"))

        def has_moved() -> bool:
            while relay._round(setting, client, Totals()):
                pass
            clock[0] += 60.0
            return relay._low.mark > number or place.kind == "mysql"

        until(has_moved)
    assert [one.id for one in publisher.published if one.id in (late.id, last)] == [late.id, last]


@each_row("hold", [None, "lease"])
def test_a_relay_whose_database_failed_reads_from_the_beginning(hold: Any, place: Place) -> None:
    """A server that takes the place of another may give out numbers once more that the mark is above of."""
    relay = place.relay(hold=hold)
    relay._low.mark = relay._low._highest = 1000
    relay._fail(StoreUnavailable("gone"))
    assert (relay._low.mark, relay._low._highest) == (0, 0)


@each_row("hold", [None, "lease"])
def test_waiting_messages_are_never_below_the_mark(hold: Any, place: Place) -> None:
    """It is seen by every full look; when its time has come, it leaves without waiting for the next one."""
    clock, publisher = [0.0], MemoryPublisher()
    relay = place.relay(publisher, hold=hold)
    relay._low._clock = lambda: clock[0]
    with place.operator() as operator, relay._working(relay._open()) as (setting, client):
        operator.pause("later")
        (paused,) = place.write(Message("later", 1, key="A"))
        for _ in range(6):
            place.write(Message("a", 1, key="B"))
            clock[0] += 60.0
            assert relay._round(setting, client, Totals())
        operator.resume("later")
        assert relay._round(setting, client, Totals())
    assert publisher.published[-1].id == paused


# ---------------------------------------------------------------- killed


class Relays:
    """Relay processes on a place, killed and started again."""

    def __init__(self, place: Place, ledger: Path, hold: str, options: dict[str, bool], seed: int) -> None:
        self._arguments = [place.url, str(ledger), hold, json.dumps(options)]
        self._chance = random.Random(seed)
        self._running: list[subprocess.Popen[bytes]] = []
        self.killed = 0

    def tend(self, count: int, *, suicidal: bool) -> None:
        """Bury those who died, and let there be so many again."""
        for process in [one for one in self._running if one.poll() is not None]:
            assert process.returncode == -signal.SIGKILL, process.returncode
            self.killed += 1
            self._running.remove(process)
        while len(self._running) < count:
            mode = "suicidal" if suicidal else "steady"
            command = [sys.executable, "-m", "tests.messaging.children", *self._arguments]
            seed = str(self._chance.randrange(1 << 30))
            self._running.append(subprocess.Popen([*command, seed, mode], env=environment()))

    def kill_one(self) -> None:
        """SIGKILL whoever comes first."""
        self._running[0].send_signal(signal.SIGKILL)

    def end(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()


def forked(work: Callable[[], object]) -> int:
    """Do it in another process; 0 when it comes to its end, -9 when it is killed."""
    if not (child := os.fork()):
        try:
            work()
        except BaseException:  # noqa: BLE001 - nothing of the child may go on as a test
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def first_arrivals(found: list[tuple[str, str, str, int]]) -> dict[tuple[str, str], list[int]]:
    """The sequences of each key in the order in which they arrived for the first time."""
    order: dict[tuple[str, str], list[int]] = {}
    for _, topic, key, sequence in found:
        of_key = order.setdefault((topic, key), [])
        if sequence not in of_key:
            of_key.append(sequence)
    return order


@pytest.fixture
def seed() -> int:
    return int(os.environ.get("RETRYSAFE_SEED", "0")) or random.randrange(1 << 30)


@pytest.mark.slow
@pytest.mark.fault(7, 8)
@pytest.mark.parametrize(
    ("place", "hold", "options"),
    [
        ("sqlite", "lease", {"keep": True, "async": False}),
        ("sqlite", "lease", {"keep": False, "async": True}),
        ("postgresql", "transaction", {"keep": False, "async": False}),
        ("postgresql", "lease", {"keep": True, "async": False}),
        ("postgresql", "transaction", {"keep": True, "async": True}),
        ("postgresql", "lease", {"keep": False, "async": True}),
        ("mysql", "transaction", {"keep": True, "async": False}),
        ("mysql", "lease", {"keep": False, "async": True}),
    ],
    indirect=["place"],
    ids=lambda value: (
        value if isinstance(value, str) else "-".join(name for name, on in value.items() if on) or "plain"
    ),
)
def test_relays_are_killed_in_loops(
    hold: str, options: dict[str, bool], place: Place, tmp_path: Path, seed: int
) -> None:
    """Nothing is lost, and of each key everything arrives in order, whatever arrives twice."""
    keys, each = 8, 12
    sequences = {str(key): 0 for key in range(keys)}
    chance = random.Random(seed)
    messages = []
    for _ in range(keys * each):
        key = chance.choice([key for key, count in sequences.items() if count < each])
        sequences[key] += 1
        messages.append(Message("orders", key, key=key, sequence=sequences[key]))
    ids: list[str] = []
    ledger = tmp_path / "ledger.db"
    Ledger(str(ledger))
    relays = Relays(place, ledger, hold, options, seed)

    def half_has_arrived(of: list[str]) -> bool:
        relays.tend(2, suicidal=relays.killed < 3)
        return len({one[0] for one in taken(str(ledger))}) >= len(of) // 2

    def nothing_left() -> bool:
        relays.tend(2, suicidal=False)
        return bool(place.sql("SELECT count(*) FROM retrysafe_outbox")[0][0] == 0)

    try:
        for start in range(0, len(messages), 24):
            ids += place.write(*messages[start : start + 24])
            relays.tend(2, suicidal=True)
            until(partial(half_has_arrived, ids), 60)
        if not relays.killed:  # by chance none has died
            relays.kill_one()
            until(lambda: relays.tend(2, suicidal=False) or relays.killed)
        until(nothing_left, 90)
    finally:
        relays.end()
    found = taken(str(ledger))
    assert {one[0] for one in found} == set(ids)
    assert first_arrivals(found) == {("orders", key): list(range(1, each + 1)) for key in sequences}
    assert place.sql("SELECT count(*) FROM retrysafe_outbox_dead")[0][0] == 0
    kept = place.sql("SELECT count(*), count(DISTINCT message_id) FROM retrysafe_outbox_published")[0]
    assert tuple(kept) == ((len(ids), len(ids)) if options["keep"] else (0, 0))
    assert relays.killed


@pytest.mark.slow
@pytest.mark.fault(7, 53)
@pytest.mark.parametrize("colour", [Poisoned, AsyncPoisoned])
def test_a_message_that_kills_its_relay_is_found_however_buckets_are_held(
    colour: type[Poisoned], place: Place, tmp_path: Path
) -> None:
    """The first process dies of its third batch, which it did not note: those that follow begin with that batch."""
    ids = place.write(*(Message("orders", n, key=str(n)) for n in range(12)))
    place.sql("UPDATE retrysafe_outbox SET bucket = 7")
    publisher = colour(str(tmp_path / "ledger.db"))
    publisher.poison = poison = ids[9]
    codes: list[int] = []

    def relay() -> None:
        made = place.relay(publisher, batch=4, lease="60s")
        asyncio.run(made.arun_once()) if colour is AsyncPoisoned else made.run_once()

    def ended() -> bool:
        codes.append(forked(relay))
        if place.kind == "sqlite":  # buckets are leased there
            place.sql("UPDATE retrysafe_records SET lease_until = 1 WHERE state = 'running'")
        return codes[-1] == 0 and bool(place.sql("SELECT count(*) FROM retrysafe_outbox")[0][0] == 0)

    until(ended, 60)
    found = [one[0] for one in taken(publisher.path)]
    assert (sorted(found), len(found)) == (sorted({*ids} - {poison}), len(ids) - 1)
    dead = place.sql("SELECT message_id, started, finished, error FROM retrysafe_outbox_dead")
    assert [tuple(row) for row in dead] == [(poison, 3, 1, KILLS)]
    assert codes.count(-signal.SIGKILL) == (3 if place.kind == "sqlite" else 4)
    assert list(place.sql("SELECT id FROM retrysafe_outbox_attempts")) == []


def test_an_attempt_that_its_relay_outlives_is_no_suspicion(place: Place) -> None:
    """The store failed while the messages were being published: nobody died of them."""
    if place.kind == "sqlite":
        pytest.skip("buckets are leased there")
    ids = place.write(*(Message("orders", n, key=str(n)) for n in range(4)))
    place.sql("UPDATE retrysafe_outbox SET bucket = 7")
    publisher = Waves()
    relay = place.relay(publisher)
    outbox = relay._setting.outbox
    leave = outbox.leave

    def failing(*arguments: Any, **options: Any) -> Any:
        rows = place.sql("SELECT started, finished FROM retrysafe_outbox_attempts")
        assert [tuple(row) for row in rows] == [(1, 0)] * 4
        outbox.leave = leave  # type: ignore[method-assign]
        raise StoreUnavailable("gone")

    outbox.leave = failing  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        relay.run_once()
    assert [tuple(row) for row in place.sql("SELECT started, finished FROM retrysafe_outbox_attempts")] == [(0, 0)] * 4
    assert relay.run_once().published == 4
    assert publisher.waves == [ids, ids]
    assert list(place.sql("SELECT id FROM retrysafe_outbox_attempts")) == []


@pytest.mark.parametrize("hold", [None, "lease"])
def test_interrupting_a_relay_makes_no_dead_letter(hold: Any, place: Place) -> None:
    """Three times Ctrl-C while a broker did not answer, and the message counted as one that kills relays."""
    place.write(Message("orders", 1))
    for _ in range(4):
        with pytest.raises(KeyboardInterrupt):
            place.relay(Spy(place, KeyboardInterrupt()), hold=hold).run_once()
    assert place.relay(hold=hold).run_once() == Relayed(1, 0, 0)


class Hanging:
    """Does not answer."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def publish(self, _envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize("hold", [None, "lease"])
async def test_cancelling_a_relay_makes_no_dead_letter(hold: Any, place: Place) -> None:
    place.write(Message("orders", 1))
    for _ in range(4):
        publisher = Hanging()
        running = asyncio.create_task(place.relay(publisher, hold=hold).arun_once())
        await publisher.asked.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert await asyncio.to_thread(place.relay(hold=hold).run_once) == Relayed(1, 0, 0)


def test_a_relay_that_has_outlived_a_batch_of_a_bucket_notes_none_any_more(place: Place) -> None:
    if place.kind == "sqlite":
        pytest.skip("buckets are leased there")
    relay = place.relay(batch=2)
    outbox, noted = relay._setting.outbox, list[int]()
    begun = outbox.note_begin
    outbox.note_begin = lambda queue: noted.append(len(queue)) or begun(queue)  # type: ignore[method-assign,func-returns-value]
    for _ in range(2):
        place.write(*(Message("orders", n, key=str(n)) for n in range(6)))
        place.sql("UPDATE retrysafe_outbox SET bucket = 7")
        assert relay.run_once().published == 6
    assert noted == [2]


# ---------------------------------------------------------------- told to stop


@contextmanager
def slow_relay(place: Place, ledger: str, *options: str) -> Iterator[Program]:
    """The command, while it publishes its first batch: until there is a file ``LEDGER.go``."""
    command = [sys.executable, "-m", "retrysafe", "relay", "--store", place.url, *options]
    command += ["--publisher", "tests.messaging.children:ledger"]
    with Program(
        command, env={**environment(), "LEDGER": ledger, "SLOW": "1"}, stderr=subprocess.PIPE, text=True
    ) as process:
        until(Path(f"{ledger}.begun").exists)
        yield process


@pytest.mark.slow
@pytest.mark.fault(86)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_relay_that_is_told_to_stop_finishes_its_batch(number: int, place: Place, tmp_path: Path) -> None:
    """Messages under way leave once and are marked; the rest is left whole."""
    ids = place.write(*(Message("orders", n, key="A", sequence=n) for n in range(1, 4)))
    ledger = str(tmp_path / "ledger.db")
    with slow_relay(place, ledger, "--batch", "1") as process:
        process.send_signal(number)
        Path(f"{ledger}.go").touch()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert [one[0] for one in taken(ledger)] == ids[:1]
    assert [row[0] for row in place.sql("SELECT message_id FROM retrysafe_outbox ORDER BY id")] == ids[1:]
    assert place.sql("SELECT name FROM retrysafe_outbox_relays") in ([], ())
    assert place.relay().run_once().published == 2


@pytest.mark.slow
@pytest.mark.fault(86)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_relay_whose_publisher_does_not_end(number: int, place: Place, tmp_path: Path) -> None:
    """Signals soon after the first are the same one, so more are sent until it ends."""
    ids = place.write(Message("orders", 1))
    ledger = str(tmp_path / "ledger.db")
    with slow_relay(place, ledger) as process:
        process.send_signal(number)
        assert process.stderr is not None
        line = next(line for line in process.stderr if "Stopping" in line)
        until(lambda: ended_by(process, number))
    assert "its current batch is published" in line
    assert "A second SIGTERM or SIGINT ends the process at once" in line
    assert process.returncode == 128 + number
    assert [row[0] for row in place.sql("SELECT message_id FROM retrysafe_outbox")] == ids


def test_a_relay_whose_tables_are_gone_is_told_to_stop_and_stops(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    Outbox(f"sqlite:///{file}", source="/shop")
    told: list[str] = []

    def observer(occurrence: Event) -> None:
        told.append(occurrence.name)
        if occurrence.name == "backlog":
            with closing(sqlite3.connect(file)) as connection:
                made = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
                for table in TABLES.intersection(name for (name,) in made):
                    connection.execute(f"DROP TABLE {table}")
        if occurrence.name == "relay_failed":
            relay.stop()

    relay = Relay(f"sqlite:///{file}", MemoryPublisher(), observers=[observer])
    relay.run_forever()
    assert "relay_failed" in told


def test_a_relay_that_runs_again_looks_who_is_there(place: Place) -> None:
    """The first run had looked; another relay that holds lanes otherwise has begun since, and both would publish."""
    if place.kind == "sqlite":
        pytest.skip("buckets are leased there")
    relay = place.relay(hold="transaction")
    relay.run_once()
    with place.relay(hold="lease"), place.operator() as operator:
        until(lambda: bool(operator.status().relays))
        with pytest.raises(ConfigurationError, match="hold='lease'"):
            relay.run_once()


@each_row("runs", ["run_once", "run_forever"])
def test_a_stop_is_for_one_run(place: Place, runs: str) -> None:
    """As at the end of a process, which stops its relay and publishes what is left."""
    relay = place.relay()
    relay.stop()
    getattr(relay, runs)()
    place.write(Message("a", 1, key="A"))
    assert relay.run_once().published == 1
