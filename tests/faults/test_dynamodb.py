"""DynamoDB: lost replies, throttling, silence, clocks that are wrong, items that do not fit. FAULTS 44-49, 60-62."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from retrysafe import (
    Boundary,
    ConfigurationError,
    InProgress,
    ResultNotEncodable,
    SchemaOutdated,
    StoredFailure,
    StoreUnavailable,
    wait,
)
from retrysafe.backends.driver import run
from retrysafe.backends.dynamodb.client import AsyncDynamodbClient
from retrysafe.backends.dynamodb.store import LARGEST_ITEM, MARGIN, RESERVED, DynamodbStore, size_of
from retrysafe.backends.registry import connect
from retrysafe.cli import main
from retrysafe.protocol.procedures import claim, sweep
from tests.faults.conftest import Making
from tests.faults.helpers import DEADLINE, Bank, Child, Told, auntil, items_of, records_of, renewals_of, unique, until
from tests.faults.http_proxy import Fate, HttpProxy
from tests.stores.harnesses.dynamodb import DYNAMODB_TABLE, dynamodb_endpoint, dynamodb_url
from tests.tables import each_row

LARGEST = LARGEST_ITEM - RESERVED
LOST: tuple[Fate, ...] = ("request lost", "reply lost")


@pytest.fixture
def through(http_proxy: HttpProxy) -> str:
    """The URL of the shared table through the proxy."""
    return http_proxy.url(DYNAMODB_TABLE)


@pytest.fixture
def impatient(http_proxy: HttpProxy) -> str:
    """The same, not waiting long for an answer."""
    return http_proxy.url(DYNAMODB_TABLE, "&timeout=2s")


def _client(endpoint: str, **config: Any) -> Any:
    import boto3
    from botocore.config import Config

    return boto3.client("dynamodb", endpoint_url=endpoint, region_name="us-east-1", config=Config(**config))


@pytest.fixture
def own_table(dynamodb: str) -> Iterator[str]:
    """The URL of a table of this test's own, for what is large."""
    name = unique("table")
    connect(dynamodb_url(name)).migrate()
    with dropped(name):
        yield dynamodb_url(name)


@contextmanager
def dropped(*names: str) -> Iterator[None]:
    """Tables that are gone in the end."""
    client = _client(dynamodb_endpoint())
    try:
        yield
    finally:
        for name in names:
            client.delete_table(TableName=name)
        client.close()


def _item(boundary: str) -> dict[str, Any]:
    (item,) = items_of(dynamodb_url(), "boundary", boundary)
    return item


# ---------------------------------------------------------------- lost requests and lost replies


@pytest.mark.slow
@pytest.mark.fault(44)
@pytest.mark.parametrize("fate", LOST)
@pytest.mark.parametrize("call", [0, 1])
def test_a_lost_claim_or_completion_is_recognised_as_ones_own(
    call: int, fate: Fate, through: str, http_proxy: HttpProxy, make: Making
) -> None:
    """44: the second try of a write that had succeeded fails its condition; the attempt id says that it was ours."""
    boundary, runs = make(through, lease="60s"), list[int]()
    http_proxy.once("UpdateItem", fate, skip=call)
    with boundary.claim("key") as claim:
        runs.append(1)
        claim.result = "done"
    assert http_proxy.calls.count("UpdateItem") == 3
    assert http_proxy.calls.count("GetItem") == (call == 1 and fate == "reply lost")
    with boundary.claim("key") as claim:
        assert (claim.replayed, claim.result) == (True, "done")
    assert (runs, records_of(dynamodb_url(), boundary.name)) == ([1], [("completed", 1)])


@pytest.mark.slow
@pytest.mark.parametrize("fate", LOST)
async def test_the_same_on_an_event_loop(fate: Fate, through: str, http_proxy: HttpProxy, make: Making) -> None:
    """44."""
    for call in (0, 1):
        boundary = make(through, lease="60s")
        http_proxy.once("UpdateItem", fate, skip=call)
        async with boundary.claim("key") as claim:
            claim.result = "done"
        async with boundary.claim("key") as claim:
            assert (claim.replayed, claim.result) == (True, "done")
        assert records_of(dynamodb_url(), boundary.name) == [("completed", 1)]
        await boundary.aclose()


@pytest.mark.slow
@pytest.mark.fault(44)
@pytest.mark.parametrize("fate", LOST)
def test_a_lost_takeover_is_recognised_as_ones_own(
    fate: Fate, through: str, http_proxy: HttpProxy, make: Making
) -> None:
    """44."""
    boundary = make(through, lease="60s")
    with pytest.raises(ZeroDivisionError), boundary.claim("key"):
        raise ZeroDivisionError
    http_proxy.once("UpdateItem", fate, skip=1)
    with boundary.claim("key") as claim:
        claim.result = "done"
    assert records_of(dynamodb_url(), boundary.name) == [("completed", 2)]


@pytest.mark.slow
@pytest.mark.parametrize("fate", LOST)
def test_a_lost_renewal_is_tried_again(
    fate: Fate, through: str, http_proxy: HttpProxy, make: Making, told: Told
) -> None:
    """44, 47: neither the request nor the reply that is lost ends the lease."""
    boundary = make(through, lease="9s")
    with boundary.claim("key") as claim:
        http_proxy.once("UpdateItem", fate)
        told.wait_for("renewal_failed")
        before = renewals_of(dynamodb_url(), claim.attempt_id)
        until(lambda: renewals_of(dynamodb_url(), claim.attempt_id) > before)
        claim.ensure_held()
        claim.result = "done"
    assert told.names["lease_lost"] == 0
    assert _item(boundary.name)["state"] == "completed"


@pytest.mark.slow
@pytest.mark.parametrize("fate", LOST)
def test_with_any_call_lost_the_effect_happens_once(
    fate: Fate, http_proxy: HttpProxy, dynamodb: str, tmp_path: Path
) -> None:
    """13, 14, 44: from the first look at the table to the last write, one call after the other is lost."""
    ledger, lost_at = Bank(tmp_path / "bank.db"), list[int]()
    for lost in range(20):
        boundary = Boundary(unique(), store=http_proxy.url(DYNAMODB_TABLE), lease="60s", observers=())
        left = [lost]

        def fates(operation: str, arguments: dict[str, Any], left: list[int] = left) -> Fate:
            left[0] -= 1
            return fate if left[0] == -1 else "through"

        @boundary.once(key="key")
        def charge(key: str, name: str = boundary.name) -> str:
            return ledger.charge(name)

        http_proxy.fates = fates
        for _ in range(2):
            with suppress(StoreUnavailable):
                assert charge("key") == ledger.charges[boundary.name]
        assert charge("key") == ledger.charges[boundary.name]
        assert records_of(dynamodb, boundary.name) == [("completed", 1)]
        assert ledger.requests[boundary.name] == 1
        boundary.close()
        if left[0] < 0:
            lost_at.append(lost)
    assert len(lost_at) >= 6, "three looks, a claim, a completion, two replays"


@pytest.mark.slow
@pytest.mark.fault(44)
@pytest.mark.parametrize("call", [0, 1])
def test_an_sdk_that_tries_again_by_itself_changes_nothing(call: int, http_proxy: HttpProxy, dynamodb: str) -> None:
    """44: the user's own client, with the retries of its library."""
    client = _client(http_proxy.endpoint, retries={"mode": "standard", "total_max_attempts": 4})
    _own_table(client)
    boundary = Boundary(unique(), store=client, observers=())
    http_proxy.once("UpdateItem", "reply lost", skip=call)
    with boundary.claim("key") as claim:
        assert not claim.replayed
        claim.result = "done"
    with boundary.claim("key") as claim:
        assert (claim.replayed, claim.result) == (True, "done")
    boundary.close()
    client.close()


def _own_table(client: Any) -> None:
    """The table of a client that names none."""
    backend = connect(client)
    backend.migrate()


# ---------------------------------------------------------------- what is asked


@pytest.mark.slow
@pytest.mark.fault(46, 48)
def test_every_read_is_consistent_and_nothing_rests_on_a_request_token(
    through: str, http_proxy: HttpProxy, make: Making
) -> None:
    """46, 48."""
    asked: list[tuple[str, dict[str, Any]]] = []

    def note(operation: str, arguments: dict[str, Any]) -> Fate:
        asked.append((operation, arguments))
        return "through"

    http_proxy.fates = note
    boundary = make(through)
    with boundary.claim("key") as claim:
        claim.result = 1
    with boundary.claim("unknown_refused") as claim:
        claim.committed()
        with pytest.raises(ZeroDivisionError):
            raise ZeroDivisionError
    boundary.resolve("key", "released")
    list_all = [operation for operation, _ in asked]
    assert {"UpdateItem", "GetItem"} <= set(list_all)
    for operation, arguments in asked:
        assert "ClientRequestToken" not in arguments
        if operation in ("GetItem", "Scan"):
            assert arguments["ConsistentRead"] is True
        if operation == "UpdateItem":
            assert arguments["ConditionExpression"]


@pytest.mark.slow
def test_a_fresh_key_takes_two_calls_and_a_replay_one(through: str, http_proxy: HttpProxy, make: Making) -> None:
    boundary = make(through)
    with boundary.claim("first") as claim:
        claim.result = 1
    http_proxy.calls.clear()
    with boundary.claim("key") as claim:
        claim.result = 1
    with boundary.claim("key") as claim:
        assert claim.replayed
    assert http_proxy.calls == ["UpdateItem"] * 3


@pytest.mark.fault(45)
def test_only_what_is_settled_has_a_time_to_live(dynamodb: str, make: Making) -> None:
    """45: the service removes late, and never what is running or unknown."""
    boundary = make(dynamodb, window="1h", memory="2h", effects="external")
    with boundary.claim("key") as claim:
        assert "ttl" not in _item(boundary.name)
        claim.result = 1
    item = _item(boundary.name)
    assert item["forget"] <= item["ttl"] * 1_000_000 <= item["forget"] + 1_000_000
    other = make(dynamodb, effects="external")
    with pytest.raises(ZeroDivisionError), other.claim("key"):
        raise ZeroDivisionError
    assert _item(other.name)["state"] == "unknown"
    assert "ttl" not in _item(other.name)
    assert other.resolve("key", "released")
    assert "ttl" in _item(other.name)
    with other.claim("key"):
        assert "ttl" not in _item(other.name)


@pytest.mark.fault(45)
def test_items_not_removed_yet_are_forgotten_all_the_same(dynamodb: str, make: Making) -> None:
    """The item's time to live is over, and the item is there, as it may be for days."""
    boundary = make(dynamodb, window="1h", memory="2h")
    with boundary.claim("key", payload="of then") as claim:
        claim.result = 1
        key = claim._require_request().key
    _move(key, -3 * 3600)
    assert records_of(dynamodb, boundary.name) == [("completed", 1)]
    with boundary.claim("key", payload="of now") as claim:
        assert not claim.replayed
        claim.result = 2
    with boundary.claim("key", payload="of now") as claim:
        assert (claim.replayed, claim.result) == (True, 2)
    assert records_of(dynamodb, boundary.name) == [("completed", 1)]


@pytest.mark.slow
@pytest.mark.fault(46)
def test_a_request_that_arrives_again_much_later_changes_nothing(
    through: str, http_proxy: HttpProxy, make: Making
) -> None:
    """As after the ten minutes for which a ClientRequestToken is remembered: each write is refused by its condition."""
    asked: list[dict[str, Any]] = []

    def note(operation: str, arguments: dict[str, Any]) -> Fate:
        if operation == "UpdateItem":
            asked.append(arguments)
        return "through"

    http_proxy.fates = note
    boundary = make(through)
    with pytest.raises(ZeroDivisionError), boundary.claim("key"):
        raise ZeroDivisionError
    with boundary.claim("key") as claim:
        claim.result = "done"
    before, client = _item(boundary.name), _client(dynamodb_endpoint())
    assert len(asked) == 5, "claim, release, claim, take, complete"
    for arguments in asked:
        with pytest.raises(client.exceptions.ConditionalCheckFailedException):
            client.update_item(**_from_wire(arguments))
    client.close()
    assert _item(boundary.name) == before


def _from_wire(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments as boto3 takes them: bytes instead of their base64."""

    def bytes_of(value: dict[str, Any]) -> dict[str, Any]:
        return {kind: base64.b64decode(plain) if kind == "B" else plain for kind, plain in value.items()}

    attributes = ("Key", "ExpressionAttributeValues")
    return arguments | {name: {key: bytes_of(value) for key, value in arguments[name].items()} for name in attributes}


# ---------------------------------------------------------------- throttling, silence


CODES = ["ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded"]


@pytest.mark.slow
@pytest.mark.fault(47)
@pytest.mark.parametrize("code", CODES)
def test_a_service_that_asks_to_come_again_is_asked_again(
    code: str, through: str, http_proxy: HttpProxy, make: Making
) -> None:
    """47."""
    boundary, left = make(through), Counter({"UpdateItem": 3, "GetItem": 3, "DescribeTable": 2})
    http_proxy.code = code

    def fates(operation: str, arguments: dict[str, Any]) -> Fate:
        left[operation] -= 1
        return "turned away" if left[operation] >= 0 else "through"

    http_proxy.fates = fates
    with boundary.claim("key") as claim:
        left["UpdateItem"] = 3
        claim.result = 1
    assert http_proxy.calls.count("UpdateItem") == 8
    assert records_of(dynamodb_url(), boundary.name) == [("completed", 1)]


@pytest.mark.slow
def test_a_request_that_a_gateway_gave_up_may_have_been_carried_out(
    through: str, http_proxy: HttpProxy, make: Making
) -> None:
    """44: claim and completion are done, and answered with 504 by something in between."""
    boundary = make(through, effects="external")
    for _ in range(2):
        http_proxy.once("UpdateItem", "gateway timeout")
        with boundary.claim("key") as claim:
            if not claim.replayed:
                http_proxy.once("UpdateItem", "gateway timeout")
                claim.result = 1
    assert (claim.replayed, claim.result) == (True, 1)
    assert records_of(dynamodb_url(), boundary.name) == [("completed", 1)]


@pytest.mark.slow
def test_a_resolution_that_a_gateway_gave_up_is_known_as_done(
    through: str, http_proxy: HttpProxy, make: Making
) -> None:
    boundary = make(through, effects="external")
    with pytest.raises(TimeoutError), boundary.claim("key"):
        raise TimeoutError
    http_proxy.once("UpdateItem", "gateway timeout")
    assert boundary.resolve("key", "completed", result="found")
    with boundary.claim("key") as claim:
        assert (claim.replayed, claim.result) == (True, "found")


@pytest.mark.slow
async def test_the_same_back_off_on_an_event_loop(through: str, http_proxy: HttpProxy, make: Making) -> None:
    """47."""
    boundary, left = make(through), [3]

    def fates(operation: str, arguments: dict[str, Any]) -> Fate:
        left[0] -= 1
        return "turned away" if left[0] >= 0 else "through"

    http_proxy.fates = fates
    async with boundary.claim("key") as claim:
        claim.result = 1
    assert records_of(dynamodb_url(), boundary.name) == [("completed", 1)]
    await boundary.aclose()


@pytest.mark.slow
@pytest.mark.fault(47)
def test_a_service_that_turns_everything_away_is_unavailable(
    through: str, http_proxy: HttpProxy, make: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    """47: after a bounded back-off, and nothing was run."""
    boundary = make(through)
    slept: list[float] = []
    http_proxy.fates = lambda operation, arguments: "turned away"
    pausing = SimpleNamespace(sleep=slept.append)  # threads of other libraries go on sleeping
    monkeypatch.setattr("retrysafe.backends.dynamodb.client.time", pausing)
    with pytest.raises(StoreUnavailable, match="Slow down"), boundary.claim("key"):
        pytest.fail("not claimed")
    assert 3 < len(slept) <= 16
    assert sum(slept) <= 3.0
    assert len(http_proxy.calls) == len(slept) + 1


@pytest.mark.slow
@pytest.mark.one_of("slow tests")
@pytest.mark.fault(47)
def test_a_throttled_renewal_does_not_lose_the_lease(
    through: str, http_proxy: HttpProxy, make: Making, told: Told
) -> None:
    """47: the heartbeat comes again before the lease is over."""
    boundary = make(through, lease="9s")
    with boundary.claim("key") as claim:
        left = [2]

        def fates(operation: str, arguments: dict[str, Any]) -> Fate:
            left[0] -= 1
            return "turned away" if left[0] >= 0 else "through"

        http_proxy.fates = fates
        until(lambda: left[0] < 0)
        before = renewals_of(dynamodb_url(), claim.attempt_id)
        until(lambda: renewals_of(dynamodb_url(), claim.attempt_id) > before)
        claim.ensure_held()
        claim.result = 1
    assert told.names["renewal_failed"] == 2
    assert told.names["lease_lost"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_a_silent_service_is_unavailable_within_its_timeout(
    colour: str, impatient: str, http_proxy: HttpProxy, make: Making
) -> None:
    """18: it accepts and never answers; two tries of two seconds each."""
    boundary = make(impatient)
    with boundary.claim("warm") as claim:
        claim.result = 1
    http_proxy.fates = lambda operation, arguments: "silent"
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        if colour == "sync":
            with boundary.claim("key"):
                pytest.fail("not claimed")
        else:
            async with boundary.claim("key"):
                pytest.fail("not claimed")
    assert time.monotonic() - began < DEADLINE / 3
    await boundary.aclose()


@pytest.mark.slow
@pytest.mark.one_of("slow tests")
def test_a_silent_service_at_the_end_leaves_the_value_and_an_alert(
    impatient: str, http_proxy: HttpProxy, make: Making, told: Told
) -> None:
    boundary = make(impatient, lease="60s")

    @boundary.once(key="key")
    def charge(key: str) -> str:
        http_proxy.fates = lambda operation, arguments: "silent"
        return "charged"

    assert charge("key") == "charged"
    assert told.names["settle_deferred"] == 1
    boundary.close()
    assert told.names["result_not_stored"] == 1


# ---------------------------------------------------------------- clocks


@pytest.mark.slow
@pytest.mark.fault(60, 61, 62)
@pytest.mark.parametrize("skew", [3600.0, -3600.0])
def test_a_workers_wall_clock_does_not_matter(skew: float, dynamodb: str, make: Making) -> None:
    """60-63: neither a skew nor a jump takes over a live lease, forgets a result, or loses its own lease."""
    boundary = make(dynamodb, lease="60s", window="30m")
    with boundary.claim("finished elsewhere") as claim:
        claim.result = "here"
    with boundary.claim("held elsewhere"), Child("skewed", dynamodb, boundary.name, str(skew)) as worker:
        assert worker.hears() == "replayed True"
        assert worker.hears() == "holding"
        with pytest.raises(InProgress), boundary.claim("mine"):
            pytest.fail("its lease is alive")
        worker.go_on()
        assert worker.hears() == "replayed True"
        assert worker.ends() == 0
    with boundary.claim("mine") as claim:
        assert (claim.replayed, claim.result) == (True, "from the skewed worker")
    now = time.time() * 1e6
    for item in items_of(dynamodb, "boundary", boundary.name):
        assert abs(int(item["updated"]) - now) < 300e6, "an instant was not the service's"


@pytest.mark.slow
@pytest.mark.fault(60)
@pytest.mark.parametrize("shift", [3600.0, -3600.0])
def test_the_services_clock_decides_not_the_machines(
    shift: float, through: str, http_proxy: HttpProxy, make: Making
) -> None:
    """60: a machine that is an hour off its service is like every other one."""
    http_proxy.shift(shift)
    boundary = make(through, lease="60s", window="30m")
    with boundary.claim("key") as claim:
        item = _item(boundary.name)
        assert abs(int(item["updated"]) / 1e6 - time.time() - shift) < 300
        assert int(item["lease_until"] - item["updated"]) == 60_000_000 + MARGIN
        claim.result = 1
    with boundary.claim("key") as claim:
        assert claim.replayed


def test_others_wait_the_margin_longer_than_the_holder_relies_on(dynamodb: str, make: Making) -> None:
    """60: a holder stops relying on its lease the margin before anybody else may take it over."""
    boundary = make(dynamodb, lease="1s")
    with boundary.claim("key"):
        item = _item(boundary.name)
        assert int(item["lease_until"] - item["updated"]) == 1_000_000 + MARGIN
    assert DynamodbStore.capabilities.margin == MARGIN >= 2_000_000


@pytest.mark.slow
@pytest.mark.fault(64)
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_worker_stopped_beyond_its_lease_is_fenced(colour: str, dynamodb: str, make: Making) -> None:
    """64, and 15 and 17 with it."""
    boundary = make(dynamodb, lease="60s", concurrency=wait(DEADLINE))
    with Child("stopped", dynamodb, boundary.name, colour) as worker:
        assert worker.hears() == "holding"
        worker.process.send_signal(signal.SIGSTOP)
        with boundary.claim("key") as claim:  # waits until the lease has lapsed
            assert not claim.replayed
            claim.result = "second"
        worker.process.send_signal(signal.SIGCONT)
        worker.go_on()
        assert worker.hears() == "ensure_held: LeaseLost"
        assert worker.hears() == "LeaseLost"
        worker.ends()
    with boundary.claim("key") as claim:
        assert claim.result == "second"


@pytest.mark.slow
def test_without_a_date_a_lease_is_watched_for_its_whole_length(
    through: str, http_proxy: HttpProxy, make: Making, told: Told
) -> None:
    """Not correctable: who sees an old lease for the first time does not take it over, whatever its own clock says."""
    gone = make(dynamodb_url(), lease=0.2)
    want = gone.entrypoint.open("key", operation=gone.name, fingerprint=b"")._require_request()
    run(claim(connect(dynamodb_url()).store, want), connect(dynamodb_url()).client())
    _move(want.key, -86400)
    http_proxy.date = lambda date: None
    watching = make(through, name=gone.name, lease=0.2)
    with pytest.raises(InProgress), watching.claim("key"):
        pytest.fail("seen for the first time")
    assert [o.fields["setting"] for o in told.occurrences if o.name == "store_warning"] == ["clock"]
    until(lambda: _claims(watching))
    assert records_of(dynamodb_url(), gone.name) == [("completed", 2)]
    with watching.claim("key") as replay:
        assert (replay.replayed, replay.result) == (True, "second")


def _claims(boundary: Boundary) -> bool:
    try:
        with boundary.claim("key") as claimed:
            claimed.result = "second"
        return True
    except InProgress:
        return False


def _move(key: bytes, seconds: int) -> None:
    """Let a record be of another time."""
    client = _client(dynamodb_endpoint())
    names = ("lease_until", "created", "updated", "expires", "forget")
    client.update_item(
        TableName=DYNAMODB_TABLE,
        Key={"key_hash": {"B": key}},
        UpdateExpression="SET " + ", ".join(f"#{name} = #{name} + :by" for name in names),
        ExpressionAttributeNames={f"#{name}": name for name in names},
        ExpressionAttributeValues={":by": {"N": str(seconds * 1_000_000)}},
    )
    client.close()


# ---------------------------------------------------------------- size


@pytest.mark.fault(49)
def test_the_largest_result_fits_and_one_byte_more_is_withheld(own_table: str, make: Making, told: Told) -> None:
    """49: with the longest names that there can be."""
    boundary = make(own_table, name=unique() + "é" * 200, scope="ü" * 255)
    runs: list[int] = []

    @boundary.once(key="length")
    def report(length: int) -> str:
        runs.append(length)
        return "x" * length

    for _ in range(2):
        assert len(report(LARGEST - 2)) == LARGEST - 2  # two quotation marks
    for _ in range(2):
        with pytest.raises(ResultNotEncodable):
            report(LARGEST - 1)
    assert runs == [LARGEST - 2, LARGEST - 1]
    assert told.names["result_withheld"] == 1
    assert {state for state, _ in records_of(own_table, boundary.name)} == {"completed"}


def test_the_reserve_for_the_fixed_part_suffices(own_table: str, make: Making) -> None:
    """49: the largest fixed part that a claim accepts, and the largest result beside it, are one item."""
    boundary = make(own_table)
    with boundary.claim("key") as claim:
        (item,) = items_of(own_table, "boundary", boundary.name)
        room = RESERVED - 512 - size_of({name: _plain(value) for name, value in item.items()})
        claim.result = 1
    accepted = [
        length
        for length in (room - 40, *range(room - 3, room + 4), room + 39)
        if _takes(boundary, f"key{length}", b"f" * length)
    ]
    assert room - 40 in accepted
    assert room + 39 not in accepted
    assert {state for state, _ in records_of(own_table, boundary.name)} == {"completed"}


def _takes(boundary: Boundary, key: str, fingerprint: bytes) -> bool:
    try:
        with boundary.entrypoint.open(key, operation=boundary.name, fingerprint=fingerprint) as claimed:
            claimed.result = "x" * (LARGEST - 2)
    except ConfigurationError:
        return False
    return True


def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else int(value) if hasattr(value, "quantize") else bytes(value)


@pytest.mark.fault(49)
def test_a_fixed_part_that_is_too_large_is_refused_before_the_effect(dynamodb: str, make: Making) -> None:
    """49: no payload of today makes one; a fingerprint of tomorrow may."""
    boundary = make(dynamodb)
    claimed = boundary.entrypoint.open("key", operation=boundary.name, fingerprint=b"f" * RESERVED)
    with pytest.raises(ConfigurationError, match="without its result"), claimed:
        pytest.fail("it must not run")
    assert records_of(dynamodb, boundary.name) == []


def test_a_failure_that_is_too_large_is_shortened(dynamodb: str, make: Making) -> None:
    boundary = make(dynamodb, permanent=ValueError)
    with pytest.raises(ValueError, match="no"), boundary.claim("key"):
        raise ValueError("no" * LARGEST)
    with pytest.raises(StoredFailure) as caught, boundary.claim("key"):
        pytest.fail("it has failed")
    assert caught.value.message.startswith("nono")
    assert len(caught.value.message) < 2000


# ---------------------------------------------------------------- the table


def test_a_missing_table_is_named_with_the_command_that_creates_it(dynamodb: str, make: Making) -> None:
    url = dynamodb_url("nothing-there")
    boundary = make(url)
    missing = pytest.raises(
        SchemaOutdated, match=r"no DynamoDB table.* retrysafe migrate --store 'dynamodb://nothing-there"
    )
    with missing, boundary.claim("key"):
        pytest.fail("there is no table")


def test_a_table_that_vanishes_later_is_said_to(dynamodb: str, make: Making, told: Told) -> None:
    name = unique("table")
    boundary = make(dynamodb_url(name))
    connect(dynamodb_url(name)).migrate()
    with boundary.claim("key") as claim, dropped(name):
        claim.result = 1
    assert told.names["settle_deferred"] == 1
    with pytest.raises(SchemaOutdated), boundary.claim("key"):
        pytest.fail("there is no table")


def test_migrating_creates_once_and_mends_the_time_to_live(dynamodb: str, make: Making, told: Told) -> None:
    name = unique("table")
    client, backend = _client(dynamodb_endpoint()), connect(dynamodb_url(name))
    made = [f"{part} {table}" for table in (name, f"{name}_steps") for part in ("table", "time to live of")]
    assert [step.name for step in backend.migrate()] == made
    assert backend.migrate() == []
    with dropped(name):
        off = {"Enabled": False, "AttributeName": "ttl"}
        client.update_time_to_live(TableName=name, TimeToLiveSpecification=off)
        boundary = make(dynamodb_url(name))
        with boundary.claim("key") as claim:
            claim.result = 1
        warnings = [o.fields["setting"] for o in told.occurrences if o.name == "store_warning"]
        assert warnings == ["time to live"]
        assert [step.version for step in backend.migrate()] == [2]
        assert client.describe_time_to_live(TableName=name)["TimeToLiveDescription"]["AttributeName"] == "ttl"
    client.close()


def test_the_command_creates_the_table_and_has_no_sql(dynamodb: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = unique("table")
    steps = f"applied 0003 table {name}_steps\napplied 0004 time to live of {name}_steps\n"
    for shown in (f"applied 0001 table {name}\napplied 0002 time to live of {name}\n{steps}", "up to date\n"):
        assert main(["migrate", "--store", dynamodb_url(name)]) == 0
        assert capsys.readouterr().out == shown
    with dropped(name):
        assert main(["migrate", "--store", dynamodb_url(name), "--sql"]) == 2
        assert "has no SQL schema" in capsys.readouterr().err


async def test_migrating_on_an_event_loop(dynamodb: str) -> None:
    name = unique("table")
    backend = connect(dynamodb_url(name))
    assert len(await backend.amigrate()) == 4
    assert await backend.amigrate() == []
    await backend.aclose()
    with dropped(name):
        pass


@pytest.mark.parametrize(
    "key", [[("id", "B", "HASH")], [("key_hash", "S", "HASH")], [("key_hash", "B", "HASH"), ("at", "N", "RANGE")]]
)
def test_a_table_of_somebody_else_is_refused(key: list[tuple[str, str, str]], dynamodb: str, make: Making) -> None:
    name, client = unique("table"), _client(dynamodb_endpoint())
    client.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": part, "KeyType": kind} for part, _, kind in key],
        AttributeDefinitions=[{"AttributeName": part, "AttributeType": kind} for part, kind, _ in key],
        BillingMode="PAY_PER_REQUEST",
    )
    with dropped(name):
        with pytest.raises(ConfigurationError, match="binary partition key"):
            connect(dynamodb_url(name)).migrate()
        with pytest.raises(ConfigurationError, match="binary partition key"), make(dynamodb_url(name)).claim("key"):
            pytest.fail("another table")
    client.close()


def test_a_time_to_live_on_another_attribute_is_not_taken_away(dynamodb: str) -> None:
    name, client = unique("table"), _client(dynamodb_endpoint())
    backend = connect(dynamodb_url(name))
    backend.migrate()
    with dropped(name):
        for enabled, attribute in ((False, "ttl"), (True, "other")):
            there = {"Enabled": enabled, "AttributeName": attribute}
            client.update_time_to_live(TableName=name, TimeToLiveSpecification=there)
        with pytest.raises(ConfigurationError, match="on the attribute 'other'"):
            backend.migrate()
    client.close()


@pytest.mark.slow
def test_a_worker_without_permission_to_look_at_settings_may_work(
    through: str, http_proxy: HttpProxy, make: Making, told: Told
) -> None:
    http_proxy.code = "AccessDeniedException"
    http_proxy.fates = lambda operation, _: "turned away" if operation.startswith("Describe") else "through"
    boundary = make(through)
    with boundary.claim("key") as claim:
        claim.result = 1
    assert [o.fields["setting"] for o in told.occurrences if o.name == "store_warning"] == ["table"]
    assert _item(boundary.name)["state"] == "completed"


def test_sweeping_by_hand_removes_what_is_forgotten_and_mends_what_lost_its_time_to_live(dynamodb: str) -> None:
    """After a restore: a table without time to live, and items that lost theirs."""
    name, client = unique("table"), _client(dynamodb_endpoint())
    backend = connect(dynamodb_url(name))
    backend.migrate()
    boundary = Boundary(unique(), store=dynamodb_url(name), effects="external", observers=())
    with dropped(name):
        for key in ("kept", "forgotten", "lost"):
            with boundary.claim(key) as claim:
                claim.result = key
        with pytest.raises(ZeroDivisionError), boundary.claim("unknown"):
            raise ZeroDivisionError
        with boundary.claim("running"):
            keys = {
                key: boundary.entrypoint.lookup(key, operation=boundary.name)
                for key in ("kept", "forgotten", "lost", "unknown", "running")
            }
            for key in ("forgotten", "unknown", "running"):
                _change(client, name, keys[key], "SET forget = :old, expires = :old", {":old": {"N": "1"}})
            _change(client, name, keys["lost"], "REMOVE #ttl", {}, {"#ttl": "ttl"})
            repaired: list[int] = []
            assert run(sweep(backend.store, 10, repaired.append), backend.client()) == 1
            assert sum(repaired) == 1
            assert run(sweep(backend.store, 10), backend.client()) == 0
        left = {bytes(item["key_hash"].value): item for item in items_of(dynamodb_url(name), "boundary", boundary.name)}
        assert set(left) == set(keys.values()) - {keys["forgotten"]}
        assert left[keys["lost"]]["ttl"] * 1_000_000 >= left[keys["lost"]]["forget"]
    boundary.close()
    client.close()


def _change(
    client: Any, table: str, key: bytes, update: str, values: dict[str, Any], names: dict[str, str] | None = None
) -> None:
    more = {"ExpressionAttributeValues": values} if values else {"ExpressionAttributeNames": names}
    client.update_item(TableName=table, Key={"key_hash": {"B": key}}, UpdateExpression=update, **more)


# ---------------------------------------------------------------- what store= takes


@each_row(
    ("url", "match"),
    [
        ("dynamodb://", "write dynamodb://table"),
        ("dynamodb://t1", "3 to 255 letters"),
        ("dynamodb://table/path", "write dynamodb://table"),
        ("dynamodb://table?zone=a", "has no option 'zone'"),
        ("dynamodb://table?pool=none", "pool is a number"),
        ("dynamodb://table?timeout=soon", "timeout='soon'"),
    ],
)
def test_a_url_that_says_something_else_is_refused(url: str, match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        Boundary("b", store=url)


def test_no_region_and_no_credentials_are_said(monkeypatch: pytest.MonkeyPatch, dynamodb: str) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    for url, match in (("dynamodb://table", "region"), (dynamodb, "credentials")):
        boundary = Boundary(unique(), store=url, observers=())
        with pytest.raises(ConfigurationError, match=match), boundary.claim("key"):
            pytest.fail("not claimed")
        boundary.close()

        async def asynchronous(boundary: Boundary) -> None:
            try:
                async with boundary.claim("key"):
                    pytest.fail("not claimed")
            finally:
                await boundary.aclose()

        with pytest.raises(ConfigurationError, match=match):
            asyncio.run(asynchronous(Boundary(unique(), store=url, observers=())))


async def test_a_client_of_aiobotocore_is_taken(dynamodb: str, make: Making) -> None:
    from aiobotocore.session import get_session

    async with get_session().create_client(
        "dynamodb", region_name="us-east-1", endpoint_url=dynamodb_endpoint()
    ) as client:
        await connect(client).amigrate()
        boundary = make(client)
        for replayed in (False, True):
            async with boundary.claim("key") as claim:
                assert claim.replayed is replayed
                if not replayed:
                    claim.result = 1
        with pytest.raises(ConfigurationError, match="async code only"), boundary.claim("key"):
            pytest.fail("it is async")
        await boundary.aclose()
        await client.list_tables()  # it is the user's, and still open


def test_other_clients_and_resources_are_refused(dynamodb: str) -> None:
    import boto3

    for other in (boto3.client("sts", region_name="us-east-1"), boto3.resource("dynamodb", region_name="us-east-1")):
        with pytest.raises(ConfigurationError, match=r"dynamodb|DynamoDB"):
            Boundary("b", store=other)


# ---------------------------------------------------------------- processes, loops, threads


@pytest.mark.slow
@pytest.mark.one_of("slow tests")
def test_a_fork_gets_connections_and_a_heartbeat_of_its_own(dynamodb: str, make: Making) -> None:
    """87."""
    with Child("forking", dynamodb, make(dynamodb).name, "keyed") as family:
        assert family.hears() == "[0, 0, 0]"
        assert family.hears() == "[True, True, True, True]"
        assert family.ends() == 0


def test_a_loop_that_ends_without_closing_leaves_nothing_open(dynamodb: str, make: Making) -> None:
    """`asyncio.run` once per task: the connections of an ended loop are let go at the next one."""
    boundary = make(dynamodb)

    async def use(key: str) -> None:
        async with boundary.claim(key) as claim:
            claim.result = key

    for number in range(3):
        asyncio.run(use(f"key{number}"))

    async def end() -> None:
        await use("last")
        await boundary.aclose()

    asyncio.run(end())


@pytest.mark.slow
async def test_many_first_calls_at_once_open_one_client(
    through: str, make: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    boundary = make(through)

    async def use(key: str) -> None:
        async with boundary.claim(key) as claim:
            claim.result = key

    made: list[AsyncGenerator[Any, None]] = []
    living = AsyncDynamodbClient._living

    async def slowly(client: AsyncDynamodbClient) -> AsyncGenerator[Any, None]:
        await asyncio.sleep(0)  # as finding credentials over the network takes a while
        async with aclosing(living(client)) as life:
            async for opened in life:
                yield opened

    def noted(client: AsyncDynamodbClient) -> AsyncGenerator[Any, None]:
        made.append(slowly(client))
        return made[-1]

    monkeypatch.setattr(AsyncDynamodbClient, "_living", noted)
    await asyncio.gather(*(use(f"key{i}") for i in range(20)))
    await auntil(lambda: len(records_of(dynamodb_url(), boundary.name)) == 20)
    assert len(made) == 1
    await boundary.aclose()
    assert made[0].ag_frame is None, "closing the boundary closes its client"
