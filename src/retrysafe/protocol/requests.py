"""`Ask`: one request to a store, together with the function that parses its answer; and the requests of SQL.

Procedures yield asks. The requests of other stores stand in their folders.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from types import MappingProxyType
from typing import Any, BinaryIO, Generic, NamedTuple, TypeVar

from retrysafe.errors import ConfigurationError, StoreUnavailable
from retrysafe.protocol.records import Partition

R = TypeVar("R")


class Ask(Generic[R]):
    """One request, and the function that parses its answer."""

    __slots__ = ("parse", "request")

    def __init__(self, request: Any, parse: Callable[[Any], R]) -> None:
        self.request = request
        self.parse = parse


def nothing(answer: object) -> None:
    """The answer of an ask that only changes something."""


def as_it_is(answer: Any) -> Any:
    """The answer of an ask that needs no parsing."""
    return answer


Program = Generator[Ask[Any], Any, R]
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


class TransactionEnded(ConfigurationError):
    """The transaction of a claim takes no more: the handler has ended it, or has caught an error that did."""

    def __init__(
        self,
        detail: str = "The transaction of the claim had ended before its result could join it: the handler rolled it "
        "back, or caught an error with which the database did. The record went with it, so nothing is stored, and a "
        "retry runs again. Leave the end to whoever began it: put a part that may fail into a savepoint "
        "(session.begin_nested(), connection.transaction()), or let the error out.",
    ) -> None:
        super().__init__(detail)


class Query(NamedTuple):
    """One SQL statement with ``:name`` parameters.

    ``otherwise`` is performed, as a new statement, when this one gives no row. ``writes`` tells an
    executor with separate lanes which one to use; ``control`` names transaction control, which
    session objects perform by method rather than by text. ``refusals`` maps the SQLSTATE of errors
    that count as answers (a lock that is taken, a savepoint that is gone) to the statement to perform instead, or to
    None for an answer without rows. ``written`` reads the rows that this statement has changed, if it has changed any,
    where the server does not return them. ``merged`` is a statement that performs many such queries, each by itself:
    its parameters are arrays of theirs, and its rows begin with the parameter ``key``. ``patient``: a schema's
    statement, which may take as long as a table is large, so that no deadline of a driver's applies.
    """

    sql: str
    params: Mapping[str, Any]
    otherwise: Query | None = None
    writes: bool = True
    control: str | None = None
    refusals: Mapping[str, Query | None] = MappingProxyType({})
    written: Query | None = None
    merged: str | None = None
    patient: bool = False


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
