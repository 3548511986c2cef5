"""Stores of documents: each record is a document by its key's hash, and every change is one conditional write.

`DocumentStore` decides what is written under which condition, and reads what comes back. A store renders a `Write` as
the service has it: an update with a condition expression, a filter with a pipeline, a patch with a predicate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from retrysafe.backends.commands import naming
from retrysafe.backends.service_clock import Clock, Sightings
from retrysafe.backends.spec import StoreDefaults
from retrysafe.protocol.records import (
    HTTP,
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
from retrysafe.protocol.requests import Ask
from retrysafe.protocol.standing import STANDING
from retrysafe.protocol.store import Capabilities, Removal
from retrysafe.protocol.transitions import RULES, Transition, count_started, first_claim, merge_fingerprint, state_of

Document = Mapping[str, Any]
"""The fields of one document, and its ``key_hash``, in values of Python."""
KEY = "key_hash"
FIELDS = tuple(name for name in Record._fields if name not in ("key", "result", "now"))
"""Every document has these; one with a result has its fields, too."""
RESULT = ("result", "media_type", "codec_version")
EVERY_ROUTE = ("operation", HTTP)
"""A filter that also selects operations which tell a route."""
COUNTING = "counting"
"""The state of documents with counted keys; no record has it."""


# ---------------------------------------------------------------- writes


class Later(NamedTuple):
    """An instant so long after the store's time of the write, and not before ``least``."""

    after: Micros
    least: Micros = 0

    def at(self, now: Micros) -> Micros:
        return max(now + self.after, self.least)


NOW = Later(0)


class Write(NamedTuple):
    """One conditional write of a document.

    required: the fields that must have these values; None: there must be no document.
    allowed: the document must stand in one of these ways, empty for any, at the time ``judged_at``.
    sets: the fields that get these values, of which `Later` is filled in when the time is known; None: the document is
        deleted.
    raises: the version goes up by one.
    settled: the service may remove the document after ``tombstone_until``, else never.
    judged_at: None for the time of the write.
    """

    key: bytes
    required: Mapping[str, Any] | None
    allowed: frozenset[EffectiveState]
    sets: Mapping[str, Any] | None
    removes: tuple[str, ...] = ()
    raises: bool = False
    settled: bool = False
    judged_at: Micros | None = None

    @property
    def is_whole(self) -> bool:
        return self.sets is not None and self.sets.keys() >= {*FIELDS}

    def at(self, now: Micros) -> Write:
        sets = self.sets and {
            name: value.at(now) if isinstance(value, Later) else value for name, value in self.sets.items()
        }
        return self._replace(sets=sets, judged_at=now if self.judged_at is None else self.judged_at)


class Selection(NamedTuple):
    """The documents that a scan is for.

    equal: fields that have these values.
    standing: the ways in which they stand, empty for all.
    lasting: beside those, settled ones that the service would never remove.
    start: the key after which the scan goes on.
    limit: the documents of one answer; None for as many as fit into it.
    """

    equal: Mapping[str, str]
    standing: frozenset[EffectiveState]
    lasting: bool
    start: bytes | None
    limit: int | None


class ScanPage(NamedTuple):
    """Documents of a scan, without results, and the key after which it goes on; None at the end."""

    documents: Iterable[Document]
    last: bytes | None


# ---------------------------------------------------------------- the store


class DocumentStore(StoreDefaults):
    """The requests of a store of documents, whose instants come from a clock that is handed in.

    A store renders them and reads the answers, by the methods that come first. Documents of a scope cannot be counted
    without reading them all; see `counted_keys`.
    """

    capabilities: Capabilities

    def __init__(self, clock: Clock, address: str) -> None:
        self.clock = clock
        self._sightings = Sightings()
        self._migrate = f"Run:  {naming(address).line('migrate')}"

    def render(self, write: Write) -> Any:
        raise NotImplementedError

    def find(self, key: bytes) -> Any:
        """The request that reads a document; it sees every write that was acknowledged before."""
        raise NotImplementedError

    def select(self, selection: Selection) -> Any:
        raise NotImplementedError

    def is_done(self, answer: Any) -> bool:
        """True if a write was done, and False if its condition was not met."""
        raise NotImplementedError

    def document(self, answer: Any) -> Document | None:
        """The document that was found, or that was in the way of the first claim."""
        raise NotImplementedError

    def page(self, answer: Any) -> ScanPage:
        raise NotImplementedError

    def apart(self, request: Any) -> Any:
        """The request outside of the transaction that it would be a part of."""
        return request

    def fill_in(self, write: Write) -> Write:
        """The write with its instants filled in; a service that computes with its own clock gets them as they are."""
        return write.at(self.clock())

    def document_after(self, answer: Any, write: Write) -> Document:
        return {**(write.sets or {}), KEY: write.key}

    # ------------------------------------------------------------ claims

    def claim(self, request: ClaimRequest) -> Ask[Record | QuotaRefusal | None]:
        write = self._put(request, None)

        def parse(answer: Any) -> Record | None:
            return self._own(answer, write) if self.is_done(answer) else self._record(self.document(answer))

        return Ask(self.render(write), parse)

    def take(self, request: ClaimRequest, seen: Record) -> Ask[Record | None]:
        write = self._put(request, seen)
        return Ask(self.render(write), lambda answer: self._own(answer, write) if self.is_done(answer) else None)

    def settle(self, ownership: Ownership, event: Transition, result: StoredResult | None) -> Ask[bool]:
        return self._settle(ownership.key, owner_of(ownership), event, result, ownership.clocks, None)

    def resolve(self, seen: Record, event: Transition, result: StoredResult | None, clocks: Clocks) -> Ask[bool]:
        return self._settle(seen.key, version_of(seen), event, result, clocks, self._now_for(seen))

    def renew(self, ownerships: Sequence[Ownership]) -> list[Ask[set[bytes]]]:
        return [self._renew(one) for one in ownerships]

    def read(self, key: bytes) -> Ask[Record | None]:
        return Ask(self.find(key), lambda answer: self._record(self.document(answer)))

    def _put(self, request: ClaimRequest, seen: Record | None) -> Write:
        """The write of a whole record: the first one of its key, or the next after the one that was seen."""
        sets = {name: value for name, value in first_claim(request, 0)._asdict().items() if name in FIELDS}
        sets |= {"lease_until": self._lease(request.clocks), "created": NOW, **_times(request.clocks)}
        if seen is None:
            sets |= {"token": Later(0, sets["token"]), "version": Later(0, sets["version"])}
            required, allowed, judged_at = None, frozenset[EffectiveState](), None
        else:
            token, before = Later(0, seen.token + 1), count_started(seen)
            sets |= {
                "fingerprint": merge_fingerprint(request, seen),
                "token": token,
                "attempts": before + 1,
                "created": seen.created if before else token,
                "version": seen.version + 1,
            }
            required, allowed = version_of(seen), RULES[Transition.CLAIM].sources
            judged_at = self._now_for(seen)
        return self.fill_in(Write(request.key, required, allowed, sets, RESULT, judged_at=judged_at))

    def _settle(
        self,
        key: bytes,
        required: Mapping[str, Any],
        event: Transition,
        result: StoredResult | None,
        clocks: Clocks,
        judged_at: Micros | None,
    ) -> Ask[bool]:
        sources, target, _ = RULES[event]
        assert target is not None
        kept = zip(RESULT, result or (), strict=False)
        sets: dict[str, Any] = {"state": target, **_times(clocks)}
        sets |= {name: value for name, value in kept if value is not None}
        removes = tuple(name for name in RESULT if name not in sets)
        settled = target is not State.UNKNOWN
        write = Write(key, required, sources, sets, removes, raises=True, settled=settled, judged_at=judged_at)
        return Ask(self.render(self.fill_in(write)), self.is_done)

    def _renew(self, ownership: Ownership) -> Ask[set[bytes]]:
        sets = {"lease_until": self._lease(ownership.clocks), **_times(ownership.clocks)}
        write = Write(ownership.key, owner_of(ownership), RULES[Transition.RENEW].sources, sets, raises=True)
        return Ask(self.render(self.fill_in(write)), lambda answer: {ownership.key} if self.is_done(answer) else set())

    # ------------------------------------------------------------ the clock

    def _lease(self, clocks: Clocks) -> Later:
        """The end of a lease; later, where this clock may be further behind than the margin covers."""
        excess = max(0, self.clock.error - self.capabilities.margin)
        return Later(clocks.lease + clocks.margin + excess)

    def _now_for(self, seen: Record) -> Micros | None:
        """The time at which the condition of a write judges what was seen."""
        return None if self.clock.corrected else seen.now

    def _own(self, answer: Any, write: Write) -> Record:
        return record_of(self.document_after(answer, write), self.clock())

    def _record(self, document: Document | None) -> Record | None:
        """Without the service's time, a running record is judged by how long it has been seen unchanged."""
        if not document:
            return None
        record = record_of(document, self.clock())
        if self.clock.corrected or record.state is not State.RUNNING:
            return record
        unchanged_for = self._sightings.unchanged_for(record.key, record.version, self.clock.local())
        return record._replace(now=record.updated + unchanged_for)

    # ------------------------------------------------------------ for operators

    def _records(self, documents: Iterable[Document]) -> Iterable[Record]:
        return (record_of(document, self.clock()) for document in documents if document["state"] != COUNTING)

    def sweep(self, limit: int) -> Iterable[Ask[int] | Ask[Removal]]:
        """Do by hand what the time to live does: for a table without one, and documents that have lost theirs.

        It reads all documents, so it is for after a restore or a copy, not for every hour.
        """
        cleared, start = 0, None
        records: list[Record] = []

        def look(answer: Any) -> int:
            nonlocal start
            documents, start = self.page(answer)
            records.extend(self._records(documents))
            return 0

        def count(answer: Any, *, forgotten: bool) -> Removal:
            nonlocal cleared
            done = self.is_done(answer)
            cleared += done
            return Removal(done and forgotten, done and not forgotten)

        while True:
            records.clear()
            forgotten = frozenset({EffectiveState.FORGOTTEN})
            yield Ask(self.select(Selection({}, forgotten, lasting=True, start=start, limit=None)), look)
            for record in records:
                if cleared >= limit:
                    return
                write = self._clear(record)
                yield Ask(self.render(write), partial(count, forgotten=write.sets is None))
            if start is None:
                return

    def _clear(self, seen: Record) -> Write:
        now, sources = seen.now, RULES[Transition.SWEEP].sources
        if seen.effective_state in sources:
            return Write(seen.key, version_of(seen), sources, None, judged_at=now)
        sets = {"tombstone_until": seen.tombstone_until}
        return Write(seen.key, version_of(seen), frozenset(), sets, settled=True, judged_at=now)

    def scan(self, wanted: Filter, cursor: str | None, limit: int) -> Ask[Page]:
        named = {name: getattr(wanted, name) for name in ("boundary", "operation", "scope")}
        equal = {name: value for name, value in named.items() if value is not None and (name, value) != EVERY_ROUTE}
        start = None if cursor is None else bytes.fromhex(cursor)

        def parse(answer: Any) -> Page:
            documents, last = self.page(answer)
            records = [record for record in self._records(documents) if wanted.takes(record)]
            if len(records) > limit:
                return Page(records[:limit], records[limit - 1].key.hex())
            return Page(records, None if last is None else last.hex())

        selection = Selection(equal, _as_written(wanted.states), lasting=False, start=start, limit=limit)
        return Ask(self.select(selection), parse)


def owner_of(ownership: Ownership) -> dict[str, Any]:
    return {"attempt": ownership.attempt, "token": ownership.token}


def version_of(seen: Record) -> dict[str, Any]:
    return {"attempt": seen.attempt, "version": seen.version}


def version_in(document: Document) -> dict[str, Any]:
    return {name: document[name] for name in ("attempt", "version")}


def record_of(document: Document, now: Micros) -> Record:
    """The record in a document, as reported at this time, unless the document tells its own ``now``."""
    fields = {name: document[name] for name in FIELDS}
    fields["state"] = state_of(fields["state"])
    return Record(key=document[KEY], result=result_in(document), now=document.get("now", now), **fields)


def result_in(document: Document) -> StoredResult | None:
    if "media_type" not in document:
        return None
    return StoredResult(document.get("result"), document["media_type"], document["codec_version"])


def _times(clocks: Clocks) -> dict[str, Later]:
    return {"updated": NOW, "expires": Later(clocks.window), "tombstone_until": Later(clocks.memory)}


def _as_written(reported: frozenset[EffectiveState]) -> frozenset[EffectiveState]:
    """The effective states of records that are reported in one of these."""
    lapsed = {EffectiveState.LAPSED} if EffectiveState.UNKNOWN in reported else set()
    return (reported | lapsed) & STANDING.keys()
