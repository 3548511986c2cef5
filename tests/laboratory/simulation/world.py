"""The world outside the actors: the store, the guarded effect, a cache, an archive and a schema, each watched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from retrysafe.backends.memory.store import MemoryClient, MemoryStore
from retrysafe.errors import StoreUnavailable
from retrysafe.protocol.client import Executor
from retrysafe.protocol.records import Micros, Record
from retrysafe.protocol.store import OperableStore
from tests.laboratory.simulation.acting import Stage
from tests.laboratory.simulation.judging import Check, Judge
from tests.laboratory.simulation.messages import Message
from tests.laboratory.simulation.plan import Fault
from tests.laboratory.simulation.recording import Recording
from tests.laboratory.simulation.servers import FIT, CacheServer, SchemaServer

Clock = Callable[[], Micros]


class Subject(NamedTuple):
    """A store under simulation, and what performs its requests at the simulated time.

    ``quantum`` is the step of its clock in microseconds; from 1000 on every duration of a plan is that much longer.
    """

    store: OperableStore
    execute: Executor
    quantum: Micros = 1


def memory(clock: Clock) -> Subject:
    """The memory store, which is the transition table executed."""
    return Subject(MemoryStore(), MemoryClient(clock))


class Time:
    """The simulated time, and how far the store's clock is off."""

    __slots__ = ("now", "quantum", "skew")

    def __init__(self, now: Micros) -> None:
        self.now = now
        self.skew: Micros = 0
        self.quantum: Micros = 1

    def of_the_store(self) -> Micros:
        """Return the reading of the store's clock."""
        shown = self.now + self.skew
        return shown if self.quantum == 1 else shown // self.quantum * self.quantum


class Books:
    """The store's contents, for the judge: looked up in memory, and elsewhere read."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._keys: set[bytes] = set()
        self._records = subject.execute.records if isinstance(subject.execute, MemoryClient) else None
        self.get: Callable[[bytes], Record | None] = self._read if self._records is None else self._records.get

    def _read(self, key: bytes) -> Record | None:
        """The record of a key."""
        self._keys.add(key)
        ask = self._subject.store.read(key)
        record = ask.parse(self._subject.execute(ask.request))
        return None if record is None else record._replace(now=0)

    def all(self) -> dict[bytes, Record]:
        """Every record."""
        if self._records is not None:
            return dict(self._records)
        found = {key: self.get(key) for key in sorted(self._keys)}
        return {key: record for key, record in found.items() if record is not None}


Line = tuple[Micros, str | Message, Fault | str | Record | None]


class World:
    """Applies messages, one at a time, and lets the judge see what each has done."""

    def __init__(self, subject: Subject, judge: Judge, time: Time, *, fleet: bool) -> None:
        self.judge = judge
        self.log: list[Line] = []
        self.books = Books(subject)
        self.stage: Stage
        self.recording: Recording | None = None
        self.cache = CacheServer()
        self.schema = SchemaServer(lambda detail: judge.broken(Check.MIGRATED, detail))
        self._execute = subject.execute
        self._time = time
        self._fleet = fleet
        self._others: dict[str, Callable[[Message], Any]] = {
            "effect": self._effect,
            "probe": self._probe,
            "look": self._cached,
            "keep": self._cached,
            "drop": self._cached,
            "archive": self._archive,
            "schema": self._schema,
            "sweep": self._remove,
            "remove": self._remove,
        }

    def apply(self, message: Message, *, late: bool = False) -> Any:
        """Perform one request; ``late`` says that its sender has long given up."""
        other = self._others.get(message.kind)
        if other is not None:
            return other(message)
        if self._fleet:
            self._admit(message, late)
        before = self.books.get(message.key)
        answer = self._execute(message.request)
        after = self.books.get(message.key)
        changed = after is not before and after != before
        if changed:
            if before is None and message.kind == "claim" and message.named.quota is not None:
                others = (record for record in self.books.all().values() if record.key != message.key)
                self.judge.new_key(message.named.quota, others, self._time.of_the_store())
            self.judge.wrote(message, before, after, self._time.of_the_store())
        self.log.append((self._time.now, message, after if changed else None))
        return answer

    def note(self, who: str, what: Fault | str) -> None:
        """A line for the log."""
        self.log.append((self._time.now, who, what))

    def _admit(self, message: Message, late: bool) -> None:
        """A schema that a version of the code does not know refuses it; only what comes late may try."""
        oldest, newest = FIT[message.version]
        if not oldest <= self.schema.version <= newest:
            if not late:
                detail = f"version {message.version} sent a {message.kind} to schema {self.schema.version}"
                self.judge.broken(Check.SCHEMA, detail)
            raise StoreUnavailable("simulated: no such column")

    def _effect(self, message: Message) -> bool:
        accepted = self.judge.effect(message.named, self.stage.effects[message.key], message.request)
        self.note(message.named.attempt, "effect happened" if accepted else "effect refused")
        return accepted

    def _probe(self, message: Message) -> bool | None:
        """Probe: the effect happened, never will, or nothing is known yet."""
        if self.judge.happened(message.named):
            return True
        return False if self.stage.is_over(message.named.attempt) else None

    def _cached(self, message: Message) -> Any:
        return self.cache(message.request, self._time.now)

    def _archive(self, message: Message) -> None:
        self.judge.archive(message.named)
        self.note("", f"archived {len(message.named)}")

    def _schema(self, message: Message) -> Any:
        before = self.schema.version
        answer = self.schema(message.named, message.request)
        if self.schema.version != before:
            self.judge.seen[f"schema became {self.schema.version}"] += 1
            self.note("", f"the schema is of version {self.schema.version}")
        return answer

    def _remove(self, message: Message) -> Any:
        before = self.books.all()
        answer = self._execute(message.request)
        if self.recording is not None:
            self.recording.swept(message)
        after = self.books.all()
        for key, record in before.items():
            if key not in after:
                self.judge.wrote(message, record, None, self._time.of_the_store())
        self.note("", f"{message.kind} removed {answer if isinstance(answer, int) else len(before) - len(after)}")
        return answer
