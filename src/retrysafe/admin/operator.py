"""Operate keys: find, show, resolve, release and expire them, and check the store."""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeVar

from retrysafe.admin import runs
from retrysafe.admin.audit import Audit
from retrysafe.backends import registry
from retrysafe.backends.backend import Backend
from retrysafe.backends.driver import arun, run
from retrysafe.backends.schema import Schema
from retrysafe.backends.steps import keeps_steps, obstacle_to, runs_of
from retrysafe.claims import key_spaces
from retrysafe.claims.codec import JSONCodec, encode_verdict
from retrysafe.claims.encryption import Keyring
from retrysafe.claims.notes import add_note, without_note
from retrysafe.claims.observers import LoggingObserver, Observers
from retrysafe.claims.responses import encode_answer, is_http, refuse_response
from retrysafe.claims.sealing import MEDIA_TYPE as ENCRYPTED
from retrysafe.claims.sealing import Bound, label_of, seal, unseal
from retrysafe.errors import ConfigurationError, StoreUnavailable
from retrysafe.protocol import keys, procedures
from retrysafe.protocol.events import Observer
from retrysafe.protocol.procedures import Change, read
from retrysafe.protocol.records import (
    Count,
    EffectiveState,
    Filter,
    Finding,
    Key,
    Layered,
    Outcome,
    Page,
    Record,
    StoredResult,
    Tally,
    key_space,
)
from retrysafe.protocol.requests import Program, ask
from retrysafe.protocol.retry_table import in_doubt
from retrysafe.protocol.steps import DECISION, At, StepState, label
from retrysafe.protocol.store import BatchStore, Capabilities
from retrysafe.protocol.transitions import RULES, resolution

R = TypeVar("R")
Look = Literal["sample", "until found", "everywhere"]
ANY = Filter()
SHORTEST_PREFIX = 4
"""Fewer hex digits than this name no key."""
MOST_COUNTED = 10_000
"""Records that are looked at for a count, unless another number is given."""
SAMPLE = 2_000
"""Records of a sample."""
BATCH = 100
"""Records, or messages, of one step of a change to many."""
MOST_IDENTITIES = 100_000
"""Boundaries, operations and scopes whose hashes are kept in memory while a key is looked for."""
UNKNOWN = frozenset({EffectiveState.UNKNOWN})


class Clock(NamedTuple):
    """The seconds by which the store's clock is ahead of this machine's, known to ``within`` so many."""

    ahead: float
    within: float


class Batch(NamedTuple):
    """A step of a change to many: how many were changed, how many were not as expected any more, and where to go on.

    ``cursor`` is None when it was the last one.
    """

    changed: int
    unchanged: int
    cursor: str | None


class Sample(NamedTuple):
    """Records of a store, without results; ``whole`` if these are all there are."""

    records: list[Record]
    whole: bool


class Status(NamedTuple):
    """The state of a store: its promises, the settings of its server, and its contents.

    ``clock`` is None while the store has no record to read its clock by.
    """

    capabilities: Capabilities
    address: str
    schema: Schema | None
    findings: list[Finding]
    tallies: list[Tally]
    clock: Clock | None
    stranded: runs.FoundRuns = runs.NONE


class Operator:
    """Finds and changes keys in a store. Every change is conditional on the record as it was read.

    Arguments:
        store: a URL, or another value that ``Boundary(store=…)`` takes for sync code.
        actor: who makes the changes; by default the user and the machine.
        observers: receive an event for every change; by default a `LoggingObserver`.
        secret: the boundary's, if it has one: keys are found by their hash.
        encryption: the boundary's keyring, if it has one. Only `resolve` needs it.
        audit: called with an entry before each change and after it. If it raises before, nothing is changed.
    """

    def __init__(
        self,
        store: Any,
        *,
        actor: str | None = None,
        observers: Iterable[Observer] | None = None,
        secret: str | bytes | None = None,
        encryption: Keyring | None = None,
        audit: Audit | None = None,
    ) -> None:
        self._backend = connect(store)
        self._backend.users += 1
        self._runner = None if self._backend.serves_sync else asyncio.Runner()
        self._secret = keys.check_secret(secret)
        self._observers = Observers((LoggingObserver(),) if observers is None else observers)
        self._encryption = encryption
        self._audit = audit
        self.actor = actor or f"{user()}@{socket.gethostname()}"
        self._has_schema = False

    # ------------------------------------------------------------ naming

    def hash_of(self, key: Key, *, boundary: str, operation: str | None = None, scope: str = "") -> bytes:
        """The hash that a key is stored under; the operation is by default the boundary's name, as for ``claim``."""
        return keys.lookup(self._secret, boundary, scope, key_space(operation or boundary), keys.parse(key))

    def matching(self, digits: str, wanted: Filter = ANY, *, limit: int = 10) -> list[Record]:
        """Records whose hash begins with these hex digits, as shown in the log."""
        digits = check_digits(digits)
        if len(digits) == 64:
            record = self.show(bytes.fromhex(digits))
            return [record] if record is not None and wanted.takes(record) else []
        return list(islice(self.each(wanted._replace(digits=digits)), limit))

    def locate(
        self,
        key: Key,
        *,
        boundary: str | None = None,
        operation: str | None = None,
        scope: str | None = None,
        look: Look = "sample",
    ) -> list[Record]:
        """The records of a key under each boundary, operation and scope that the store has; what is given is fixed.

        ``look`` says how far it looks: at a "sample" of the store, which may lack a rare combination; "until found",
        at all of it if the sample has none; or "everywhere", which alone tells that there is no other record.
        """
        wanted = Filter(boundary, operation, scope)
        sample = self.sample()
        known = {(one.boundary, key_space(one.operation), one.scope) for one in sample.records if wanted.takes(one)}
        if boundary is not None:
            known.add((boundary, key_space(operation or boundary), scope or ""))
        found = self._under(key, sorted(known))
        if sample.whole or look == "sample" or (found and look == "until found"):
            return found
        return self._walk(key, wanted)

    def _walk(self, key: Key, wanted: Filter) -> list[Record]:
        """The records of a key, found by a look at all: a record is the key's if it has the key's hash."""
        hashes: dict[tuple[str, str, str], bytes] = {}
        found = list[Record]()
        for one in self.each(wanted):
            identity = one.boundary, key_space(one.operation), one.scope
            if identity not in hashes:
                if len(hashes) >= MOST_IDENTITIES:
                    hashes.clear()
                hashes[identity] = self.hash_of(key, boundary=identity[0], operation=identity[1], scope=identity[2])
            if one.key == hashes[identity] and (record := self.show(one.key)) is not None:
                found.append(record)
        return list({record.key: record for record in found}.values())

    def _under(self, key: Key, identities: Iterable[tuple[str, str, str]]) -> list[Record]:
        hashes = [self.hash_of(key, boundary=one, operation=two, scope=three) for one, two, three in identities]
        store = self._backend.store
        if not isinstance(store, BatchStore):
            return [record for one in hashes if (record := self.show(one)) is not None]
        pages = (hashes[start : start + procedures.PAGE] for start in range(0, len(hashes), procedures.PAGE))
        return [record for page in pages for record in self._look(ask(store.read_many(page))).values()]

    # ------------------------------------------------------------ looking

    def each(self, wanted: Filter = ANY) -> Iterator[Record]:
        """The records that match ``wanted``, without results, read page by page."""
        cursor: str | None = None
        while True:
            page = self.page(wanted, cursor, procedures.PAGE)
            yield from page.records
            cursor = page.cursor
            if cursor is None:
                return

    def page(self, wanted: Filter = ANY, cursor: str | None = None, limit: int = 100) -> Page:
        """One page of the records that match, without results.

        It takes no longer when nothing matches: a database looks at a few thousand records. So a page with few
        records, or none, is not the last one while it has a cursor.
        """
        return self._look(procedures.page(self._backend.store, wanted, cursor, limit))

    def count(self, wanted: Filter = ANY, most: int = MOST_COUNTED) -> Count:
        """The number of records that match among the first ``most``; unknown ones are found among all."""
        return self._look(procedures.count(self._backend.store, wanted, most))

    def sample(self, size: int = SAMPLE) -> Sample:
        """Some records, without results: all if there are no more, else chosen at random by their hashes."""
        records, cursor = self._look(procedures.page(self._backend.store, ANY, None, size))
        while cursor is not None and len(records) < size:
            more, cursor = self._look(procedures.page(self._backend.store, ANY, cursor, size - len(records)))
            records += more
        return Sample(records, whole=cursor is None)

    def find(
        self,
        *,
        boundary: str | None = None,
        operation: str | None = None,
        scope: str | None = None,
        states: Iterable[EffectiveState | str] = (),
        limit: int = 100,
    ) -> list[Record]:
        """Up to ``limit`` matching records, without results. An argument that is not given matches any value."""
        wanted = Filter(boundary, operation, scope, frozenset(map(EffectiveState, states)))
        return list(islice(self.each(wanted), limit))

    def show(self, key_hash: bytes) -> Record | None:
        """The record under a hash, with its result."""
        return self._look(read(self._backend.store, key_hash))

    def tallies(self) -> list[Tally]:
        """Counts of records by boundary and state."""
        return self._look(procedures.tally(self._backend.store))

    def findings(self) -> list[Finding]:
        """Findings about the server's settings."""
        return self._do(procedures.examine(self._backend.store))

    def status(self) -> Status:
        """The status of the store. A missing or old schema is reported, not raised."""
        backend = self._backend
        schema = self._do(backend.tables.schema())
        usable = schema is None or schema.version >= schema.needed
        return Status(
            capabilities=backend.store.capabilities,
            address=backend.address,
            schema=schema,
            findings=self.findings(),
            tallies=self.tallies() if usable else [],
            clock=self._clock() if usable else None,
            stranded=self.find_stranded() if usable else runs.NONE,
        )

    def _clock(self) -> Clock | None:
        before = time.time()
        record = next(self.each(), None)
        after = time.time()
        if record is None:
            return None
        return Clock(record.now / 1e6 - (before + after) / 2, (after - before) / 2)

    def reveal(self, seen: Record, *, reason: str = "") -> StoredResult | None:
        """The stored result of a record, which may be confidential; that it was shown is audited first.

        It is decrypted if ``encryption`` has its key.
        """
        self._write("intent", {**self._entry("revealed", seen), "reason": reason})
        record = self.show(seen.key)
        return None if record is None else self.plain(record)

    def plain(self, record: Record) -> StoredResult | None:
        """The stored result of a record, decrypted if ``encryption`` has its key."""
        stored = without_note(record.result)
        if stored is None or self._encryption is None or stored.media_type != ENCRYPTED:
            return stored
        bound = Bound(record.boundary, record.scope, record.operation, record.key, record.state)
        return unseal(self._encryption, stored, bound)

    def note(self, event: str, fields: Mapping[str, Any]) -> None:
        """Audit what is about to happen to something that is no key, such as a message."""
        entry = {"id": os.urandom(8).hex(), "event": event, "store": self._backend.address, "actor": self.actor}
        self._write("intent", {**entry, **fields})

    # ------------------------------------------------------------ changing

    def resolve(self, seen: Record, outcome: Outcome, *, result: Any = None, reason: str = "") -> Change:
        """Settle a key whose outcome is unknown, after you found out whether its effect happened.

        "completed" stores ``result`` as the answer (a `StoredResult` as it is, anything else by `JSONCodec`), "failed"
        a failure with ``result``, else ``reason``, as its message, and "released" lets the next attempt run. Keys of
        HTTP requests get a response, also those that failed: `retrysafe.http.respond`. Nothing is changed if the
        outcome is known, or another attempt has the key by now. A result for a boundary with ``encryption=`` needs its
        keyring: retries could not read it otherwise. The record keeps who has settled it, and the reason, in the clear.

        Raises `ConfigurationError` for a result that retries could not be given, and for a run whose steps would never
        be undone then.
        """
        if told := self._look(obstacle_to(outcome, self._backend, seen)):
            raise ConfigurationError(told)
        event = resolution(outcome)
        target = RULES[event].target
        assert target is not None
        bound = Bound(seen.boundary, seen.scope, seen.operation, seen.key, target)
        stored = self._seal(bound, self._answer_of(seen, outcome, result, reason), seen.result)
        stored = add_note(stored, f"operator {self.actor}", reason)
        steps = procedures.settle_doubt(self._backend.store, seen.key, event, stored, attempt=seen.attempt)
        return self._change("resolved", seen, outcome, steps, {"outcome": outcome, "reason": reason})

    def _answer_of(self, seen: Record, outcome: Outcome, result: Any, reason: str) -> StoredResult | None:
        """The answer of a key as it is stored; raises `ConfigurationError` for one that retries could not be given.

        A boundary of this process knows the types that its operations return.
        """
        if is_http(seen.operation):
            return encode_answer(seen.operation, outcome, result)
        refuse_response(seen.operation, result)
        if outcome == "failed":
            return encode_verdict("Failure", result, reason, default="declared failed by a person")
        if outcome == "released":
            return None
        stored = result if isinstance(result, StoredResult) else JSONCodec().encode(result, None)
        for one in key_spaces.living():
            if one.name == seen.boundary and one.backend.database.is_same(self._backend.database):
                one.refuse_result(seen.operation, stored)
        return stored

    def _seal(self, bound: Bound, stored: StoredResult | None, *left: StoredResult | None) -> StoredResult | None:
        """An answer as the boundary would store it; what attempts have ``left`` shows whether it encrypts."""
        sealed = next((one for one in left if one is not None and one.media_type == ENCRYPTED), None)
        if stored is not None and self._encryption is None and sealed is not None:
            raise ConfigurationError(
                f"The boundary {bound.boundary!r} encrypts what it stores, with the key {label_of(sealed).key_id!r}: "
                "give its keyring as encryption= (--encryption-keys-env), or resolve the key by Boundary.resolve()."
            )
        return seal(self._encryption, stored, bound)

    def resolve_batch(
        self,
        wanted: Filter,
        outcome: Outcome,
        *,
        cursor: str | None = None,
        limit: int = BATCH,
        result: Any = None,
        reason: str = "",
    ) -> Batch:
        """Settle up to ``limit`` of the unknown keys that match, as `resolve` does each; go on at the batch's cursor.

        Repeating a batch is harmless: what it has settled is not unknown any more. ``until`` in ``wanted`` keeps out
        keys that become unknown after the selection was looked at. Runs whose steps would never be undone stay.
        """
        resolution(outcome)
        page = self.page(wanted._replace(states=UNKNOWN), cursor, limit)
        for record in page.records:
            self._answer_of(record, outcome, result, reason)  # before any of them is changed
        changed = 0
        for listed in page.records:
            seen = self.show(listed.key)  # with the result of its attempt, which shows whether the boundary encrypts
            if seen is None or (seen.attempt, seen.version) != (listed.attempt, listed.version):
                continue
            if not self._look(obstacle_to(outcome, self._backend, seen)):
                changed += self.resolve(seen, outcome, result=result, reason=reason).done
        return Batch(changed, len(page.records) - changed, page.cursor)

    def release(self, seen: Record, *, reason: str = "") -> Change:
        """Let the next attempt run an unknown key: its effect did not happen, and its attempt has ended."""
        return self.resolve(seen, "released", reason=reason)

    def expire(self, seen: Record, *, forget: bool = False, reason: str = "") -> Change:
        """End the window of a settled key now, and with ``forget`` its memory: the next use runs the work again.

        The record keeps who has done so, and the reason, in the clear.

        The fast store of ``layered(…)`` forgets the key first. If it does not answer, nothing is changed. It forgets
        the key again afterwards, because another process may have cached the old answer during the change.
        """
        cache = self._backend.cache
        if cache is not None:
            cache.drop(seen)
        note = add_note(None, f"operator {self.actor}", reason)
        steps = procedures.expire_seen(self._backend.store, seen, forget=forget, note=note)
        after = EffectiveState.FORGOTTEN if forget else EffectiveState.EXPIRED
        change = self._change("expired", seen, after, steps, {"forgotten": forget, "reason": reason})
        if cache is not None and change.done:
            try:
                cache.drop(seen)
            except StoreUnavailable as error:
                raise StoreUnavailable(
                    f"The key is expired, but the fast store did not answer afterwards ({error.detail}): it may give "
                    "the old answer for as long as it keeps one. Expire the key again."
                ) from error
        return change

    # ------------------------------------------------------------ runs

    def find_runs(self, wanted: Filter = ANY, *, limit: int = 100, pages: int | None = None) -> runs.FoundRuns:
        """Up to ``limit`` records that have steps, the latest first; looked for on so many pages, or on all.

        Raises `ConfigurationError` for a store whose runs cannot be listed.
        """
        if runs_of(self._backend) is None:
            kept = (
                "cannot be listed. One is shown by its key."
                if keeps_steps(self._backend)
                else "are none: it keeps no steps."
            )
            raise ConfigurationError(
                f"store= ({self._backend.address}): the runs of a {self._backend.kind} store {kept}"
            )
        return self._look(runs.find(self._backend, wanted, limit, pages))

    def find_stranded(self, *, pages: int = runs.MOST_PAGES) -> runs.FoundRuns:
        """The latest runs that would go on, and were not asked for an hour; none in a store that keeps no steps."""
        return self._do(runs.find_stranded(self._backend, pages))

    def show_run(self, record: Record) -> runs.Run:
        """The steps of a record, of which there are none in a store that keeps none."""
        return self._look(runs.show(self._backend, record, self._encryption))

    def cancel_run(self, seen: runs.Run, *, reason: str = "") -> Change:
        """Let the next attempt at a run undo what was done, and fail with the reason.

        An attempt that is at work is not stopped, and may complete. A key that is unknown is to be released first.
        Raises `ConfigurationError` for a run that has ended, goes back already, or has no compensations.
        """
        if seen.obstacle:
            raise ConfigurationError(f"Nothing was changed. {seen.obstacle}")
        failure = encode_verdict("Cancelled", reason, default="cancelled by an operator")
        stored = self._seal_step(seen, DECISION, failure)
        fields = {"reason": reason}
        return self._change(
            "run_cancelled", seen.record, "going back", runs.cancel(self._backend, seen, stored), fields
        )

    def resolve_step(
        self, seen: runs.Run, at: At, outcome: runs.StepOutcome, *, result: Any = None, reason: str = ""
    ) -> Change:
        """Settle the step in doubt, and release the key if it is unknown, so that the next attempt goes on.

        "done" stores ``result``; "not-done" lets the next attempt do the step; "undone" says that its compensation was
        made by hand. Raises `ConfigurationError` for a step that is in no such doubt.
        """
        row = seen.doubt
        if all(step.row.at != at for step in seen.steps):
            raise ConfigurationError(f"Nothing was changed: the run has no step {label(at)}.")
        fits = row is not None and (row.state is StepState.STARTED) is (outcome != "undone")
        if row is None or row.at != at or not fits:
            told = runs.doubt(seen) or "No step of the run is in doubt."
            raise ConfigurationError(f"Nothing was changed: step {label(at)} is not to be settled as {outcome}. {told}")
        given = result if isinstance(result, StoredResult) else JSONCodec().encode(result, None)
        stored = self._seal_step(seen, at, given if outcome == "done" else None)
        fields = {"step": label(at), "outcome": outcome, "reason": reason}
        steps = runs.resolve(self._backend, seen, row, outcome, stored)
        change = self._change("step_resolved", seen.record, outcome, steps, fields)
        if change.done and in_doubt(seen.record):
            return self.release(seen.record, reason=reason)
        return change

    def _seal_step(self, seen: runs.Run, at: At, stored: StoredResult | None) -> StoredResult | None:
        left = (step.row.result for step in seen.steps)
        return self._seal(runs.bind_result(seen.record, at), stored, seen.record.result, *left)

    # ------------------------------------------------------------ a change and its audit

    def _change(
        self, name: str, seen: Record, after: str, program: Program[Change], fields: Mapping[str, Any]
    ) -> Change:
        """Make a change between the two entries of its audit, and emit an event if it was made."""
        self._check()
        entry = {**self._entry(name, seen), **fields}
        self._write("intent", entry)
        try:
            change = self._do(program)
        except BaseException as error:
            self._write("outcome", {**entry, "done": None, "error": type(error).__name__})
            raise
        now = after if change.done else EffectiveState.ABSENT if change.record is None else change.record.reported_state
        self._write("outcome", {**entry, "done": change.done, "after": str(now)})
        if change.done:
            said = {**fields, "actor": self.actor, "before": seen.reported_state.value, "after": str(now)}
            self._observers.emit(name, seen.boundary, seen.operation, seen.key, seen.attempt, said)
        return change

    def _entry(self, name: str, seen: Record) -> dict[str, Any]:
        entry = {"id": os.urandom(8).hex(), "event": name, "store": self._backend.address, "actor": self.actor}
        entry |= {"boundary": seen.boundary, "scope": seen.scope, "operation": seen.operation}
        return entry | {"key_hash": seen.key.hex(), "attempt": seen.attempt, "before": seen.reported_state.value}

    def _write(self, phase: str, entry: Mapping[str, Any]) -> None:
        if self._audit is not None:
            at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            self._audit({"audit": phase, "at": at, **entry})

    # ------------------------------------------------------------ driving

    def _look(self, program: Program[R]) -> R:
        if not self._has_schema:
            self._do(self._backend.tables.require())
            self._has_schema = True
        return self._do(program)

    def _do(self, program: Program[R]) -> R:
        backend = self._backend
        if self._runner is None:
            return run(program, backend.client())

        async def drive() -> R:
            return await arun(program, backend.aclient())

        return self._runner.run(drive())

    def _check(self) -> None:
        backend = self._backend
        if self._runner is None:
            backend.ready_client()
        else:
            self._runner.run(backend.ready_aclient())

    # ------------------------------------------------------------ end

    def close(self) -> None:
        """Close the connections that nothing else uses."""
        last = registry.leave(self._backend)
        if self._runner is not None:
            self._runner.run(self._backend.aclose())
            self._runner.close()
        elif last:
            self._backend.close()

    def __enter__(self) -> Operator:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def is_hash_prefix(text: str) -> bool:
    """Tell whether a text can be the first hex digits of a hash, or all of them."""
    return SHORTEST_PREFIX <= len(text) <= 64 and set(text.lower()) <= set("0123456789abcdef")


def check_digits(digits: str) -> str:
    """The first hex digits of a hash in lower case; raise `ConfigurationError` for anything else."""
    digits = digits.lower()
    if not is_hash_prefix(digits):
        raise ConfigurationError(f"A hash is {SHORTEST_PREFIX} to 64 hex digits, not {digits!r}.")
    return digits


def connect(store: Any) -> Backend:
    """Connect to a store that exists; do not create or migrate it."""
    backend = registry.connect(store, migrate=False)
    if backend.kind == "memory":
        raise ConfigurationError("store= is memory://: its records exist only in the process of the boundary.")
    if backend.access.missing():
        raise ConfigurationError(f"store= ({backend.address}) does not exist. A boundary that uses it creates it.")
    ours = isinstance(store.truth if isinstance(store, Layered) else store, str)
    if not (backend.serves_sync or ours):
        raise ConfigurationError(f"store= ({backend.address}) belongs to your event loop: give its URL.")
    return backend


def user() -> str:
    """The name or id of the user of this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
