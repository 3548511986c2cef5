"""The DynamoDB store without a server: what it asks when its clock is uncertain, and what it makes of settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from retrysafe.backends.dynamodb.expressions import STORED_AS
from retrysafe.backends.dynamodb.requests import Answer
from retrysafe.backends.dynamodb.store import MARGIN, DynamodbStore, size_of
from retrysafe.backends.dynamodb.table import Table
from retrysafe.errors import SchemaOutdated
from retrysafe.protocol.records import ClaimRequest, Clocks, EffectiveState, Finding, Ownership, Record
from retrysafe.protocol.requests import Ask
from tests.tables import each_row

SECOND = 1_000_000
NOW = 1_800_000_000 * SECOND
CLOCKS = Clocks(lease=30 * SECOND, window=3600 * SECOND, memory=3600 * SECOND, margin=MARGIN)
WANT = ClaimRequest(b"k" * 32, "boundary", "scope", "operation", b"p", "attempt", "keyed", CLOCKS)
HELD = Ownership(WANT.key, WANT.attempt, NOW, CLOCKS, False)


class Clock:
    """A clock as the test wants it."""

    def __init__(self, error: int = 0, *, corrected: bool = True) -> None:
        self.now = NOW
        self.error = error
        self.corrected = corrected

    def __call__(self) -> int:
        return self.now

    def local(self) -> int:
        return self.now - NOW


def store(clock: Clock) -> DynamodbStore:
    return DynamodbStore("table", clock, "dynamodb://table")


def lease_of(request: Ask[Any]) -> int:
    return int(request.request.arguments["ExpressionAttributeValues"][":set_lease_until"]["N"]) - NOW


@each_row(("error", "longer"), [(0, 0), (MARGIN, 0), (MARGIN + 1, 1), (5 * SECOND, 3 * SECOND)])
def test_a_clock_further_behind_than_the_margin_writes_longer_leases(error: int, longer: int) -> None:
    behind = store(Clock(error))
    released = seen(behind, state="released")
    for request in (behind.claim(WANT), behind.take(WANT, released), behind.renew([HELD])[0]):
        assert lease_of(request) == 32 * SECOND + longer


def stored(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The item that a claim writes, by its attributes."""
    names = {name: name.removeprefix(":set_") for name in fields}
    return {STORED_AS.get(names[name], names[name]): value for name, value in fields.items()}


def seen(judging: DynamodbStore, **changes: Any) -> Record:
    fields = judging.claim(WANT).request.arguments["ExpressionAttributeValues"]
    item = stored(fields)
    item |= {"key_hash": {"B": WANT.key}} | {name: {"S": value} for name, value in changes.items()}
    record = judging.read(WANT.key).parse(Answer(None, {"Item": item}))
    assert record is not None
    return record


def test_without_a_clock_a_lease_lapses_when_it_was_seen_unchanged_for_its_length() -> None:
    clock = Clock(corrected=False)
    watching = store(clock)
    assert seen(watching).effective_state is EffectiveState.RUNNING
    clock.now += 365 * 86400 * SECOND  # another machine writes this, by its own clock
    writer = store(Clock(corrected=False))
    item = stored(writer.claim(WANT).request.arguments["ExpressionAttributeValues"])
    answer = Answer(None, {"Item": {**item, "key_hash": {"B": b"o" * 32}}})

    def look() -> Record:
        record = watching.read(b"o" * 32).parse(answer)
        assert record is not None
        return record

    assert look().effective_state is EffectiveState.RUNNING
    clock.now += 32 * SECOND - 1
    assert look().effective_state is EffectiveState.RUNNING
    clock.now += 1
    lapsed = look()
    assert lapsed.effective_state is EffectiveState.LAPSED
    values = watching.take(WANT, lapsed).request.arguments["ExpressionAttributeValues"]
    assert int(values[":now"]["N"]) == lapsed.now == lapsed.lease_until


def test_the_size_of_an_item_is_as_the_service_counts_it() -> None:
    assert size_of({"ab": "é", "c": b"123", "n": 1234567}) == (2 + 2) + (1 + 3) + (1 + 5)


# ---------------------------------------------------------------- settings


def table(**changes: Any) -> dict[str, Any]:
    described = {
        "TableStatus": "ACTIVE",
        "KeySchema": [{"AttributeName": "key_hash", "KeyType": "HASH"}],
        "AttributeDefinitions": [{"AttributeName": "key_hash", "AttributeType": "B"}],
        "BillingModeSummary": {"BillingMode": "PAY_PER_REQUEST"},
    }
    return {"Table": {**described, **changes}}


def found(**changes: Any) -> list[Finding]:
    return Table("table", "Run: …").examine()[0].parse(Answer(None, table(**changes)))


def test_a_table_as_it_should_be_is_a_fact() -> None:
    assert found() == [Finding("fact", "billing", "on demand")]


def test_a_provisioned_table_is_told_with_its_rates() -> None:
    rates = {"ReadCapacityUnits": 5, "WriteCapacityUnits": 7}
    (fact,) = found(BillingModeSummary={}, ProvisionedThroughput=rates)
    assert "5 reads and 7 writes" in fact.text


@each_row(("consistency", "level"), [({}, "warn"), ({"MultiRegionConsistency": "STRONG"}, "fact")])
def test_a_global_table_is_warned_of_unless_it_is_strongly_consistent(consistency: dict[str, str], level: str) -> None:
    finding = found(Replicas=[{"RegionName": "eu-west-1"}, {"RegionName": "us-east-2"}], **consistency)[-1]
    assert (finding.level, finding.name) == (level, "global table")
    assert "eu-west-1, us-east-2" in finding.text


@each_row("status", ["CREATING", "DELETING", "INACCESSIBLE_ENCRYPTION_CREDENTIALS"])
def test_a_table_that_is_not_active_cannot_be_used(status: str) -> None:
    with pytest.raises(SchemaOutdated, match=status):
        found(TableStatus=status)


def test_backups_are_told_where_the_service_tells() -> None:
    looking = Table("table", "Run: …")
    on = {"PointInTimeRecoveryDescription": {"PointInTimeRecoveryStatus": "ENABLED"}}
    (fact,) = looking.backup_findings(Answer(None, {"ContinuousBackupsDescription": on}))
    assert fact == Finding("fact", "point-in-time recovery", "enabled")
    assert looking.backup_findings(Answer("UnknownOperationException", {})) == []
