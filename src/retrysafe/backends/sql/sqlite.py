"""SQLite: writers are serial, so opening a transaction for writing is the lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retrysafe.backends.sql import reading
from retrysafe.backends.sql.store import SqlStore
from retrysafe.backends.sql.transactions import BATCH, in_its_transaction, mark_first, mark_of
from retrysafe.backends.urls import file_of
from retrysafe.protocol.records import Allowance, ClaimRequest, Ownership, QuotaRefusal, Record, StoredResult
from retrysafe.protocol.requests import Ask, Query, Rows
from retrysafe.protocol.store import Capabilities
from retrysafe.protocol.transitions import Transition, first_claim


class SqliteStore(SqlStore):
    """Records in a SQLite file. SQLite's clock has millisecond steps.

    A savepoint made by a transactional claim shows, when it is settled, that the transaction is still the same one.
    """

    capabilities = Capabilities(
        name="sqlite",
        transactions=True,
        waits_in_transaction=False,
        clock="the machine that holds the file",
        durability="every commit with synchronous=FULL, our default; NORMAL may lose the last commits at power loss",
        failover="there is no replica: the file is lost with its disk",
        cannot_survive=(
            "the loss of the machine or its disk: every record goes with it",
            "a network file system with broken locks: two machines may both win a claim",
            "a host clock that is set: leases and windows end early or late, never two holders of one token",
            "a restored backup: records since then are gone, and what they guarded may run again",
        ),
        choose_when="when one machine does the work, or you are starting: no server, and transactions with your tables",
        quotas="exactly: writers are serial",
        looks_first=True,
    )
    NOW = "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000"
    GREATEST = "max"
    LOCKS_ROWS = False
    BYTES = "length"
    BEGIN = "BEGIN IMMEDIATE"
    WHEREABOUTS = "PRAGMA database_list"
    HAS_SCHEMA = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'retrysafe_schema'"

    def __init__(self) -> None:
        super().__init__()
        self.read_sql = self.inline_clock(self.read_sql)
        insert = self.inline_clock(self.insert_sql.partition(" RETURNING ")[0])
        self.insert_sql = f"{_of_values(insert)} RETURNING created"
        self._settle_sql = {which: self.inline_clock(sql) for which, sql in self._settle_sql.items()}

    def inline_clock(self, sql: str) -> str:
        """A statement about one row without the clock as a table, which SQLite would write down for each of them.

        Within one step of a statement the clock stands still, and of one row there is one step.
        """
        beside = f", {self.clock}" if f", {self.clock}" in sql else f" FROM {self.clock}"
        return sql.replace(beside, "", 1).replace("t.now", f"({self.NOW})")

    def whereabouts(self) -> Ask[object]:
        """The file; None for a database in memory, which every connection has for itself."""
        query = Query(self.WHEREABOUTS, {}, writes=False)
        return Ask(query, lambda answer: file_of(next((path for _, name, path in answer.rows if name == "main"), None)))

    def along(self, table: str, places: Mapping[str, str], start: str, index: str) -> tuple[str, str]:
        at = " AND ".join(f"o.{name} = {value}" for name, value in places.items())
        return f"{table} AS o INDEXED BY {index} WHERE {at} AND o.id >= {start}", "o.id"

    def claim(self, request: ClaimRequest) -> Ask[Record | QuotaRefusal | None]:
        """Insert a first record, of which only the time comes back, or return the record that is there."""
        if request.quota is not None:
            return super().claim(request)
        return Ask(self.claim_query(request), lambda answer: _insert_or_meet(answer, request))

    def claim_query(self, request: ClaimRequest) -> Query:
        """In a transaction: mark it first."""
        claim = super().claim_query(request)
        return mark_first(mark_of(request), claim) if request.effects == "transactional" else claim

    def claim_query_with_quota(self, request: ClaimRequest, allowance: Allowance) -> Query:
        """Mark the transaction first, as `claim_query` does."""
        claim = super().claim_query_with_quota(request, allowance)
        return mark_first(mark_of(request), claim) if request.effects == "transactional" else claim

    def settle(self, ownership: Ownership, event: Transition, result: StoredResult | None) -> Ask[bool]:
        settle = super().settle(ownership, event, result)
        return in_its_transaction(mark_of(ownership), settle) if ownership.transactional else settle

    def claim_many(self, requests: Sequence[ClaimRequest]) -> Ask[dict[bytes, int]]:
        claim = super().claim_many(requests)
        return Ask(mark_first(BATCH, claim.request), claim.parse)

    def complete_many(self, ownerships: Sequence[Ownership], result: StoredResult) -> Ask[int]:
        return in_its_transaction(BATCH, super().complete_many(ownerships, result))


def _of_values(insert: str) -> str:
    """An insert of VALUES: a row that is selected, SQLite writes into a table of its own before it inserts it."""
    return insert.replace(" SELECT ", " VALUES (", 1).replace(" WHERE true ", ") ", 1)


def _insert_or_meet(answer: Rows, request: ClaimRequest) -> Record | None:
    if answer.rows and len(answer.rows[0]) == 1:
        return first_claim(request, answer.rows[0][0])
    return reading.record(answer)
