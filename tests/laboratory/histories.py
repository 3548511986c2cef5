"""Recorded histories: what was asked of a store by whom, when, and what it answered.

    history = History()
    recorder = Recorder(history, actor="worker 1")
    store, execute = recorder.store(store), recorder.executor(client)
    run(claim(store, want), execute)                 # any program, as always
    check(history.operations())                      # tests.laboratory.linearizability

A recorder goes between a program and its store and executor, of any library, sync or async. It notes each step (claim,
take, settle, resolve, renew, read, sweep) before it is sent and after it is answered. A step without an answer, because
the store was unavailable, the caller was cancelled or its process killed, may have happened at any time since. One
that certainly never left (`StoreUnavailable` with ``unsent``) did not happen.

Processes of one machine each write a `HistoryFile`, which a SIGKILL leaves readable, and `merged` joins them: the
monotonic clock of a machine is the same for all of its processes.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, StrEnum
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from retrysafe.errors import StoreUnavailable
from retrysafe.protocol.client import AsyncExecutor, Executor
from retrysafe.protocol.records import (
    Allowance,
    ClaimRequest,
    Clocks,
    Ownership,
    QuotaRefusal,
    Record,
    State,
    StoredResult,
)
from retrysafe.protocol.requests import Ask, Program
from retrysafe.protocol.store import Capabilities, Store
from retrysafe.protocol.transitions import Transition

Kind = Literal["claim", "take", "settle", "resolve", "renew", "read", "sweep", "elapse"]
"""A step of a store by the name of its method; "elapse" lets time pass for one record, as tests do."""


class Unknown(Enum):
    """The one value of an answer that nobody heard."""

    ANSWER = "?"


UNKNOWN: Final = Unknown.ANSWER
"""The step may have happened at any time since it began, or not at all."""


class Operation(NamedTuple):
    """One step on one key.

    ``arguments`` are those of the store's method, for `renew` the one hold alone, for "elapse" the key and the
    microseconds.
    ``made``, ``begun`` and ``ended`` are nanoseconds on a monotonic clock: when the request was made (a store may have
    looked at its clock then), when it was sent, and when the answer was there; None: never.
    ``answer`` is the parsed one. A sweep belongs to every key, and has none of its own (``b""``).
    """

    actor: str
    kind: Kind
    key: bytes
    arguments: tuple[Any, ...]
    made: int
    begun: int
    ended: int | None
    answer: Any


class Note(NamedTuple):
    """One line of a history: an operation began (``step``), was answered, or turned out never to have been sent."""

    number: int
    at: int
    what: Literal["begun", "answered", "unsent"]
    step: tuple[Any, ...] = ()
    answer: Any = None


class History:
    """Takes down operations as they begin and end. Threads and tasks may share one."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.clock = clock
        self._numbers = count()
        self._notes: list[Note] = []

    def begin(self, actor: str, kind: Kind, key: bytes, arguments: tuple[Any, ...], made: int | None = None) -> int:
        """Note that a step is about to be sent; returns the number under which it ends."""
        number, now = next(self._numbers), self.clock()
        self._note(Note(number, now, "begun", (actor, kind, key, arguments, now if made is None else made)))
        return number

    def end(self, number: int, answer: Any) -> None:
        """Note the answer."""
        self._note(Note(number, self.clock(), "answered", answer=answer))

    def unsent(self, number: int) -> None:
        """Note that the step certainly did not happen."""
        self._note(Note(number, self.clock(), "unsent"))

    def operations(self) -> list[Operation]:
        """Return the operations recorded so far; one without an answer may still happen."""
        return operations_of(list(self._notes))

    def _note(self, note: Note) -> None:
        self._notes.append(note)


class HistoryFile(History):
    """A history in a file, a line for each note, complete even if the process is killed."""

    def __init__(self, path: Path | str) -> None:
        super().__init__()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _note(self, note: Note) -> None:
        os.write(self._file, json.dumps(_plain(note), separators=(",", ":")).encode() + b"\n")

    def operations(self) -> list[Operation]:
        """Read the file instead: see `merged`."""
        raise TypeError("A HistoryFile is read by merged(paths), when its process has ended.")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def merged(paths: Iterable[Path | str]) -> list[Operation]:
    """The operations of histories that processes of this machine have written."""
    found: list[Operation] = []
    for path in paths:
        lines = Path(path).read_bytes().split(b"\n")[:-1]  # a last line without its end was being written
        found += operations_of([Note(*_value(json.loads(line))) for line in lines])
    return sorted(found, key=lambda operation: operation.begun)


def operations_of(notes: Sequence[Note]) -> list[Operation]:
    """The operations that these notes tell of, in the order of their beginnings."""
    ends = {note.number: note for note in notes if note.what != "begun"}
    found: list[Operation] = []
    for note in notes:
        if note.what != "begun":
            continue
        actor, kind, key, arguments, made = note.step
        end = ends.get(note.number)
        if end is None:
            found.append(Operation(actor, kind, key, arguments, made, note.at, None, UNKNOWN))
        elif end.what == "answered":
            found.append(Operation(actor, kind, key, arguments, made, note.at, end.at, end.answer))
    return sorted(found, key=lambda operation: operation.begun)


# ---------------------------------------------------------------- between a program and its store


_Step = tuple[Kind, bytes, tuple[Any, ...]]
"""A step's kind, key and arguments."""


class _Noted(NamedTuple):
    """A request on its way to a recording executor, and the steps that it is."""

    request: Any
    made: int
    steps: tuple[_Step, ...]


class _Heard(NamedTuple):
    """An answer on its way from a recording executor to where it is parsed."""

    answer: Any
    numbers: tuple[int, ...]


class Recorder:
    """Records what one actor asks: a store and its executors, each wrapped by it, as one pair."""

    def __init__(self, history: History, actor: str = "") -> None:
        self.history = history
        self.actor = actor

    def store(self, store: Store) -> RecordedStore:
        """The store, with requests for a recorded executor."""
        return RecordedStore(store, self.history)

    def executor(self, execute: Executor) -> Executor:
        """The executor, taking down what passes."""

        def recorded(request: Any, /) -> Any:
            if not isinstance(request, _Noted):
                return execute(request)
            numbers = self._begin(request)
            try:
                return _Heard(execute(request.request), numbers)
            except StoreUnavailable as error:
                self._failed(numbers, error)
                raise

        return recorded

    def async_executor(self, execute: AsyncExecutor) -> AsyncExecutor:
        """The same for async code."""

        async def recorded(request: Any, /) -> Any:
            if not isinstance(request, _Noted):
                return await execute(request)
            numbers = self._begin(request)
            try:
                return _Heard(await execute(request.request), numbers)
            except StoreUnavailable as error:
                self._failed(numbers, error)
                raise

        return recorded

    def _begin(self, noted: _Noted) -> tuple[int, ...]:
        return tuple(self.history.begin(self.actor, *step, noted.made) for step in noted.steps)

    def _failed(self, numbers: tuple[int, ...], error: StoreUnavailable) -> None:
        if error.unsent:
            for number in numbers:
                self.history.unsent(number)


class RecordedStore:
    """A store whose requests say what they are; whatever else it can, it can still, unrecorded."""

    def __init__(self, store: Store, history: History) -> None:
        self._store = store
        self._history = history

    @property
    def capabilities(self) -> Capabilities:
        """Those of the store."""
        return self._store.capabilities

    def admit(self, want: ClaimRequest) -> Program[QuotaRefusal | None]:
        """Not recorded: a quota counts keys, and histories are checked key by key."""
        return self._store.admit(want)

    def claim(self, want: ClaimRequest) -> Ask[Record | QuotaRefusal | None]:
        """Recorded."""
        return self._noted("claim", want.key, (want,), self._store.claim)

    def take(self, want: ClaimRequest, seen: Record) -> Ask[Record | None]:
        """Recorded."""
        return self._noted("take", want.key, (want, seen), self._store.take)

    def settle(self, ownership: Ownership, event: Transition, result: StoredResult | None) -> Ask[bool]:
        """Recorded."""
        return self._noted("settle", ownership.key, (ownership, event, result), self._store.settle)

    def resolve(self, seen: Record, event: Transition, result: StoredResult | None, clocks: Clocks) -> Ask[bool]:
        """Recorded."""
        return self._noted("resolve", seen.key, (seen, event, result, clocks), self._store.resolve)

    def renew(self, ownerships: Sequence[Ownership]) -> list[Ask[set[bytes]]]:
        """Recorded for each key apart, although they may travel together."""
        made = self._history.clock()
        asks = list(self._store.renew(ownerships))
        if len(asks) == len(ownerships):
            return [self._renewing((one,), ask, made) for one, ask in zip(ownerships, asks, strict=True)]
        if len(asks) > 1:
            raise TypeError("renew() made neither one ask for all leases nor one for each: it cannot be recorded.")
        return [self._renewing(ownerships, ask, made) for ask in asks]

    def read(self, key: bytes) -> Ask[Record | None]:
        """Recorded."""
        return self._noted("read", key, (key,), self._store.read)

    def sweep(self, limit: int) -> Iterator[Ask[int]]:
        """Recorded."""
        made = self._history.clock()
        for ask in self._store.sweep(limit):
            yield self._wrapped(ask, made, (("sweep", b"", (limit,)),), lambda answer: (answer,))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _noted(self, kind: Kind, key: bytes, arguments: tuple[Any, ...], make: Callable[..., Ask[Any]]) -> Ask[Any]:
        made = self._history.clock()
        return self._wrapped(make(*arguments), made, ((kind, key, arguments),), lambda answer: (answer,))

    def _renewing(self, ownerships: Sequence[Ownership], ask: Ask[set[bytes]], made: int) -> Ask[set[bytes]]:
        steps: tuple[_Step, ...] = tuple(("renew", one.key, (one,)) for one in ownerships)
        return self._wrapped(ask, made, steps, lambda kept: tuple(kept & {one.key} for one in ownerships))

    def _wrapped(
        self,
        ask: Ask[Any],
        made: int,
        steps: tuple[_Step, ...],
        each: Callable[[Any], tuple[Any, ...]],
    ) -> Ask[Any]:
        def parse(heard: _Heard) -> Any:
            answer = ask.parse(heard.answer)
            for number, one in zip(heard.numbers, each(answer), strict=True):
                self._history.end(number, one)
            return answer

        return Ask(_Noted(ask.request, made, steps), parse)


# ---------------------------------------------------------------- histories as JSON

_TUPLES: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (Allowance, Clocks, Ownership, Note, Record, QuotaRefusal, StoredResult, ClaimRequest)
}
_NAMES: dict[str, type[StrEnum]] = {kind.__name__: kind for kind in (Transition, State)}


def _plain(value: Any) -> Any:
    """A value as JSON knows it: what JSON does not know is an object of one name."""
    if value is UNKNOWN:
        return {"unknown": None}
    if isinstance(value, StrEnum):
        return {type(value).__name__: value.value}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, (set, frozenset)):
        return {"set": [_plain(one) for one in sorted(value)]}
    if isinstance(value, tuple):
        name = type(value).__name__
        return {name if name in _TUPLES else "tuple": [_plain(one) for one in value]}
    return value


def _value(data: Any) -> Any:
    if not isinstance(data, dict):
        return data
    ((name, inner),) = data.items()
    if name in _NAMES:
        return _NAMES[name](inner)
    if name == "bytes":
        return bytes.fromhex(inner)
    if name == "unknown":
        return UNKNOWN
    values = [_value(one) for one in inner]
    if name == "set":
        return set(values)
    return tuple(values) if name == "tuple" else _TUPLES[name](*values)
