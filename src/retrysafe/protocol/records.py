"""The values that every layer speaks: records, wants, holds, results and choices."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from typing import Any, Literal, NamedTuple
from uuid import UUID

Effects = Literal["transactional", "keyed", "external"]


OnExpired = Literal["new", "refuse"]


OnMissing = Literal["error", "pass"]


Outcome = Literal["completed", "failed", "released"]
"""What a person or a probe can find out about an attempt in doubt."""


Duration = float | int | timedelta | str


Key = str | int | UUID


Micros = int
"""Whole microseconds: of a duration, or since the Unix epoch on the store's clock."""


class State(StrEnum):
    """What is written in a record."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    UNKNOWN = "unknown"
    RELEASED = "released"


class EffectiveState(StrEnum):
    """What a record amounts to at this moment: its state and its clocks, on the store's time."""

    ABSENT = "absent"
    RUNNING = "running"
    LAPSED = "lapsed"
    COMPLETED = "completed"
    FAILED = "failed"
    UNKNOWN = "unknown"
    RELEASED = "released"
    EXPIRED = "expired"
    FORGOTTEN = "forgotten"


class StoredResult(NamedTuple):
    """An encoded result: bytes, what kind of bytes, and which version of the codec wrote them.

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
        """What the record amounts to, judged by the store's clocks alone."""
        return self.effective_state_at(self.now)

    def effective_state_at(self, now: Micros) -> EffectiveState:
        """What the record amounts to at another time of the store."""
        if self.state is State.RUNNING:
            return EffectiveState.RUNNING if self.lease_until > now else EffectiveState.LAPSED
        if self.state is State.UNKNOWN:
            return EffectiveState.UNKNOWN
        if self.tombstone_until <= now:
            return EffectiveState.FORGOTTEN
        if self.expires <= now:
            return EffectiveState.EXPIRED
        return _SETTLED[self.state]

    @property
    def lease_left(self) -> float:
        """Seconds until the lease lapses; negative afterwards."""
        return (self.lease_until - self.now) / 1e6


_SETTLED = {state: EffectiveState(state.value) for state in (State.COMPLETED, State.FAILED, State.RELEASED)}


class Clocks(NamedTuple):
    """The three separate clocks of a record, as durations.

    margin: how much longer than its holder others believe in a lease, where no server's clock judges for all.
    """

    lease: Micros
    window: Micros
    memory: Micros
    margin: Micros = 0


class Allowance(NamedTuple):
    """What a scope may claim: ``rate`` new keys in any ``period``, and ``outstanding`` keys kept; None: any number.

    ``holder`` is the name under which its keys are counted.
    """

    holder: bytes
    rate: int | None
    period: Micros
    outstanding: int | None


class Refusal(NamedTuple):
    """That a new key would be too many: by which limit, and after how many seconds to ask again."""

    limit: str
    retry_after: float


class Fingerprint(NamedTuple):
    """A payload as it is stored and compared."""

    stored: bytes
    older: Callable[[], bytes] | None = None
    """How releases up to 0.1 counted it, if in another way."""


class ClaimRequest(NamedTuple):
    """What an attempt asks for when it claims a key."""

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
    older_fingerprint: Callable[[], bytes] | None = None

    @property
    def payload(self) -> Fingerprint:
        """What the record's payload is compared with."""
        return Fingerprint(self.fingerprint, self.older_fingerprint)

    @property
    def transactional(self) -> bool:
        """Whether the record shares a transaction with the effect."""
        return self.effects == "transactional"


class Ownership(NamedTuple):
    """A won claim: what every later write of this attempt is conditional on."""

    key: bytes
    attempt: str
    token: int
    clocks: Clocks
    transactional: bool


class Filter(NamedTuple):
    """Which records an operator looks for; None and the empty set mean any."""

    boundary: str | None = None
    operation: str | None = None
    scope: str | None = None
    states: frozenset[EffectiveState] = frozenset()

    def takes(self, record: Record) -> bool:
        """Whether the filter lets a record through."""
        return (
            self.boundary in (None, record.boundary)
            and self.operation in (None, record.operation)
            and self.scope in (None, record.scope)
            and (not self.states or record.effective_state in self.states)
        )


class Page(NamedTuple):
    """Some records, without results, and where to go on; the cursor is None at the end.

    A page may hold fewer records than were asked for, even none, and still not be the last.
    """

    records: list[Record]
    cursor: str | None


class Tally(NamedTuple):
    """How many records of a boundary are in one state, and when the least recently written of them was written."""

    boundary: str
    state: EffectiveState
    records: int
    oldest: Micros
    now: Micros


class Cached(NamedTuple):
    """What a cache has of a key, with the cache's time of that answer."""

    record: Record | None
    now: Micros


class Finding(NamedTuple):
    """What a look at a server's settings showed.

    "refuse": no promise can be kept with it; "warn": a promise is weaker; "fact": good to know.
    """

    level: Literal["refuse", "warn", "fact"]
    name: str
    text: str


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


class Reject(NamedTuple):
    """A simultaneous duplicate is told at once that the first is in progress."""


class Wait(NamedTuple):
    """A simultaneous duplicate waits up to ``seconds`` for the first one's result, if no more than ``at_most`` wait."""

    seconds: float
    at_most: int = 1000


Concurrency = Reject | Wait
