"""The seams: what a store is asked, how it is asked, and what else can be replaced.

A Store is pure: it renders each request and parses its answer. An Executor performs one request.
The request languages below are shared by the stores that write them and the executors that read them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import MappingProxyType
from typing import Any, BinaryIO, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from retrysafe.core.inboxing import Counts
from retrysafe.core.relaying import Death, Delay
from retrysafe.core.transitions import Event
from retrysafe.types import (
    Arrival,
    Backlog,
    Cached,
    Chosen,
    Clocks,
    DeadLetter,
    Delivery,
    Envelope,
    Filter,
    Finding,
    Held,
    InboxLetter,
    Look,
    Micros,
    Page,
    Partition,
    Place,
    Published,
    Queued,
    Record,
    Refusal,
    RelaySeen,
    Stored,
    Tally,
    Want,
)

R = TypeVar("R")
T_co = TypeVar("T_co", covariant=True)


class Ask(Generic[R]):
    """One request, and how to read its answer."""

    __slots__ = ("parse", "request")

    def __init__(self, request: Any, parse: Callable[[Any], R]) -> None:
        self.request = request
        self.parse = parse


Steps = Generator[Ask[Any], Any, R]
"""A program: it yields asks, is sent their parsed answers, and returns an outcome."""


class Capabilities(NamedTuple):
    """What a store can and cannot promise.

    transactions: the record can share a transaction with the caller's data.
    waits_in_transaction: a duplicate may wait inside a transaction for another one to end.
    clock: whose time decides leases and windows.
    durability: what survives, and under which setting.
    failover: what is lost when the server fails over to a replica.
    cannot_survive: the faults that can break a promise, or lose one, with this store.
    choose_when: for whom this store is the right one.
    largest_result: bytes of an encoded result; a larger one cannot be stored. None: the store's own limit is far away.
    margin: microseconds by which others wait longer for a lease than its holder relies on it: none where the store's
        own clock judges.
    quotas: how exactly the quota of a scope is kept; empty where it cannot be kept at all.
    """

    name: str
    transactions: bool
    waits_in_transaction: bool
    clock: str
    durability: str
    failover: str
    cannot_survive: tuple[str, ...]
    choose_when: str
    largest_result: int | None = None
    margin: Micros = 0
    quotas: str = ""


class Store(Protocol):
    """What to ask of one kind of store. Every method is pure.

    Each write states its condition, taken from the transition table; losing is a return value.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What this kind of store can promise."""
        ...

    def admit(self, want: Want) -> list[Ask[Refusal | None]]:
        """Count a key against the quota that ``want`` has, unless it is counted already, or refuse it.

        Asked before a claim that has a quota. Empty where `claim` judges by itself.
        """
        ...

    def claim(self, want: Want) -> Ask[Record | Refusal | None]:
        """Write a first record if the key has none, else return the record that is there.

        None means that a transaction which has not ended yet is claiming the key. A refusal means that the key
        has no record and its quota no room, and that nothing was written.
        """
        ...

    def take(self, want: Want, seen: Record) -> Ask[Record | None]:
        """Claim a key whose record is as ``seen`` and claimable; None when it changed meanwhile."""
        ...

    def settle(self, held: Held, event: Event, result: Stored | None) -> Ask[bool]:
        """Let the owner complete, fail, doubt or release; False when it owns the record no longer."""
        ...

    def resolve(self, seen: Record, event: Event, result: Stored | None, clocks: Clocks) -> Ask[bool]:
        """Let somebody else settle a record that is as ``seen``; False when it changed meanwhile."""
        ...

    def renew(self, held: Sequence[Held]) -> list[Ask[set[bytes]]]:
        """Extend leases that have not lapsed; the answers hold the keys that were extended."""
        ...

    def read(self, key: bytes) -> Ask[Record | None]:
        """Return the record."""
        ...

    def sweep(self, limit: int) -> Iterable[Ask[int]]:
        """Remove up to ``limit`` forgotten records; the answers count them. Empty where they expire natively.

        Each ask is made when the one before it has been answered.
        """
        ...


class OperableStore(Store, Protocol):
    """A store that an operator can look into and clear up."""

    def forgotten(self, limit: int) -> list[Ask[list[Record]]]:
        """Return up to ``limit`` forgotten records with their results. Empty where they expire natively."""
        ...

    def remove(self, seen: Sequence[Record]) -> list[Ask[int]]:
        """Remove those that are still as ``seen`` and forgotten; the answers count them."""
        ...

    def scan(self, wanted: Filter, cursor: str | None, limit: int) -> Ask[Page]:
        """Return a page of the records that are wanted, in the store's own order, from ``cursor`` on."""
        ...

    def tally(self) -> list[Ask[list[Tally]]]:
        """Count the records by boundary and standing. Empty where that takes a scan."""
        ...

    def examine(self) -> list[Ask[list[Finding]]]:
        """Look at the server's settings."""
        ...


class TransactionalStore(Store, Protocol):
    """A store whose records can share a transaction with the caller's data."""

    def begin(self) -> Ask[None]:
        """Open a transaction."""
        ...

    def savepoint(self) -> Ask[None]:
        """Mark the point to which a permanent failure rolls back."""
        ...

    def rollback_to_savepoint(self) -> Ask[None]:
        """Undo what came after the savepoint."""
        ...

    def commit(self) -> Ask[None]:
        """Commit."""
        ...

    def rollback(self) -> Ask[None]:
        """Roll back."""
        ...

    def isolation(self) -> list[Ask[str]]:
        """Ask for the isolation level; empty where a waiting duplicate always sees what was committed."""
        ...

    def schema_version(self) -> list[Ask[int | None]]:
        """The schema's version: asks to put in turn until one answers None (no schema) or is the last."""
        ...


@runtime_checkable
class BatchStore(TransactionalStore, Protocol):
    """A store that claims many keys in one statement, inside a transaction of the boundary's own."""

    def claim_many(self, wants: Sequence[Want]) -> Ask[dict[bytes, int]]:
        """Insert first records for keys that have none and that nobody else is claiming; the tokens of those keys.

        The wants are of one attempt. It waits for nobody.
        """
        ...

    def read_many(self, keys: Sequence[bytes]) -> Ask[dict[bytes, Record]]:
        """The records of keys, as far as there are any."""
        ...

    def complete_many(self, held: Sequence[Held], result: Stored) -> Ask[int]:
        """Complete the records of one attempt, in the transaction that claimed them; how many that were."""
        ...


@runtime_checkable
class RotatingStore(TransactionalStore, Protocol):
    """A store whose records lie in partitions, which can be rewritten one at a time instead of deleting row by row."""

    def partitions(self) -> Ask[list[Partition]]:
        """The partitions; empty when the records lie in one plain table."""
        ...

    def share(self, partition: Partition) -> Ask[float]:
        """About how much of a partition is forgotten: 0 to 1, from a sample."""
        ...

    def enter(self, partition: Partition) -> list[Ask[None]]:
        """Begin: bound what follows in time, and lock the partition. The last ask fails if that takes long."""
        ...

    def count(self, partition: Partition) -> Ask[int]:
        """How many records the partition holds."""
        ...

    def unload(self, partition: Partition, spool: BinaryIO) -> Ask[int]:
        """Copy what is not forgotten to the spool; the answer counts it."""
        ...

    def reload(self, partition: Partition, spool: BinaryIO) -> list[Ask[int]]:
        """Empty the partition and copy the spool back, visible to every snapshot; the last answer counts it."""
        ...


class OutboxStore(Protocol):
    """What to ask about messages that wait to leave. Every method is pure."""

    def add(self, envelopes: Sequence[Envelope]) -> list[Ask[None]]:
        """Write messages, in this order."""
        ...

    def waiting(self, low: int = 0) -> Ask[list[int]]:
        """The buckets that hold messages with numbers from ``low`` on."""
        ...

    def unfrozen(self) -> list[Ask[None]]:
        """Let each statement of a transaction that has just begun see what was committed last, whatever the default."""
        ...

    def hold(self, number: int) -> Ask[bool]:
        """Hold a bucket to the end of the transaction; False when another one does."""
        ...

    def fence(self, held: Held) -> Ask[bool]:
        """Hold the record of a lease to the end of the transaction; False when somebody else has taken it over."""
        ...

    def look(self) -> Ask[Look]:
        """The lowest number of all messages, and which transactions may still write a lower one."""
        ...

    def due(self, number: int, limit: int, low: int = 0) -> Ask[list[Queued]]:
        """The oldest messages of a bucket that may leave: none behind one that waits, none of a paused topic.

        Those with numbers below ``low`` are not read.
        """
        ...

    def begun(self, queue: Sequence[Queued]) -> list[Ask[None]]:
        """Note that an attempt to publish each of these begins."""
        ...

    def withdraw(self, queue: Sequence[Queued]) -> list[Ask[None]]:
        """Note that the attempts which were to begin did not."""
        ...

    def leave(self, queue: Sequence[Queued], *, keep: bool) -> list[Ask[None]]:
        """Remove what has left; ``keep``: to the table of what was published."""
        ...

    def delay(self, delay: Delay) -> list[Ask[None]]:
        """Let a message, and with it its lane, wait."""
        ...

    def bury(self, death: Death) -> list[Ask[None]]:
        """Move a message to the dead letters."""
        ...


class InboxStore(Protocol):
    """What to ask about messages that arrive. Every method is pure."""

    def begun(self, arrival: Arrival) -> Ask[None]:
        """Note that an attempt begins."""
        ...

    def ended(self, arrival: Arrival, error: str, *, counted: bool) -> Ask[None]:
        """Note that an attempt has ended by an error; ``counted``: that it began is noted already."""
        ...

    def withdrawn(self, arrival: Arrival) -> Ask[None]:
        """Note that an attempt which was to begin did not."""
        ...

    def counts(self, arrival: Arrival) -> Ask[Counts]:
        """The attempts so far, and whether it lies in the dead letters."""
        ...

    def cleared(self, arrival: Arrival) -> Ask[None]:
        """Forget the attempts at a message that is settled."""
        ...

    def bury(self, arrival: Arrival, counts: Counts, error: str) -> list[Ask[None]]:
        """Keep a message as a dead letter, or keep why a dead letter died again; its attempts go with it."""
        ...

    def letters(
        self, chosen: Chosen, *, boundary: str | None = None, after: Place | None = None, limit: int, marked: bool
    ) -> Ask[list[InboxLetter]]:
        """Dead letters, the oldest first, after a place; ``marked``: only those that are to be handled again."""
        ...

    def mark(self, identity: bytes) -> Ask[bool]:
        """Ask that a dead letter be handled again; False when it is not there any more."""
        ...

    def take(self, identity: bytes) -> Ask[bool]:
        """Begin to handle a marked dead letter: one consumer alone gets True, and a crash leaves it unmarked."""
        ...

    def remove(self, identity: bytes) -> Ask[None]:
        """Forget a dead letter."""
        ...

    def advance(self, key: bytes, sequence: int, *, strict: bool) -> Ask[bool]:
        """Move an entity on to a sequence, if it is newer, or, strictly, the next one; False if it is not."""
        ...

    def introduce(self, key: bytes, boundary: str, consumer: str, entity: str, sequence: int) -> Ask[bool]:
        """Note the first sequence of an entity; False when there is one already."""
        ...

    def applied(self, key: bytes) -> Ask[int | None]:
        """The last sequence of an entity, whatever the transaction's snapshot."""
        ...


class OperableOutbox(OutboxStore, Protocol):
    """What people and monitors ask beside that. Every method is pure."""

    def backlog(self) -> Ask[list[Backlog]]:
        """What waits, by topic."""
        ...

    def relays(self) -> Ask[list[RelaySeen]]:
        """The relays that have said they are there, and not that they go."""
        ...

    def beat(self, name: str, hold: str) -> Ask[None]:
        """Note that a relay is there."""
        ...

    def bye(self, names: Sequence[str]) -> Ask[None]:
        """Forget relays."""
        ...

    def buckets(self) -> Ask[set[int]]:
        """The buckets that relays can hold."""
        ...

    def restore(self, there: set[int]) -> Ask[None]:
        """Make the buckets that are missing beside these."""
        ...

    def counts(self) -> Ask[tuple[int, int]]:
        """How many messages are dead letters, and how many are kept that have left."""
        ...

    def pause(self, topic: str) -> Ask[None]:
        """Let nothing of a topic leave."""
        ...

    def resume(self, topic: str) -> Ask[bool]:
        """Let a topic go on; False if it was not paused."""
        ...

    def paused(self) -> Ask[list[str]]:
        """The topics of which nothing leaves."""
        ...

    def letters(self, chosen: Chosen, after: int, limit: int) -> Ask[list[DeadLetter]]:
        """Dead letters, and the heads of parked lanes, in the order of their numbers."""
        ...

    def count(self, chosen: Chosen) -> Ask[dict[tuple[str, str, str], int]]:
        """How many dead letters are chosen, by topic, type and error."""
        ...

    def claim_letters(self, numbers: Sequence[int]) -> Ask[list[int]]:
        """Lock dead letters to the end of the transaction; return those that are still there."""
        ...

    def redrive(self, numbers: Sequence[int]) -> list[Ask[None]]:
        """Put dead letters at the end of their lanes, under the ids that they have."""
        ...

    def unpark(self, numbers: Sequence[int]) -> Ask[int]:
        """Let parked lanes go on with the message that they wait for; return how many were parked."""
        ...


class Cache(Protocol):
    """Settled records of a durable store, kept in a faster one. Losing them costs time, never correctness."""

    def look(self, key: bytes) -> Ask[Cached]:
        """Return what is kept of a key."""
        ...

    def keep(self, record: Record, until: Micros) -> Ask[None]:
        """Keep a settled record until an instant of the cache's clock, unless a later version is known."""
        ...

    def drop(self, changed: Record, until: Micros) -> Ask[None]:
        """Forget a record that was changed; what was read before the change must not be kept until then."""
        ...


class Executor(Protocol):
    """Performs one request on one client library, and returns its answer."""

    def __call__(self, request: Any, /) -> Any: ...


class AsyncExecutor(Protocol):
    """The same for an async client library."""

    def __call__(self, request: Any, /) -> Awaitable[Any]: ...


class OpenTransaction(Protocol[T_co]):
    """A connection of the boundary's own for one transaction: what the handler gets, and the executor."""

    @property
    def handle(self) -> Any:
        """What the handler works with: a connection or a session."""
        ...

    @property
    def execute(self) -> T_co:
        """Performs requests in the transaction."""
        ...


@runtime_checkable
class AfterCommit(Protocol):
    """An open transaction that has something to do after its commit, such as hooks which the user registered in it."""

    def after_commit(self) -> None:
        """Do it. Called once all is recorded; its errors reach the user, and change nothing in the record."""
        ...


class Client(Executor, Protocol):
    """An executor that owns its connections."""

    def transaction(self) -> AbstractContextManager[OpenTransaction[Executor]]:
        """Lend a connection for one transaction; what is still open at the end is rolled back."""
        ...

    def close(self) -> None:
        """Close every connection."""
        ...


@runtime_checkable
class Hearing(Protocol):
    """A client, of either colour, that hears what its server says beside its answers."""

    heard: Callable[[Finding], None]
    """Called with what it heard; set by who uses the client."""


class AsyncClient(AsyncExecutor, Protocol):
    """An async executor that owns its connections."""

    def transaction(self) -> AbstractAsyncContextManager[OpenTransaction[AsyncExecutor]]:
        """Lend a connection for one transaction; what is still open at the end is rolled back."""
        ...

    async def aclose(self) -> None:
        """Close every connection."""
        ...

    def abandon(self) -> None:
        """Let every connection go without the loop it belongs to, which has been closed."""
        ...


class Listener(Protocol):
    """Hears from the store that keys were settled elsewhere. What it misses is found by looking again."""

    def listen(self, key: bytes) -> None:
        """Begin to hear of ``key``; returns at once, and raises nothing."""
        ...

    def ignore(self, key: bytes) -> None:
        """Hear of ``key`` no more."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


class AsyncListener(Protocol):
    """The same on an event loop, where listening never waits either."""

    def listen(self, key: bytes) -> None:
        """Begin to hear of ``key``; returns at once, and raises nothing."""
        ...

    def ignore(self, key: bytes) -> None:
        """Hear of ``key`` no more."""
        ...

    async def aclose(self) -> None:
        """Hang up."""
        ...

    def abandon(self) -> None:
        """Hang up without the loop, which has been closed."""
        ...


class Publisher(Protocol):
    """Hands messages to a broker, or to whatever takes them."""

    def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[Published]:
        """Publish messages of different lanes, and say of each, in this order, how it was taken.

        Returns when each was taken as safely as it was asked to. An exception means that nobody can tell of any.
        """
        ...

    def close(self) -> None:
        """Hang up."""
        ...


class AsyncPublisher(Protocol):
    """The same on an event loop."""

    async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[Published]:
        """Publish messages of different lanes, and say of each, in this order, how it was taken."""
        ...

    async def aclose(self) -> None:
        """Hang up."""
        ...


class Consumer(Protocol):
    """Takes messages from a broker, and tells it what became of them. On an event loop.

    What was received and not settled when the consumer goes, by a crash or by `aclose`, the broker hands out again.
    """

    @property
    def redelivers(self) -> float | None:
        """For how many seconds after it was published a message may be handed out again; None: nobody can tell."""
        ...

    async def receive(self, most: int, wait: float, /) -> Sequence[Delivery]:
        """Up to so many messages, in the order of their partitions; waits so many seconds for the first one.

        Raises what the client library raises when the broker cannot be reached; the next call connects again.
        """
        ...

    async def ack(self, deliveries: Sequence[Delivery], /) -> None:
        """Tell the broker that these are settled. What cannot be told is delivered again, which is harmless."""
        ...

    async def give_back(self, delivery: Delivery, delay: float, /) -> None:
        """Let the broker hand it out again after about so many seconds, to this or another consumer."""
        ...

    async def aclose(self) -> None:
        """Hang up; what is not settled is the broker's again."""
        ...


class Codec(Protocol):
    """Turns results into bytes and back. Decoding must give a value equal to the one encoded."""

    def encode(self, value: Any, annotation: Any) -> Stored:
        """Encode ``value``; ``annotation`` is the declared return type, or None when there is none.

        Raises `ResultNotEncodable` when the value could not be decoded to an equal one.
        """
        ...

    def decode(self, stored: Stored, annotation: Any) -> Any:
        """Decode; raises `ResultNotEncodable` when the bytes cannot be read by this version."""
        ...


class Occurrence(NamedTuple):
    """Something retrysafe decided. ``name`` is stable; ``fields`` depend on it; the key is redacted."""

    name: str
    boundary: str
    operation: str
    key: str
    attempt: str
    fields: Mapping[str, Any]


class Observer(Protocol):
    """Is told of every decision. It must be quick, and what it raises is logged and ignored.

    It is told in the thread or task of the decision; of leases also in the heartbeat's. Two methods are optional:
    ``wants(name) -> bool``, asked before an occurrence is made, spares it those it has no use for;
    ``watch(received) -> Watch`` gives a watch over each attempt, which is told of that attempt in its place.
    """

    def __call__(self, occurrence: Occurrence, /) -> None: ...


class Watch(Protocol):
    """What an observer keeps of one attempt. The attempt alone holds it: it goes with an attempt that never ends.

    It is made in the context that enters the claim, before the store is asked, and is told of all that follows,
    of "received" first. What it sets in that context is in force for the guarded work.
    """

    def __call__(self, occurrence: Occurrence, /) -> None: ...

    def close(self, error: BaseException | None, /) -> None:
        """The attempt is over, left by ``error``: in the context that leaves the claim, which may be another one.

        A process that was forked inside the block closes its copy too.
        """
        ...


# ---------------------------------------------------------------- request languages


class Query(NamedTuple):
    """One SQL statement with ``:name`` parameters.

    ``otherwise`` is performed, as a new statement, when this one gives no row. ``writes`` tells an
    executor with separate lanes which one to use; ``control`` names transaction control, which
    session objects perform by method rather than by text. ``refusals`` holds errors that are answers,
    by SQLSTATE: a lock that another has, a savepoint that is gone; each with the statement to perform
    instead, or None for an answer without rows. ``written`` reads what this statement has changed, if it
    has changed anything, where the server does not return it.
    """

    sql: str
    params: Mapping[str, Any]
    otherwise: Query | None = None
    writes: bool = True
    control: str | None = None
    refusals: Mapping[str, Query | None] = MappingProxyType({})
    written: Query | None = None


class Copy(NamedTuple):
    """Rows in bulk, in PostgreSQL's binary format: ``chosen`` ones to the spool, or, if None, the spool to the table.

    Rows that are put into a table which the same transaction has emptied are frozen: no snapshot misses them.
    """

    partition: Partition
    chosen: str | None
    spool: BinaryIO

    @property
    def sql(self) -> str:
        """The statement, for libraries that are given one."""
        if self.chosen is not None:
            return f"COPY ({self.chosen}) TO STDOUT (FORMAT binary)"
        return f"COPY {self.partition.quoted} FROM STDIN (FORMAT binary, FREEZE)"


class Rows(NamedTuple):
    """The answer to a Query: all rows, or for a statement without rows how many it changed."""

    rows: list[tuple[Any, ...]]
    affected: int


class Script(NamedTuple):
    """One Redis script by name, with the keys and arguments of this call."""

    name: str
    source: str
    keys: tuple[bytes, ...]
    args: tuple[Any, ...]


class Scan(NamedTuple):
    """One page of the Redis keys that match ``pattern``, and a script that is run for each of them.

    ``lasting``: only for keys that would never expire by themselves.
    """

    pattern: bytes
    cursor: str | None
    size: int
    script: Script
    lasting: bool = False


class Scanned(NamedTuple):
    """The answer to a Scan: keys with what the script said of them, and where to go on (None: the end)."""

    found: list[tuple[bytes, Any]]
    cursor: str | None


class Settings(NamedTuple):
    """What every Redis master tells of itself, and these of its configuration; what it refuses to tell is missing.

    The answer is one mapping of names to texts for each master.
    """

    names: tuple[str, ...]


class Call(NamedTuple):
    """One DynamoDB call. Error codes that are ``expected`` are answers; ``waits``: it names a waiter of the library."""

    operation: str
    arguments: Mapping[str, Any]
    expected: frozenset[str] = frozenset()
    waits: bool = False


class Answer(NamedTuple):
    """The answer to a Call: an error code that was expected, or None, and the response with it."""

    refused: str | None
    response: Mapping[str, Any]


Step = Callable[[dict[bytes, Record], Micros], Any]
"""A request to the memory store: a step over its records at a time."""
