"""The table behind the DynamoDB store: how it is created, and what is looked at before it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retrysafe.backends.dynamodb.requests import Answer, Call
from retrysafe.errors import ConfigurationError, SchemaOutdated
from retrysafe.protocol.migrating import Migration
from retrysafe.protocol.records import Finding
from retrysafe.protocol.requests import Ask, Program, ask, nothing

KEY = "key_hash"
STEP = "step"
"""The sort key of the table of steps."""
TTL = "ttl"
MISSING = frozenset({"ResourceNotFoundException"})
_EXISTS = frozenset({"ResourceInUseException"})
_UNTOLD = frozenset({"AccessDeniedException", "UnknownOperationException", "ContinuousBackupsUnavailableException"})
"""A worker may lack the permission to see settings, and other implementations of the service the call."""
_USABLE = ("ACTIVE", "UPDATING")
_ON = ("ENABLED", "ENABLING")


class Table:
    """One table, by its name; ``migrate`` says how it is created.

    sort: the binary sort key, of a table that has one beside the binary partition key.
    """

    def __init__(self, name: str, migrate: str, sort: str | None = None) -> None:
        self._name = name
        self._key = {KEY: "HASH"} if sort is None else {KEY: "HASH", sort: "RANGE"}
        self._migrate = migrate

    # ------------------------------------------------------------ looking

    def examine(self) -> list[Ask[list[Finding]]]:
        """Is the table there, as we know it, and does it forget?"""
        return [
            Ask(self._describe(), self._table_findings),
            Ask(self._describe_ttl(), _ttl_findings),
        ]

    def _describe(self) -> Call:
        return Call("describe_table", {"TableName": self._name}, MISSING | _UNTOLD)

    def _describe_ttl(self) -> Call:
        return Call("describe_time_to_live", {"TableName": self._name}, MISSING | _UNTOLD)

    def backups(self) -> Call:
        return Call("describe_continuous_backups", {"TableName": self._name}, MISSING | _UNTOLD)

    def backup_findings(self, answer: Answer) -> list[Finding]:
        """A restore is what a record cannot survive."""
        if answer.refused is not None:
            return []
        described = answer.response["ContinuousBackupsDescription"].get("PointInTimeRecoveryDescription", {})
        return [
            Finding(
                "fact", "point-in-time recovery", str(described.get("PointInTimeRecoveryStatus", "unknown")).lower()
            )
        ]

    def _table_findings(self, answer: Answer) -> list[Finding]:
        if answer.refused in _UNTOLD:
            return [Finding("warn", "table", "The permission dynamodb:DescribeTable is missing, so it is unchecked.")]
        if answer.refused is not None:
            raise SchemaOutdated(
                f"There is no DynamoDB table {self._name!r} in this account and region. {self._migrate}"
            )
        table = answer.response["Table"]
        if table["TableStatus"] not in _USABLE:
            raise SchemaOutdated(f"The DynamoDB table {self._name!r} is {table['TableStatus']}. {self._migrate}")
        found = [Finding("fact", "billing", _billing(table))]
        if not self._is_ours(table):
            found.append(Finding("refuse", "key", self._other_key(table)))
        return found + _replicas(table)

    def _is_ours(self, table: Mapping[str, Any]) -> bool:
        key = {part["AttributeName"]: part["KeyType"] for part in table["KeySchema"]}
        kinds = {part["AttributeName"]: part["AttributeType"] for part in table["AttributeDefinitions"]}
        return key == self._key and all(kinds[name] == "B" for name in key)

    def _other_key(self, table: Mapping[str, Any]) -> str:
        shown = ", ".join(f"{part['AttributeName']} ({part['KeyType']})" for part in table["KeySchema"])
        return (
            f"The table {self._name!r} has the key {shown}, and this store needs one with the binary partition key "
            f"{KEY!r} {f'and the binary sort key {STEP!r}' if STEP in self._key else 'alone'}: name another table."
        )

    # ------------------------------------------------------------ creating

    def create(self, first: int) -> Program[list[Migration]]:
        """Create the table and switch its time to live on, numbered from the first; what is there already stays."""
        done: list[Migration] = []
        table = yield from ask(Ask(self._describe(), _read_description))
        if table is None:
            yield from ask(Ask(self._creation(), nothing))
            done.append(Migration(first, f"table {self._name}", ()))
        elif not self._is_ours(table):
            raise ConfigurationError(f"store=: {self._other_key(table)}")
        waiting = {"TableName": self._name, "WaiterConfig": {"Delay": 1, "MaxAttempts": 120}}
        yield from ask(Ask(Call("table_exists", waiting, waits=True), nothing))
        told = yield from ask(Ask(self._describe_ttl(), _tell_ttl))
        status, attribute = told.get("TimeToLiveStatus"), told.get("AttributeName")
        if status in _ON and attribute != TTL:
            raise ConfigurationError(
                f"store=: the time to live of table {self._name!r} is on the attribute {attribute!r}, not on {TTL!r}. "
                "Switch it off first: a table has one."
            )
        if status not in _ON:
            on = {"TableName": self._name, "TimeToLiveSpecification": {"Enabled": True, "AttributeName": TTL}}
            yield from ask(Ask(Call("update_time_to_live", on), nothing))
            done.append(Migration(first + 1, f"time to live of {self._name}", ()))
        return done

    def _creation(self) -> Call:
        arguments = {
            "TableName": self._name,
            "KeySchema": [{"AttributeName": name, "KeyType": kind} for name, kind in self._key.items()],
            "AttributeDefinitions": [{"AttributeName": name, "AttributeType": "B"} for name in self._key],
            "BillingMode": "PAY_PER_REQUEST",
        }
        return Call("create_table", arguments, _EXISTS)


def beside(table: str) -> str:
    return f"{table}_steps"


def _read_description(answer: Answer) -> Mapping[str, Any] | None:
    if answer.refused in _UNTOLD:
        raise ConfigurationError("store=: the permission dynamodb:DescribeTable is missing, and migrating needs it.")
    return None if answer.refused is not None else answer.response["Table"]


def _tell_ttl(answer: Answer) -> Mapping[str, Any]:
    description: Mapping[str, Any] = answer.response.get("TimeToLiveDescription", {})
    return description


def _billing(table: Mapping[str, Any]) -> str:
    mode = table.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED")
    if mode != "PROVISIONED":
        return "on demand"
    rate = table["ProvisionedThroughput"]
    reads, writes = rate["ReadCapacityUnits"], rate["WriteCapacityUnits"]
    return f"provisioned for {reads} reads and {writes} writes a second; what exceeds it is throttled"


def _replicas(table: Mapping[str, Any]) -> list[Finding]:
    regions = ", ".join(replica["RegionName"] for replica in table.get("Replicas", []))
    if not regions:
        return []
    if table.get("MultiRegionConsistency") == "STRONG":
        return [Finding("fact", "global table", f"strongly consistent with {regions}")]
    return [
        Finding(
            "warn",
            "global table",
            f"The table is replicated to {regions}, and the last writer wins between regions: two regions can both win "
            "a claim, and both will act. Claim every key in one region only.",
        )
    ]


def _ttl_findings(answer: Answer) -> list[Finding]:
    if answer.refused is not None:
        return []
    told = _tell_ttl(answer)
    if told.get("TimeToLiveStatus") in _ON and told.get("AttributeName") == TTL:
        return [Finding("fact", "time to live", "on")]
    text = f"The time to live of the table is not on for {TTL!r}: records are never removed. Run retrysafe migrate."
    return [Finding("warn", "time to live", text)]
