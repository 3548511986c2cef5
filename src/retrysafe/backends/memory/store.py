"""The memory store: the transition table, executed; its client is a dictionary under a lock, and a clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from retrysafe.backends.spec import StoreDefaults, WithoutTransactions
from retrysafe.errors import IllegalTransition
from retrysafe.protocol import quotas, transitions
from retrysafe.protocol.records import (
    Allowance,
    ClaimRequest,
    Clocks,
    EffectiveState,
    Filter,
    Micros,
    Ownership,
    Page,
    QuotaRefusal,
    Record,
    State,
    StoredResult,
)
from retrysafe.protocol.requests import Ask, as_it_is
from retrysafe.protocol.store import Capabilities
from retrysafe.protocol.transitions import Transition

if TYPE_CHECKING:
    from retrysafe.protocol.steps import At, StepRow


Records = dict[bytes, Record]


class Kept(Records):
    """Records by key, and the rows of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: dict[tuple[bytes, Micros, At], StepRow] = {}


Step = Callable[[Records, Micros], Any]
"""A request: a step over the records at a time."""


def wall_clock() -> int:
    """This machine's time in microseconds since the Unix epoch."""
    return time.time_ns() // 1000


class MemoryClient(WithoutTransactions):
    """Performs steps one at a time; ``clock`` gives microseconds since the Unix epoch."""

    def __init__(self, clock: Callable[[], int] = wall_clock) -> None:
        self.records = Kept()
        self._clock = clock
        self._lock = threading.Lock()

    def __call__(self, request: Step, /) -> Any:
        with self._lock:
            return request(self.records, self._clock())

    def close(self) -> None:
        self.records.clear()
        self.records.steps.clear()


class AsyncMemoryClient(WithoutTransactions):
    """`MemoryClient` for async code, on the same records; a step never has to wait."""

    def __init__(self, client: MemoryClient) -> None:
        self._client = client

    async def __call__(self, request: Step, /) -> Any:
        return self._client(request)

    async def aclose(self) -> None:
        self._client.close()

    def abandon(self) -> None:
        """Nothing to hang up: what is left goes with this object."""


class MemoryStore(StoreDefaults):
    """Records in a dictionary of this process; each ask is a step over it."""

    capabilities = Capabilities(
        name="memory",
        transactions=False,
        waits_in_transaction=False,
        clock="this process",
        durability="none: records end with the process",
        failover="everything",
        cannot_survive=("the end of the process", "a second process: each has records of its own"),
        choose_when="in tests",
        quotas="exactly; every new key is counted by looking at all records",
    )

    _room = 1000
    """Records at which a new one lets the forgotten ones go, as there is no sweeper; then twice as many as are left."""

    def claim(self, request: ClaimRequest) -> Ask[Record | QuotaRefusal | None]:
        def step(records: Records, now: Micros) -> Record | QuotaRefusal:
            record = records.get(request.key)
            if record is not None:
                return _at(record, now)
            refusal = None if request.quota is None else _judge_quota(records, request.quota, now)
            if refusal is not None:
                return refusal
            if len(records) >= self._room:
                _forget(records, now)
                self._room = max(MemoryStore._room, 2 * len(records))
                if isinstance(records, Kept):
                    records.steps = {place: row for place, row in records.steps.items() if place[0] in records}
            record = records[request.key] = transitions.first_claim(request, now)
            return record

        return Ask(step, as_it_is)

    def take(self, request: ClaimRequest, seen: Record) -> Ask[Record | None]:
        def step(records: Records, now: Micros) -> Record | None:
            return _change(records, request.key, lambda record: transitions.take(record, request, seen, now))

        return Ask(step, as_it_is)

    def settle(self, ownership: Ownership, event: Transition, result: StoredResult | None) -> Ask[bool]:
        def step(records: Records, now: Micros) -> bool:
            record = records.get(ownership.key)
            if record is None:
                return False
            try:
                records[ownership.key] = transitions.settle(record, ownership, event, result, now)
            except IllegalTransition:
                return False
            return True

        return Ask(step, as_it_is)

    def resolve(self, seen: Record, event: Transition, result: StoredResult | None, clocks: Clocks) -> Ask[bool]:
        def step(records: Records, now: Micros) -> bool:
            changed = _change(
                records,
                seen.key,
                lambda record: transitions.resolve(record, seen, event, result, clocks, now),
            )
            return changed is not None

        return Ask(step, as_it_is)

    def renew(self, ownerships: Sequence[Ownership]) -> list[Ask[set[bytes]]]:
        def step(records: Records, now: Micros) -> set[bytes]:
            def extend(one: Ownership) -> Record | None:
                return _change(records, one.key, lambda record: transitions.renew(record, one, now))

            return {one.key for one in ownerships if extend(one) is not None}

        return [Ask(step, as_it_is)]

    def read(self, key: bytes) -> Ask[Record | None]:
        def step(records: Records, now: Micros) -> Record | None:
            record = records.get(key)
            return None if record is None else _at(record, now)

        return Ask(step, as_it_is)

    def sweep(self, limit: int) -> list[Ask[int]]:
        def step(records: Records, now: Micros) -> int:
            return _forget(records, now, limit)

        return [Ask(step, as_it_is)]

    def forgotten(self, limit: int) -> list[Ask[list[Record]]]:
        def step(records: Records, now: Micros) -> list[Record]:
            sources = transitions.RULES[Transition.SWEEP].sources
            standing = (record._replace(now=now) for record in records.values())
            return [record for record in standing if record.effective_state in sources][:limit]

        return [Ask(step, as_it_is)]

    def remove(self, seen: Sequence[Record]) -> list[Ask[int]]:
        def step(records: Records, now: Micros) -> int:
            sources = transitions.RULES[Transition.SWEEP].sources
            gone = 0
            for one in seen:
                record = records.get(one.key)
                if record is not None and record.version == one.version and record.effective_state_at(now) in sources:
                    del records[one.key]
                    gone += 1
            return gone

        return [Ask(step, as_it_is)]

    def scan(self, wanted: Filter, cursor: str | None, limit: int) -> Ask[Page]:
        def step(records: Records, now: Micros) -> Page:
            standing = (records[key]._replace(now=now, result=None) for key in sorted(records))
            after = [one for one in standing if wanted.takes(one) and (cursor is None or one.key.hex() > cursor)]
            return Page(after[:limit], after[limit - 1].key.hex() if len(after) > limit else None)

        return Ask(step, as_it_is)


def _forget(records: Records, now: Micros, limit: int | None = None) -> int:
    sources = transitions.RULES[Transition.SWEEP].sources
    forgotten = [key for key, record in records.items() if record.effective_state_at(now) in sources][:limit]
    for key in forgotten:
        del records[key]
    return len(forgotten)


def _judge_quota(records: Records, allowance: Allowance, now: Micros) -> QuotaRefusal | None:
    kept = [
        record
        for record in records.values()
        if quotas.holder(record.boundary, record.scope) == allowance.holder
        and record.effective_state_at(now) is not EffectiveState.FORGOTTEN
    ]
    made = sorted((record.created for record in kept), reverse=True)
    filling = made[allowance.rate - 1] if allowance.rate is not None and len(made) >= allowance.rate else None
    settled = [record.tombstone_until for record in kept if record.state not in (State.RUNNING, State.UNKNOWN)]
    return quotas.judge(allowance, now, filling, len(kept), min(settled, default=None))


def _at(record: Record, now: Micros) -> Record:
    """The record as reported now; several times as quick as `_replace`."""
    return tuple.__new__(Record, (*record[:-1], now))


def _change(records: Records, key: bytes, change: Callable[[Record], Record]) -> Record | None:
    record = records.get(key)
    if record is None:
        return None
    try:
        records[key] = changed = change(record)
    except IllegalTransition:
        return None
    return changed
