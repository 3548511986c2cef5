"""The metrics, with the real SDK, in both colours and on every ground."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from contextlib import suppress
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest

from retrysafe import (
    Boundary,
    InProgress,
    KeyReused,
    LeaseLost,
    OutcomeUnknown,
    RetrysafeError,
    StoredFailure,
    StoreUnavailable,
    wait,
)
from retrysafe.claims.modes import LeaseMode, Settled
from retrysafe.claims.observers import EVENTS
from retrysafe.observability.metrics import (
    ATTEMPTS,
    BEGINNINGS,
    CLAIMS,
    COUNTERS,
    ENDINGS,
    GAUGES,
    MEASURES,
    instruments_of,
)
from retrysafe.observability.otel import MOST, OpenTelemetryObserver
from retrysafe.protocol import keys
from retrysafe.protocol.events import Event
from tests.faults.helpers import forever
from tests.observing.telemetry import Telemetry, Works, apart
from tests.tables import each_row

EFFECTS = pytest.mark.parametrize("effects", ["keyed", "external", "transactional"])


@EFFECTS
async def test_a_replay(works: Works, telemetry: Telemetry, effects: Any) -> None:
    boundary = works.boundary(effects=effects, name="charges")
    for _ in range(3):
        await works.run(boundary, "k")
    about = {"boundary": "charges", "operation": "charges", "effects": effects}
    assert telemetry.total(CLAIMS, outcome="started", **about) == 1
    assert telemetry.total(CLAIMS, outcome="replayed", **about) == 2
    assert telemetry.total("retrysafe.replays", **about) == 2
    assert telemetry.total("retrysafe.duplicates_avoided", outcome="replayed", **about) == 2
    assert telemetry.total("idempotency.cache.hits") == 2
    assert telemetry.total("idempotency.cache.misses") == 1
    assert telemetry.total(ATTEMPTS) == telemetry.total(ATTEMPTS, outcome="completed", **about) == 1
    assert telemetry.total("retrysafe.work.duration", **about) == 1
    timed = {"store": "sqlite", "answered": True, **about}
    assert telemetry.total("retrysafe.store.duration", step="claim", **timed) == 3
    assert telemetry.total("retrysafe.store.duration", step="settle", **timed) == 1


async def test_a_conflict_and_work_in_progress(works: Works, telemetry: Telemetry) -> None:
    boundary = works.boundary()
    async with works.entered(boundary.claim("k")):
        assert telemetry.total("retrysafe.in_progress", boundary=boundary.name) == 1
        with pytest.raises(InProgress):
            await apart(works.run(boundary, "k"))
        await works.run(boundary, "other")
        assert telemetry.total("retrysafe.in_progress") == 1
    assert telemetry.points()["retrysafe.in_progress"][0][1] == 0, "a group that is idle is said to be so"
    assert telemetry.total("retrysafe.conflicts") == 1
    assert telemetry.total("retrysafe.duplicates_avoided", outcome="conflict") == 1


async def test_a_mismatch(works: Works, telemetry: Telemetry) -> None:
    boundary = works.boundary()
    await works.run(boundary, "k", payload={"amount": 1})
    with pytest.raises(KeyReused):
        await works.run(boundary, "k", payload={"amount": 2})
    assert telemetry.total("retrysafe.mismatches") == telemetry.total(CLAIMS, outcome="mismatch") == 1
    assert telemetry.total("retrysafe.duplicates_avoided") == 0


async def test_a_takeover_and_the_lease_that_was_lost(works: Works, telemetry: Telemetry) -> None:
    boundary = works.boundary()
    with pytest.raises(LeaseLost):
        async with works.entered(boundary.claim("k")):
            works.let_leases_lapse()
            await apart(works.run(boundary, "k"))
    assert telemetry.total("retrysafe.takeovers") == telemetry.total(CLAIMS, outcome="takeover") == 1
    assert telemetry.total("retrysafe.lease_lost") == 1
    assert telemetry.total(ATTEMPTS, outcome="lease_lost") == telemetry.total(ATTEMPTS, outcome="completed") == 1
    assert telemetry.total("retrysafe.in_progress") == 0


@pytest.mark.slow
@pytest.mark.parametrize("sync", [True, False])
async def test_a_lease_that_the_heartbeat_lost_is_counted_once(
    tmp_path: Path, telemetry: Telemetry, *, sync: bool
) -> None:
    works = Works(tmp_path, telemetry, sync=sync)
    told = threading.Event()
    boundary = works.boundary(
        lease="6s",
        observers=[telemetry.observer, lambda occurrence: told.set() if occurrence.name == "lease_lost" else None],
    )
    with pytest.raises(LeaseLost):
        async with works.entered(boundary.claim("k")):
            works.give_away()
            if sync:
                assert told.wait(60)
            else:
                await forever()
    assert telemetry.total("retrysafe.lease_lost") == telemetry.total(ATTEMPTS, outcome="lease_lost") == 1
    assert telemetry.total("retrysafe.store.duration", step="renew", answered=True) >= 1
    await works.close()


async def test_doubt_and_how_it_is_settled(works: Works, telemetry: Telemetry) -> None:
    boundary = works.boundary(effects="external")
    with pytest.raises(ValueError, match="gone"):
        await works.run(boundary, "k", ValueError("gone"))
    with pytest.raises(OutcomeUnknown):
        await works.run(boundary, "k")
    if works.sync:
        assert boundary.resolve("k", "completed", result=1)
    else:
        assert await boundary.aresolve("k", "completed", result=1)
    assert telemetry.total("retrysafe.unknown", error_type="ValueError") == 1
    assert telemetry.total(CLAIMS, outcome="unknown_refused") == 1
    assert telemetry.total("retrysafe.resolutions", outcome="completed") == 1


async def test_a_probe_is_counted_and_timed(works: Works, telemetry: Telemetry) -> None:
    boundary = works.boundary(effects="external", probe=lambda claim: claim.not_executed())
    with pytest.raises(ValueError, match="gone"):
        await works.run(boundary, "k", ValueError("gone"))
    await works.run(boundary, "k")
    assert telemetry.total("retrysafe.resolutions", outcome="released") == 1
    assert telemetry.total("retrysafe.store.duration", step="resolve") == 1


@pytest.mark.parametrize(
    ("effects", "permanent", "ending"),
    [
        ("keyed", (), "released"),
        ("external", (), "unknown"),
        ("transactional", (), "rolled_back"),
        ("keyed", ValueError, "failed"),
        ("transactional", ValueError, "failed"),
    ],
)
async def test_a_failure(works: Works, telemetry: Telemetry, effects: Any, permanent: Any, ending: str) -> None:
    boundary = works.boundary(effects=effects, permanent=permanent)
    with pytest.raises(ValueError, match="no"):
        await works.run(boundary, "k", ValueError("no"))
    assert telemetry.total(ATTEMPTS, outcome=ending, error_type="ValueError") == 1
    if ending == "failed":
        with pytest.raises(StoredFailure):
            await works.run(boundary, "k")
        assert telemetry.total("retrysafe.replays", error_type="ValueError") == 1


async def test_a_waiter_that_gives_up(tmp_path: Path, telemetry: Telemetry) -> None:
    works = Works(tmp_path, telemetry, sync=False)
    boundary = works.boundary(concurrency=wait(0.05))
    async with works.entered(boundary.claim("k")):
        with pytest.raises(InProgress):
            await apart(works.run(boundary, "k"))
    assert telemetry.total("retrysafe.waits") >= 1
    assert telemetry.total("retrysafe.conflicts") == 1
    await works.close()


async def test_a_store_that_is_away(works: Works, telemetry: Telemetry) -> None:
    boundary = Boundary("x", store="postgresql://nobody@127.0.0.1:1/nothing", observers=[telemetry.observer])
    with pytest.raises(StoreUnavailable):
        await works.run(boundary, "k")
    assert telemetry.total(CLAIMS) == telemetry.total(CLAIMS, outcome="error", error_type="StoreUnavailable") == 1
    assert telemetry.total("retrysafe.store.duration", store="postgresql", step="claim", answered=False) == 1
    assert telemetry.spans()[0].status.description == "StoreUnavailable"
    await boundary.aclose()


async def test_an_end_that_the_store_did_not_answer_is_told_as_such(
    works: Works, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def be_silent(*args: object, **options: object) -> Settled:
        return Settled.UNANSWERED

    monkeypatch.setattr(LeaseMode, "settle", lambda *args, **options: Settled.UNANSWERED)
    monkeypatch.setattr(LeaseMode, "asettle", be_silent)
    await works.run(works.boundary(), "key")
    assert telemetry.total("retrysafe.store.duration", step="claim", answered=True) == 1
    assert telemetry.total("retrysafe.store.duration", step="settle", answered=False) == 1


async def test_calls_that_pass_unguarded(works: Works, telemetry: Telemetry) -> None:
    boundary = works.boundary(on_missing="pass")
    async with works.entered(boundary.claim(None)):
        pass
    assert telemetry.total(CLAIMS, outcome="passed") == 1
    assert telemetry.total("retrysafe.in_progress") == 0


async def test_every_call_has_one_outcome_and_every_attempt_one_ending(works: Works, telemetry: Telemetry) -> None:
    boundary = works.boundary(permanent=KeyError, on_missing="pass")
    calls: list[tuple[str, Any, Any]] = [
        ("a", 1, 1), ("a", 1, 1), ("a", 1, 2), ("b", ValueError("x"), 1), ("b", KeyError("x"), 1), ("b", 1, 1),
        ("c", object(), 1), ("c", 1, 1), ("d", asyncio.CancelledError(), 1),
    ]  # fmt: skip
    for key, result, payload in calls:
        with suppress(RetrysafeError, ValueError, KeyError, asyncio.CancelledError):
            await works.run(boundary, key, result, payload)
    assert telemetry.total(CLAIMS) == len(calls)
    begun = sum(telemetry.total(CLAIMS, outcome=outcome) for outcome in BEGINNINGS)
    assert telemetry.total(ATTEMPTS) == begun == telemetry.total("retrysafe.work.duration")
    assert telemetry.total(ATTEMPTS, outcome="result_withheld") == 1
    assert telemetry.total(ATTEMPTS, error_type="CancelledError") == 1


def test_many_threads_count_exactly(tmp_path: Path, telemetry: Telemetry) -> None:
    boundary = Boundary("threads", store="memory://", observers=[telemetry.observer])

    def work() -> None:
        for number in range(100):
            try:
                with boundary.claim(f"k{number}") as claim:
                    if not claim.replayed:
                        claim.result = number
            except InProgress:
                pass

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert telemetry.total(CLAIMS) == 800
    assert telemetry.total(ATTEMPTS, outcome="completed") == 100
    assert telemetry.total("retrysafe.in_progress") == 0
    assert len(telemetry.spans("retrysafe claim threads")) == 800
    boundary.close()


# ---------------------------------------------------------------- attempts that never end


def test_an_abandoned_attempt_is_forgotten(telemetry: Telemetry) -> None:
    boundary = Boundary("x", store="memory://", observers=[telemetry.observer])

    def abandoned() -> None:
        boundary.claim("k").__enter__()

    Context().run(abandoned)
    assert telemetry.total("retrysafe.in_progress") == 1, "its lease is kept, and so is its key"
    boundary.close()
    gc.collect()
    assert telemetry.total("retrysafe.in_progress") == 0
    assert telemetry.observer._instruments._running == set()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_inside_the_block_has_no_part_in_the_attempt(telemetry: Telemetry) -> None:
    boundary = Boundary("x", store="memory://", observers=[telemetry.observer])
    reading, writing = os.pipe()
    with boundary.claim("k") as claim:
        child = os.fork()
        if child == 0:
            running = telemetry.total("retrysafe.in_progress")
            claim.__exit__(None, None, None)
            said = f"{running} {len(telemetry.spans())} {telemetry.total(ATTEMPTS)}"
            os.write(writing, said.encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reading, 100) == b"0 0 0"
        assert telemetry.total("retrysafe.in_progress") == 1
    assert len(telemetry.spans()) == telemetry.total(ATTEMPTS) == 1
    boundary.close()


# ---------------------------------------------------------------- what a metric may carry

ALLOWED = {
    "retrysafe.boundary", "retrysafe.operation", "retrysafe.effects", "retrysafe.outcome", "error.type",
    "retrysafe.step", "retrysafe.answered", "retrysafe.store", "retrysafe.partition", "retrysafe.severity",
    "retrysafe.slot",
}  # fmt: skip
VALUES: dict[str, Any] = {
    "runs": 3,
    "effects": "keyed", "store": "memory", "step": "claim", "seconds": 0.1, "answered": True, "token": 987654321,
    "behind": 4096, "kept": 8192,
    "attempts": 987654321, "differing": ("secretfield",), "error": "secrettext", "error_type": "ValueError",
    "text": "secrettext", "setting": "fsync", "outcome": "completed", "retry_after": 987654321.0, "restarts": 987654321,
    "pause": 987654321.0, "isolation": "REPEATABLE READ", "forgotten": True, "ending": "returned", "limit": "rate",
    "refusal": "signature-invalid", "topic": "orders", "messages": 3, "lag": 0.1, "oldest": 1.5, "due": 2,
    "oldest_due": 0.5, "dead": 1, "relays": 2, "became": "failed", "handled": 3,
    "destination": "orders", "removed": 3, "findings": 2, "partition": "orders-0",
    "severity": "error", "slot": "orders",
}  # fmt: skip


@each_row("name", EVENTS)
def test_no_metric_carries_a_key_an_attempt_or_a_scope(name: str, telemetry: Telemetry) -> None:
    key = keys.redact(b"\xde\xad\xbe\xef" * 8)

    def occurrence(name: str, side: str = "outbox") -> Event:
        fields = {field: VALUES.get(field, "secrettext") for field in EVENTS[name].fields}
        return Event(name, "b", "o", key, "attempt-id", fields | ({"side": side} if "side" in fields else {}))

    for side in ("outbox", "inbox", "records"):
        telemetry.observer(occurrence(name, side))
    watch = telemetry.observer.watch(occurrence("received"))
    watch(occurrence("started"))
    watch(occurrence(name))
    watch.close(None)
    points = telemetry.points()
    assert set(points) <= {instrument.name for instrument in (*COUNTERS, *GAUGES, *MEASURES)}
    assert set(instruments_of(name)) <= set(points)
    for labels, _ in (point for found in points.values() for point in found):
        assert labels.keys() <= ALLOWED
        for hidden in (key, "attempt-id", "secret", "987654321"):
            assert hidden not in str(labels)


def test_every_occurrence_is_counted_or_measured_or_known_not_to_be() -> None:
    uncounted = {name for name in EVENTS if not instruments_of(name)}
    known = {
        "received": "the sum of the claims",
        "store_request": "measured",
        "sweep_failed": "no claim",
        "lag_uncounted": "the broker's own metrics tell",
    }
    known["relay_seen"] = known["consumer_seen"] = "signs of life, for /live and /ready"
    known["messages_trimmed"] = "told for each stream"
    known["retention_unknown"] = "told when a subscription begins"
    known["destination_recovered"] = "its stalls are counted"
    known["message_relayed"] = "counted by its wave, which is one event"
    known["slot_created"] = "told once in the life of a slot"
    known["log_unavailable"] = "the relay polls, and tries the log again"
    known["upstream_failed"] = "counted by the gateway, by route and error"
    known["cleanup_held"] = "told with the name of who holds it; the outbox's age is measured"
    known["relays_differ"] = "an error of the set-up, told once"
    known["consumer_full"] = "told once a minute for a partition; what waits is measured"
    known["lane_failing"] = "told once for each key; its dead letters are counted"
    known["consumer_stalled"] = "told once for each partition; lag is measured"
    assert uncounted == known.keys()
    assert {name for counter in COUNTERS for name in counter.events} <= EVENTS.keys()
    assert set(ENDINGS) < set(EVENTS)


def test_names_without_end_become_one_series(telemetry: Telemetry) -> None:
    boundary = Boundary("x", store="memory://", observers=[telemetry.observer])
    for number in range(MOST + 50):
        with boundary.claim("k", operation=f"operation-{number}") as claim:
            claim.result = 1
    operations = [labels["retrysafe.operation"] for labels, _ in telemetry.points()[CLAIMS]]
    assert len(operations) == MOST + 1
    assert telemetry.total(CLAIMS, operation="_OTHER") == 50
    assert telemetry.spans()[-1].name == "retrysafe claim _OTHER"
    boundary.close()


def test_two_observers_of_one_provider_share_their_instruments(telemetry: Telemetry) -> None:
    second = OpenTelemetryObserver(telemetry.meters, telemetry.tracers)
    one = Boundary("one", store="memory://", observers=[telemetry.observer])
    two = Boundary("two", store="memory://", observers=[second])
    with one.claim("k"), two.claim("k"):
        assert telemetry.total("retrysafe.in_progress", boundary="one") == 1
        assert telemetry.total("retrysafe.in_progress", boundary="two") == 1
    one.close()
    two.close()
