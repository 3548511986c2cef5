"""The SQL store: builds each request as a statement with parameters, and a parser of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypeGuard

from retrysafe.backends.spec import StoreDefaults
from retrysafe.backends.sql import reading, selection
from retrysafe.backends.sql.statements import (
    LIMITED,
    SqlStatements,
    limit_by,
    params_of_seen,
    quota_params,
    result_params,
    want_params,
)
from retrysafe.backends.sql.table import allowed, columns
from retrysafe.backends.sql.transactions import SqlTransactions
from retrysafe.protocol.records import (
    Allowance,
    ClaimRequest,
    Clocks,
    Count,
    Filter,
    Ownership,
    Page,
    QuotaRefusal,
    Record,
    StoredResult,
    Tally,
)
from retrysafe.protocol.requests import Ask, Query
from retrysafe.protocol.store import Capabilities
from retrysafe.protocol.transitions import RULES, Guard, Transition, count_started, merge_fingerprint

AT_ONCE = 1000
"""The number of archived records that one statement removes."""

_RESOLVING: tuple[Transition, ...] = tuple(
    event for event, rule in RULES.items() if rule.guard is Guard.SEEN and event is not Transition.CLAIM
)


class SqlStore(SqlStatements, SqlTransactions, StoreDefaults):
    """Records in a table of a database; what databases do differently is in the class variables and overridden."""

    capabilities: ClassVar[Capabilities]
    CLAIMS_MANY: ClassVar[bool] = True
    """True if keys can be claimed many at once without waiting for others."""
    KEEPS_MESSAGES: ClassVar[bool] = True
    """True if it has tables and statements for an outbox and an inbox."""
    NOTIFY: ClassVar[str | None] = None
    """A statement that tells who listens for it that the outbox was written to."""
    LOCKS_ROWS: ClassVar[bool] = True
    """True if a row can be held for a transaction while others write; else one writer holds all."""

    def __init__(self) -> None:
        clock = self.clock = f"(SELECT {self.NOW} AS now) AS t"
        self.read_sql = f"SELECT {columns('r.')}, t.now FROM {self.READ}, {clock} WHERE r.key_hash = {self.p('key')}"
        self.insert_sql = self._insert(clock)
        self._room_sql = {limited: self._room(limited) for limited in LIMITED}
        self._usage_sql = {limited: self._usage(clock, limited) for limited in LIMITED}
        self._counted_insert_sql = {
            limited: self._insert(clock, f" WHERE {room}", counted=True) for limited, room in self._room_sql.items()
        }
        self._take_sql = {gated: self._take(clock, self.GATE if gated else "") for gated in (False, True)}
        self._settle_sql = {
            (event, in_tx): self._settle(clock, event, in_tx)
            for event in (Transition.COMPLETE, Transition.FAIL, Transition.DOUBT, Transition.RELEASE)
            for in_tx in (False, True)
        }
        self._resolve_sql: dict[Transition, str] = {event: self._resolve(clock, event) for event in _RESOLVING}
        self._sweep_sql = self._sweep(clock)
        self._forgotten_sql = self._forgotten(clock)
        self._tally_sql = self._tally(clock)

    # ------------------------------------------------------------ asks

    def claim(self, request: ClaimRequest) -> Ask[Record | QuotaRefusal | None]:
        """Insert a first record if its quota has room, or return the record that is there."""
        allowance = request.quota
        if allowance is None:
            return Ask(self.claim_query(request), reading.record)
        return Ask(
            self.claim_query_with_quota(request, allowance), lambda answer: reading.record_or_usage(answer, allowance)
        )

    def claim_query(self, request: ClaimRequest) -> Query:
        """Read first when leased, so that a replay writes nothing; write first inside a transaction."""
        params = want_params(request)
        insert = self.query(self.insert_sql, params, self.query(self.read_sql, params, writes=False))
        return insert if request.transactional else self.query(self.read_sql, params, insert, writes=False)

    def claim_query_with_quota(self, request: ClaimRequest, allowance: Allowance) -> Query:
        """`claim_query` with a quota: inserts only while there is room; no record afterwards means no room."""
        limited, params = limit_by(allowance), want_params(request) | quota_params(allowance)
        usage = self.query(self._usage_sql[limited], params, writes=False)
        read = self.query(self.read_sql, params, usage, writes=False)
        insert = self.query(self._counted_insert_sql[limited], params, read)
        return insert if request.transactional else read._replace(otherwise=insert)

    def take(self, request: ClaimRequest, seen: Record) -> Ask[Record | None]:
        params = want_params(request) | params_of_seen(seen)
        params |= {"attempts": count_started(seen) + 1, "fingerprint": merge_fingerprint(request, seen)}
        return Ask(self.query(self._take_sql[request.transactional], params), reading.record)

    def settle(self, ownership: Ownership, event: Transition, result: StoredResult | None) -> Ask[bool]:
        params = {
            "key": ownership.key,
            "attempt": ownership.attempt,
            "token": ownership.token,
            "window": ownership.clocks.window,
            "memory": ownership.clocks.memory,
            "own_schema": None if ownership.scoped or not ownership.transactional else "",
            **result_params(result),
        }
        return Ask(self.query(self._settle_sql[event, ownership.transactional], params), reading.has_changed_one)

    def resolve(self, seen: Record, event: Transition, result: StoredResult | None, clocks: Clocks) -> Ask[bool]:
        params = {
            "key": seen.key,
            "window": clocks.window,
            "memory": clocks.memory,
            **params_of_seen(seen),
            **result_params(result),
        }
        return Ask(self.query(self._resolve_sql[event], params), reading.has_changed_one)

    def renew(self, ownerships: Sequence[Ownership]) -> list[Ask[set[bytes]]]:
        """Extend leases, all in one statement, sorted by key so that two batches cannot deadlock."""
        params: dict[str, Any] = {}
        for i, one in enumerate(sorted(ownerships)):
            params |= {
                f"key{i}": one.key,
                f"attempt{i}": one.attempt,
                f"token{i}": one.token,
                f"lease{i}": one.clocks.lease,
                f"window{i}": one.clocks.window,
                f"memory{i}": one.clocks.memory,
            }
        return [Ask(self.renew_query(len(ownerships), params), reading.keys)] if ownerships else []

    def read(self, key: bytes) -> Ask[Record | None]:
        return Ask(self.query(self.read_sql, {"key": key}, writes=False), reading.record)

    def sweep(self, limit: int) -> list[Ask[int]]:
        return [Ask(self.query(self._sweep_sql, {"limit": limit}), reading.count)]

    # ------------------------------------------------------------ many at once

    def claim_many(self, requests: Sequence[ClaimRequest]) -> Ask[dict[bytes, int]]:
        ordered = sorted(requests)
        rows, params = self.rows_of([request.key for request in ordered], [request.fingerprint for request in ordered])
        found = self.query(self.claim_many_sql(rows), want_params(requests[0]) | params)
        return Ask(found, lambda answer: {bytes(key): int(token) for key, token in answer.rows})

    def read_many(self, keys: Sequence[bytes]) -> Ask[dict[bytes, Record]]:
        among, params = self.among("key", "key", keys)
        sql = f"SELECT {columns('r.')}, t.now FROM {self.READ}, {self.clock} WHERE r.key_hash {among}"
        found = self.query(sql, params, writes=False)
        return Ask(found, lambda answer: {record.key: record for record in reading.records(answer)})

    def complete_many(self, ownerships: Sequence[Ownership], result: StoredResult) -> Ask[int]:
        first, stamp = ownerships[0], f" AND r.xact = {self.STAMP}" if self.STAMP else ""
        among, params = self.among("key", "key", [one.key for one in ownerships])
        params |= {"attempt": first.attempt, "window": first.clocks.window, "memory": first.clocks.memory}
        params["own_schema"] = None if first.scoped else ""
        sql = self._update(
            f"state = '{RULES[Transition.COMPLETE].target}', {self._result()}, {self._set_written()}",
            self.clock,
            f"r.key_hash {among} AND r.attempt = {self.p('attempt')} AND {allowed(Transition.COMPLETE)}{stamp}",
        )
        return Ask(self.query(sql, params | result_params(result)), reading.count)

    # ------------------------------------------------------------ asks of an operator

    def forgotten(self, limit: int) -> list[Ask[list[Record]]]:
        """Return up to ``limit`` forgotten records, the longest forgotten first."""
        return [Ask(self.query(self._forgotten_sql, {"limit": limit}, writes=False), reading.records)]

    def remove(self, seen: Sequence[Record]) -> list[Ask[int]]:
        """Remove those that are still as seen and forgotten; databases bound the parameters of a statement."""
        return [self._remove(seen[start : start + AT_ONCE]) for start in range(0, len(seen), AT_ONCE)]

    def _remove(self, seen: Sequence[Record]) -> Ask[int]:
        params: dict[str, Any] = {}
        for i, record in enumerate(seen):
            params |= {f"key{i}": record.key, f"version{i}": record.version}
        return Ask(self.query(self.remove_sql(len(seen)), params), reading.count)

    def scan(self, wanted: Filter, cursor: str | None, limit: int) -> Ask[Page]:
        """Return a page, in the order of an index; see `selection`."""
        return selection.page(self, wanted, cursor, limit)

    def count_selected(self, wanted: Filter, most: int) -> list[Ask[Count]]:
        return selection.counts(self, wanted, most)

    def tally(self) -> list[Ask[list[Tally]]]:
        return [Ask(self.query(self._tally_sql, {}, writes=False), reading.tallies)]

    own_schema: str | None = ""
    """The schema of our own connections: a claim without a tenant is refused under another, a tenant's.

    PostgreSQL begins with None, until `StoreDatabase.find_own_schema` has asked; "" is compared with none. Claims have
    it as a parameter, None for those with a tenant. PostgreSQL compares it in its statements, Django's driver before
    them; SQLAlchemy's, unless it is None, refuses a connection on which it has seen a schema chosen.
    """

    def schema(self) -> Ask[tuple[str, bool]]:
        """The schema of a connection, and whether nothing has been set there since it was connected."""
        raise NotImplementedError

    WHEREABOUTS: ClassVar[str]
    """Answers with one row that no other database, or schema in it, gives at the same time."""

    def whereabouts(self) -> Ask[object]:
        """Ask for the database's identity; None for one that is like no other."""
        return Ask(Query(self.WHEREABOUTS, {}, writes=False), lambda answer: tuple(answer.rows[0]))

    def time(self) -> Ask[int]:
        """The database's clock, in microseconds since 1970."""
        return Ask(Query(f"SELECT {self.NOW}", {}, writes=False), lambda answer: int(answer.rows[0][0]))


def keeps_messages(store: object) -> TypeGuard[SqlStore]:
    """Tell whether a store has a place for the messages of an outbox and an inbox."""
    return isinstance(store, SqlStore) and store.KEEPS_MESSAGES
