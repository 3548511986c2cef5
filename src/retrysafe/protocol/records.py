"""The values that all layers share: records, claim requests, ownership, stored results, filters and limits."""

import hashlib
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from uuid import UUID

    from retrysafe.protocol.fingerprint import Fingerprint, Secrets

Effects = Literal["transactional", "keyed", "external"]


OnExpired = Literal["new", "refuse"]


OnMissing = Literal["error", "pass"]


Outcome = Literal["completed", "failed", "released"]
"""The outcomes with which a person or a probe can settle an attempt in doubt."""


Duration = float | int | timedelta | str


Key: TypeAlias = "str | int | UUID"


Micros = int
"""Whole microseconds: of a duration, or since the Unix epoch on the store's clock."""


class State(StrEnum):
    """The state as it is written in a record."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    UNKNOWN = "unknown"
    RELEASED = "released"


class EffectiveState(StrEnum):
    """The state of a key at one moment, from the written state and the record's clocks, on the store's time."""

    ABSENT = "absent"
    RUNNING = "running"
    LAPSED = "lapsed"
    COMPLETED = "completed"
    FAILED = "failed"
    UNKNOWN = "unknown"
    RELEASED = "released"
    EXPIRED = "expired"
    FORGOTTEN = "forgotten"


RUNNING = State.RUNNING
"""The state that every claim asks for: before Python 3.12 an enum gives its members slowly."""


class StoredResult(NamedTuple):
    """An encoded result: the bytes, their media type, and the version of the codec that wrote them.

    ``body`` is None when the result is withheld because it could not be encoded.
    """

    body: bytes | None
    media_type: str
    codec_version: int


class Record(NamedTuple):
    """One key's record as the store reported it, with the store's time of that report."""

    key: bytes
    boundary: str
    scope: str
    operation: str
    fingerprint: bytes
    state: State
    attempt: str
    token: int
    attempts: int
    effects: Effects
    lease_until: Micros
    created: Micros
    updated: Micros
    expires: Micros
    tombstone_until: Micros
    version: int
    result: StoredResult | None
    now: Micros

    @property
    def effective_state(self) -> EffectiveState:
        """The effective state at the time of the store's answer."""
        return self.effective_state_at(self.now)

    def effective_state_at(self, now: Micros) -> EffectiveState:
        """The effective state at another time of the store's clock."""
        state = self.state
        if state is RUNNING:
            return _STANDING[state] if self.lease_until > now else EffectiveState.LAPSED
        if state in _SETTLED:
            if self.tombstone_until <= now:
                return EffectiveState.FORGOTTEN
            if self.expires <= now:
                return EffectiveState.EXPIRED
        return _STANDING[state]

    @property
    def reported_state(self) -> EffectiveState:
        """The effective state as operators count it: one that lapsed in doubt is unknown.

        Its retries are refused until it is settled by hand or by a probe, although the first of them has yet to write
        that down.
        """
        state = self.effective_state
        return LAPSED_AS[self.effects] if state is EffectiveState.LAPSED else state

    @property
    def lease_left(self) -> float:
        """Seconds until the lease lapses; negative afterwards."""
        return (self.lease_until - self.now) / 1e6


_STANDING = {state: EffectiveState(state.value) for state in State}
_SETTLED = frozenset((State.COMPLETED, State.FAILED, State.RELEASED))


LAPSED_AS: dict[Effects, EffectiveState] = {
    "keyed": EffectiveState.LAPSED,
    "external": EffectiveState.UNKNOWN,
    "transactional": EffectiveState.UNKNOWN,
}
"""The state left by an attempt that died, by its effects: a key that the next attempt takes over, or one in doubt."""


class Clocks(NamedTuple):
    """The three separate clocks of a record, as durations.

    margin: how much longer other attempts respect a lease than its holder relies on it, where no server's clock
        decides for all.
    """

    lease: Micros
    window: Micros
    memory: Micros
    margin: Micros = 0


class Allowance(NamedTuple):
    """The quota of a scope: ``rate`` new keys in any ``period``, and ``outstanding`` keys kept. None means any number.

    ``holder`` is the name under which its keys are counted.
    """

    holder: bytes
    rate: int | None
    period: Micros
    outstanding: int | None


class QuotaRefusal(NamedTuple):
    """A refusal of a new key by a quota: the limit that it exceeds, and seconds until asking again makes sense."""

    limit: str
    retry_after: float


class ClaimRequest(NamedTuple):
    """The claim of one attempt: the key with its identity, the payload's fingerprint, and how long things are kept."""

    key: bytes
    boundary: str
    scope: str
    operation: str
    fingerprint: bytes
    attempt: str
    effects: Effects
    clocks: Clocks
    on_expired: OnExpired = "new"
    quota: Allowance | None = None
    payload: "Fingerprint | None" = None
    """The payload before it was keyed; None if ``fingerprint`` is not keyed."""
    secrets: "Secrets | None" = None
    scoped: bool = True
    """True if the scope names the tenant: else it is refused under a schema that only one tenant has."""
    recorded: str = ""
    """The operation as the record tells it, if not ``operation``: see `key_space`."""

    @property
    def transactional(self) -> bool:
        """True if the record shares a transaction with the effect."""
        return self.effects == "transactional"


class Ownership(NamedTuple):
    """A won claim. Every later write of the attempt is conditional on its attempt id and token."""

    key: bytes
    attempt: str
    token: int
    clocks: Clocks
    transactional: bool
    scoped: bool = True
    """False for a claim that names no tenant, as of `ClaimRequest`."""


HTTP = "http"
"""The operation of HTTP requests."""
ROUTED = f"{HTTP}: "
"""With this begins the operation of a record whose request's method and route are known."""


def key_space(operation: str) -> str:
    """The operation under which a record's key was claimed: "http" where it is told as "http: POST /orders/{id}"."""
    return HTTP if operation.startswith(ROUTED) else operation


OWN = (RELAY, REDRIVE) = ("retrysafe.relay", "retrysafe.redrive")
"""The library's own boundaries, whose keys are leases."""


class Filter(NamedTuple):
    """Selects records for an operator; None, and what is empty, selects all.

    operation: of HTTP requests also one route, as "http: POST /orders/{id}".
    states: as `Record.reported_state` has them.
    digits: the hex digits with which the key's hash begins, in lower case.
    since, until: the record was last written in these instants or between them.
    older_than: microseconds that have passed at least since the record was last written.
    own: also the leases of relays and redrives.
    """

    boundary: str | None = None
    operation: str | None = None
    scope: str | None = None
    states: frozenset[EffectiveState] = frozenset()
    digits: str = ""
    since: Micros | None = None
    until: Micros | None = None
    older_than: Micros | None = None
    own: bool = True

    def takes(self, record: Record) -> bool:
        """Tell whether the filter lets a record through."""
        return (
            self.boundary in (None, record.boundary)
            and self.operation in (None, record.operation, key_space(record.operation))
            and self.scope in (None, record.scope)
            and (not self.states or record.reported_state in self.states)
            and record.key.hex().startswith(self.digits)
            and (self.since is None or record.updated >= self.since)
            and (self.until is None or record.updated <= self.until)
            and (self.older_than is None or record.now - record.updated >= self.older_than)
            and (self.own or record.boundary not in OWN)
        )


class Page(NamedTuple):
    """Some records, without results, and the cursor of the next page; None at the end.

    A page may hold fewer records than were asked for, even none, and still not be the last.
    """

    records: list[Record]
    cursor: str | None


class Count(NamedTuple):
    """The number of selected records among those that were looked at; there may be more if it is ``capped``."""

    records: int
    capped: bool


class Tally(NamedTuple):
    """The number of records of a boundary in one reported state, and when the stalest was last written."""

    boundary: str
    state: EffectiveState
    records: int
    oldest: Micros
    now: Micros


class Cached(NamedTuple):
    """A cache's answer for a key, with the cache's time of that answer."""

    record: Record | None
    now: Micros


class Finding(NamedTuple):
    """A result of examining a server's settings.

    "refuse": no promise can be kept with this setting; "warn": a promise is weaker; "fact": for information.
    """

    level: Literal["refuse", "warn", "fact"]
    name: str
    text: str


def counted(number: int, *, capped: bool = False) -> str:
    """A count as it is told; ``capped``: not everything was looked at."""
    return f"{'at least ' * (capped and number > 0)}{number:,}"


class Partition(NamedTuple):
    """One of the tables that records are spread over by key hash, and its size in bytes."""

    schema: str
    name: str
    size: int

    @property
    def quoted(self) -> str:
        """Its name in a statement."""
        return ".".join('"' + part.replace('"', '""') + '"' for part in (self.schema, self.name))


class Layered(NamedTuple):
    """A durable store with a fast one in front of it, for ``store=``."""

    fast: Any
    truth: Any
    name: str
    at_most: Micros


class Sharded(NamedTuple):
    """Named stores that share the keys, for ``store=``; while keys move, also the map that other processes write by."""

    shards: dict[str, Any]
    other: "Sharded | None" = None

    def shard_of(self, key: bytes) -> str:
        """The name of the shard that this map gives to the hash of a key: of all, the one that scores highest."""
        return max(self.shards, key=lambda name: hashlib.sha256(name.encode() + key).digest())


class Reject(NamedTuple):
    """A simultaneous duplicate is told at once that the first is in progress."""


class Wait(NamedTuple):
    """A simultaneous duplicate waits up to ``seconds`` for the first one's result, if no more than ``at_most`` wait."""

    seconds: float
    at_most: int = 1000


Concurrency = Reject | Wait
