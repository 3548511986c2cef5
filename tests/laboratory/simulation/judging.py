"""The judge of a simulation: watches every write, effect and answer, and names each promise that is broken.

It judges by the promises alone and shares no code with the transition table, so that an error in
the table cannot hide itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from retrysafe.claims import codec
from retrysafe.protocol.records import Allowance, Effects, Micros, Ownership, Record, State, StoredResult
from retrysafe.protocol.transitions import Transition
from tests.laboratory.simulation.messages import Message

_SETTLED = (State.COMPLETED, State.FAILED)
_OPEN = (State.RUNNING, State.UNKNOWN)


class Check(StrEnum):
    """A promise of the protocol. Those of `LIVENESS` are judged when faults have ended, the others always."""

    TOKENS = "every claim has a higher token than all before, even after a sweep"
    NAMED = "a write lands only on the record that it names"
    SETTLED = "a settled record stays as it is until its window ends"
    LEASE = "a live lease is not taken and a lapsed one is not revived"
    BLIND = "an outcome in doubt is not run again"
    PAYLOAD = "one key has one payload until its window ends"
    KEPT = "a record keeps its row, fingerprint, token and count until its memory ends"
    TRUTH = "what is stored is what happened"
    ONE_EFFECT = "an effect happens once"
    FENCE = "a fenced resource accepts attempts in the order of their claims"
    REPLAY = "every answer of one window is the same, byte for byte"
    READ = "a result is read by a codec that knows its version, or refused by a typed error"
    ARCHIVED = "what is removed after archiving was archived as it was"
    NEARBY = "a cache answers within the window of the record"
    TAKEN_BACK = "an answer that an operator has expired is not given again"
    SCHEMA = "nobody works on a schema that it does not know"
    MIGRATED = "each migration is applied once, in order"
    QUOTA = "no new key is claimed beyond its quota"
    STUCK = "every retry is answered in the end"
    IN_DOUBT = "no key stays running or in doubt in the end"
    SWEPT = "what is forgotten is removed in the end"
    CONTRACTED = "every migration is done in the end"


LIVENESS = frozenset({Check.STUCK, Check.IN_DOUBT, Check.SWEPT, Check.CONTRACTED})


class Violation(NamedTuple):
    """A broken promise, and how it was seen."""

    check: Check
    detail: str

    def __str__(self) -> str:
        return f"BROKEN: {self.check.value}: {self.detail}"


class Intent(NamedTuple):
    """One window of a key: what counts as the same intent."""

    key: bytes
    number: int


def result_of(attempt: str, token: int, version: int = codec.VERSION) -> StoredResult:
    """The result of one attempt, by the codec of a version: it differs from that of every other."""
    return StoredResult(b'"%b:%d"' % (attempt.encode(), token), codec.MEDIA_TYPE, version)


def _is_over(record: Record, now: Micros) -> bool:
    return record.state not in _OPEN and record.expires <= now


def _was_over(before: Record, message: Message) -> bool:
    """Tell whether the window had ended when the claim saw the record; the clock may have gone back since."""
    seen = message.named
    unchanged = message.kind == "take" and (seen.attempt, seen.version) == (before.attempt, before.version)
    return unchanged and _is_over(seen, seen.now)


def _same(one: Record | None, other: Record) -> bool:
    return one is not None and one._replace(now=0) == other._replace(now=0)


def _is_result(stored: StoredResult | None, record: Record) -> bool:
    """Tell whether a result is the record's own, whichever version of the codec has written it."""
    return stored is not None and stored.body == result_of(record.attempt, record.token).body


class Judge:
    """Keeps the promises' own books."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.seen: Counter[str] = Counter()
        self._windows: dict[bytes, int] = {}
        self._highest: dict[bytes, int] = {}
        self._claims: dict[tuple[str, int], tuple[int, Intent]] = {}
        self._effects: dict[Intent, int] = {}
        self._answers: dict[Intent, StoredResult | None] = {}
        self._receipts: dict[str, bytes] = {}
        self._paid: Counter[bytes] = Counter()
        self._fences: dict[bytes, tuple[int, int]] = {}
        self._ended: dict[bytes, int] = {}
        self._archived: dict[tuple[bytes, int], Record] = {}
        self._expired: dict[tuple[bytes, str], Micros] = {}
        self.tolerance: Micros | None = 0
        """The largest error of a cache about the end of a window; None: it lies, and is not held to account."""

    def broken(self, check: Check, detail: str) -> None:
        """Note a broken promise."""
        self.violations.append(Violation(check, detail))

    # ------------------------------------------------------------ records

    def wrote(self, message: Message, before: Record | None, after: Record | None, now: Micros) -> None:
        """Judge one change of one record."""
        if after is None:
            assert before is not None
            self._removed(message, before, now)
        elif before is None or (after.attempt, after.token) != (before.attempt, before.token):
            self._claimed(message, before, after, now)
        else:
            self._rewrote(message, before, after, now)

    def _removed(self, message: Message, before: Record, now: Micros) -> None:
        self.seen["swept"] += 1
        if message.kind not in ("sweep", "remove") or before.state in _OPEN or before.tombstone_until > now:
            self.broken(Check.KEPT, f"{message.kind} removed a {before.state} row")
        if message.kind == "remove" and not _same(self._archived.get((before.key, before.version)), before):
            self.broken(Check.ARCHIVED, f"version {before.version} was removed and is not in the archive")

    def _claimed(self, message: Message, before: Record | None, after: Record, now: Micros) -> None:
        key = after.key
        if after.token <= self._highest.get(key, 0):
            self.broken(Check.TOKENS, f"{after.token} after {self._highest[key]}")
        self._highest[key] = max(after.token, self._highest.get(key, 0))
        fresh = before is None or _is_over(before, now) or _was_over(before, message) or self._was_ended(before)
        if fresh:
            self._windows[key] = self._windows.get(key, 0) + 1
        if before is None:
            self.seen["claimed"] += 1
        else:
            self._claimed_again(message, before, after, now, fresh)
        intent = Intent(key, self._windows.get(key, 0))
        self._claims[after.attempt, after.token] = (len(self._claims), intent)
        if after.state is not State.RUNNING or after.lease_until <= now:
            self.broken(Check.LEASE, f"a claim left a {after.state} record without a lease")

    def _claimed_again(self, message: Message, before: Record, after: Record, now: Micros, fresh: bool) -> None:
        self.seen["claimed after its window" if fresh else f"claimed when {before.state}"] += 1
        if message.kind == "take":
            self._judge_name(message, before)
        else:
            self.broken(Check.NAMED, "a first claim replaced a record")
        if before.state is State.RUNNING and before.lease_until > now:
            self.broken(Check.LEASE, "a live lease was taken")
        elif before.state is State.UNKNOWN or (before.state is State.RUNNING and before.effects != "keyed"):
            self.broken(Check.BLIND, f"a {before.state} {before.effects} record was claimed")
        elif before.state in _SETTLED and not fresh:
            self.broken(Check.SETTLED, f"a {before.state} record was claimed")
        if not fresh and after.fingerprint != before.fingerprint:
            self.broken(Check.PAYLOAD, "a claim with another payload won")
        if after.attempts not in ((1, before.attempts + 1) if fresh else (before.attempts + 1,)):
            self.broken(Check.KEPT, f"attempts went from {before.attempts} to {after.attempts}")

    def _was_ended(self, before: Record) -> bool:
        """Tell whether an operator has expired the record; the clock may have gone back since."""
        return self._ended.get(before.key) == before.version

    def _rewrote(self, message: Message, before: Record, after: Record, now: Micros) -> None:
        self.seen[str(message.event or message.kind)] += 1
        self._judge_name(message, before)
        if after.fingerprint != before.fingerprint or after.attempts != before.attempts:
            self.broken(Check.KEPT, f"{message.kind} changed fingerprint or count")
        if message.kind == "renew":
            self._renewed(before, after, now)
        elif message.event is Transition.EXPIRE:
            self._expired_by_operator(before, after)
            return
        elif before.state not in _OPEN:
            self.broken(Check.SETTLED, f"{message.event} changed a {before.state} record")
        elif message.event is Transition.SUSPECT:
            if before.state is not State.RUNNING or before.lease_until > now:
                self.broken(Check.LEASE, f"a {before.state} record was suspected before its lease ended")
        elif message.kind == "resolve" and before.state is not State.UNKNOWN:
            self.broken(Check.SETTLED, f"{message.event} changed a {before.state} record")
        self._judge_truth(after)
        if message.event is Transition.COMPLETE and not _is_result(after.result, before):
            self.broken(Check.TRUTH, f"{after.result} was stored for {before.attempt}")

    def _expired_by_operator(self, before: Record, after: Record) -> None:
        self._ended[after.key] = after.version
        if before.state in _OPEN:
            self.broken(Check.BLIND, f"a {before.state} record was expired")

    def _judge_name(self, message: Message, before: Record) -> None:
        named = message.named
        if isinstance(named, Ownership):
            right = (named.attempt, named.token) == (before.attempt, before.token)
        else:
            right = (named.attempt, named.version) == (before.attempt, before.version)
        if not right:
            what = message.event or message.kind
            self.broken(Check.NAMED, f"{what} of {named.attempt} hit a record of {before.attempt}")

    def _renewed(self, before: Record, after: Record, now: Micros) -> None:
        if before.state is not State.RUNNING or after.state is not State.RUNNING:
            self.broken(Check.SETTLED, f"a renewal changed a {before.state} record")
        if before.lease_until <= now or after.lease_until <= now:
            self.broken(Check.LEASE, "a lapsed lease was renewed")

    def _judge_truth(self, record: Record) -> None:
        intent = self.intent_of(record.attempt, record.token)
        if record.effects == "external":
            happened = self._effects.get(intent, 0)
            if record.state is State.COMPLETED and not happened:
                self.broken(Check.TRUTH, "completed without an effect")
            if record.state in (State.FAILED, State.RELEASED) and happened:
                self.broken(Check.TRUTH, f"{record.state} although the effect happened")
        elif record.state is State.COMPLETED and not self._paid[record.key]:
            self.broken(Check.TRUTH, "completed without an effect")

    # ------------------------------------------------------------ effects and answers

    def intent_of(self, attempt: str, token: int) -> Intent:
        """The window in which an attempt claimed its key."""
        return self._claims[attempt, token][1]

    def happened(self, record: Record) -> bool:
        """Tell whether the effect that a record is about has happened, as an operator would find out."""
        if record.effects == "external":
            return bool(self._effects.get(self.intent_of(record.attempt, record.token)))
        return bool(self._paid[record.key])

    def effect(self, ownership: Ownership, effects: Effects, derived: str) -> bool:
        """Perform an effect of an attempt; False when the fence of the resource refuses it."""
        order, intent = self._claims[ownership.attempt, ownership.token]
        if effects == "external":
            return self._unguarded(intent)
        token, last = self._fences.get(ownership.key, (0, 0))
        if ownership.token < token:
            self.seen["fenced"] += 1
            return False
        if order < last:
            self.broken(Check.FENCE, f"the effect of {ownership.attempt} was accepted after one of a later claim")
        self._fences[ownership.key] = (ownership.token, order)
        if derived not in self._receipts:
            self._receipts[derived] = ownership.key
            self._paid[ownership.key] += 1
            if self._paid[ownership.key] > 1:
                self.broken(Check.ONE_EFFECT, "two downstream effects for one key")
        else:
            self.seen["recognised downstream"] += 1
        return True

    def _unguarded(self, intent: Intent) -> bool:
        self._effects[intent] = self._effects.get(intent, 0) + 1
        if self._effects[intent] > 1:
            self.broken(Check.ONE_EFFECT, f"{self._effects[intent]} external effects for one intent")
        return True

    def answered(self, attempt: str, token: int, result: StoredResult | None) -> None:
        """Judge an answer that a caller was given as the stored one."""
        first = self._answers.setdefault(self.intent_of(attempt, token), result)
        if first != result or result is None:
            self.broken(Check.REPLAY, f"{result} after {first}")

    def misread(self, stored: StoredResult, version: int) -> None:
        """A codec has read what it does not know."""
        self.broken(Check.READ, f"version {version} read a result of version {stored.codec_version}")

    # ------------------------------------------------------------ archive, cache, quota

    def archive(self, records: Sequence[Record]) -> None:
        """Keep records in the archive."""
        for record in records:
            known = self._archived.get((record.key, record.version))
            if known is not None:
                self.seen["archived twice"] += 1
                if not _same(known, record):
                    self.broken(Check.ARCHIVED, "two archived records have one key and version")
            self._archived[record.key, record.version] = record

    def expired(self, record: Record, now: Micros) -> None:
        """An operator was told that a record is expired, at an instant of the world."""
        self.seen["expired"] += 1
        self._expired[record.key, record.attempt] = now

    def nearby(self, record: Record, looked: Micros) -> None:
        """Judge an answer that a cache gave at an instant of the world."""
        self.seen["answered nearby"] += 1
        if self.tolerance is None:
            return
        if record.expires + self.tolerance <= looked:
            self.broken(Check.NEARBY, f"the answer of {record.attempt} came from the cache after its window")
        if looked > self._expired.get((record.key, record.attempt), looked):
            self.broken(Check.TAKEN_BACK, f"the answer of {record.attempt} came from the cache although it is expired")

    def new_key(self, allowance: Allowance, others: Iterable[Record], now: Micros) -> None:
        """Judge the claim of a key without a record by the other records of the scope."""
        kept = [record for record in others if record.state in _OPEN or record.tombstone_until > now]
        recent = sum(record.created > now - allowance.period for record in kept)
        if allowance.outstanding is not None and len(kept) >= allowance.outstanding:
            self.broken(Check.QUOTA, f"{len(kept)} keys were kept already")
        if allowance.rate is not None and recent >= allowance.rate:
            self.broken(Check.QUOTA, f"{recent} keys were new already")
