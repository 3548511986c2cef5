"""The requests that stores build and clients execute (SQL queries, Redis scripts, DynamoDB calls), and `Ask`.

An ask is one request to a store, together with the function that parses its answer. Procedures yield asks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from types import MappingProxyType
from typing import Any, BinaryIO, Generic, NamedTuple, TypeVar

from retrysafe.errors import StoreUnavailable
from retrysafe.protocol.records import Micros, Partition, Record

R = TypeVar("R")


class Ask(NamedTuple, Generic[R]):
    """One request, and the function that parses its answer."""

    request: Any
    parse: Callable[[Any], R]


Steps = Generator[Ask[Any], Any, R]
"""A program: it yields asks, is sent their parsed answers, and returns an outcome."""


def ask(request: Ask[R], *, again: bool = False) -> Generator[Ask[Any], Any, R]:
    """Put one ask; with ``again`` put it once more if the store did not answer what it was sent.

    Only asks that recognise their own lost reply, by attempt id, may be put again.
    """
    try:
        answer: R = yield request
    except StoreUnavailable as error:
        if not again or error.unsent:
            raise
        answer = yield request
    return answer


class Query(NamedTuple):
    """One SQL statement with ``:name`` parameters.

    ``otherwise`` is performed, as a new statement, when this one gives no row. ``writes`` tells an
    executor with separate lanes which one to use; ``control`` names transaction control, which
    session objects perform by method rather than by text. ``refusals`` maps the SQLSTATE of errors
    that count as answers (a lock that is taken, a savepoint that is gone) to the statement to perform instead, or to
    None for an answer without rows. ``written`` reads the rows that this statement has changed, if it has changed any,
    where the server does not return them. ``merged`` is a statement that performs many such queries, each by itself:
    its parameters are arrays of theirs, and its rows begin with the parameter ``key``.
    """

    sql: str
    params: Mapping[str, Any]
    otherwise: Query | None = None
    writes: bool = True
    control: str | None = None
    refusals: Mapping[str, Query | None] = MappingProxyType({})
    written: Query | None = None
    merged: str | None = None


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
    """The answer to a Query: all rows, or the number of changed rows of a statement that returns none."""

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
    """The answer to a Scan: keys with the script's answers, and the next cursor (None: the end)."""

    found: list[tuple[bytes, Any]]
    cursor: str | None


class Settings(NamedTuple):
    """Asks each Redis master for its INFO and for these of its settings. A setting that it refuses to show is missing.

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
