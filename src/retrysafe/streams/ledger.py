"""The ledger of a stream job: data and how far its input is written, in one commit."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, Protocol

from retrysafe.errors import ConfigurationError
from retrysafe.streams.errors import Fenced, LedgerError, OriginChanged, PositionMissing
from retrysafe.streams.positions import NONE, Position, Positions, refuse_autocommit

_TURNS = 5
"""The number of looks at a position that another process has moved in between."""


class Span(NamedTuple):
    """The part of a source in a batch: the positions from ``first`` up to, and without, ``next``."""

    first: int
    next: int


class Ledger(Protocol):
    """The interface of a ledger to the engines' helpers; `SqlLedger` and Kafka's `KafkaLedger` are two."""

    def take(self, source: str) -> int:
        """Take a source over from whichever process has it, and return the new epoch."""
        ...

    def apply(
        self,
        source: str,
        span: Span,
        work: Callable[[Any, int], object],
        *,
        origin: str = "",
        epoch: int | None = None,
        gaps: bool = True,
    ) -> bool:
        """Call ``work`` unless the span is written already; its data and the position are committed together.

        Arguments:
            source: the input, such as a partition; each has positions of its own.
            span: of the batch. What the ledger has of its front is not to be written again.
            work: is called with the target (a connection, a producer) and the first position to write.
            origin: what positions are counted from; raises `OriginChanged` when it is not that of the ledger.
            epoch: from `take`; raises `Fenced` when another process has taken the source over since.
            gaps: whether positions may be missing, as offsets of Kafka may; else raises `PositionMissing`.

        Returns whether ``work`` was called. Whatever ``work`` raises rolls back and goes on. If it is the commit that
        fails, it may be unknown whether it was made: apply the same span again, and the ledger tells.
        """
        ...

    def close(self) -> None:
        """Close its connections; what uses it later opens new ones."""
        ...


def first_to_write(
    job: str, source: str, found: Position, span: Span, *, origin: str, epoch: int | None, gaps: bool
) -> int | None:
    """The first position to write, or None if there is none. Pure. Raises `LedgerError` as `Ledger.apply` says."""
    where = f"job {job!r}, source {source!r}"
    if span.first < 0 or span.next <= span.first:
        raise ValueError(f"{where}: the span {span.first} to {span.next} is empty, or begins below 0")
    if epoch is not None and found.epoch != epoch:
        raise Fenced(f"{where}: this process has epoch {epoch}, and another has taken epoch {found.epoch}.")
    if found.next == NONE:
        return span.first
    if origin != found.origin:
        raise OriginChanged(
            f"{where}: positions up to {found.next} were counted from {found.origin!r}, and now from {origin!r}, as "
            "after a checkpoint was deleted or a topic made again. The same numbers mean other input: nothing was "
            "written. Use another name for the job, or forget() the ledger, when you know that no input is written "
            "twice."
        )
    if span.first > found.next and not gaps:
        raise PositionMissing(
            f"{where}: the ledger ends before {found.next} and this batch begins with {span.first}; what is between "
            "was not written by this job. Was the database restored from a backup?"
        )
    return max(span.first, found.next) if span.next > found.next else None


def source_of(name: object) -> str:
    """The source that a key or a name of an engine stands for: text as it is, other values by their repr.

    1 and "1" are two. Raises `ConfigurationError` for what another process would write differently.
    """
    if isinstance(name, str):
        name = str.__str__(name)  # of an enum its value, however it is formatted
        if not name.startswith(_OTHER):
            return name
    if _varies(name):
        raise ConfigurationError(
            f"The key or name {name!r:.80} is written differently by another process, which would not find what is "
            "written already. Nothing was written. Use text, numbers, or tuples of them."
        )
    return f"{_OTHER}{name!r}"


_OTHER = "repr "
_OF_A_PROCESS = re.compile(r" at 0x[0-9A-Fa-f]+>|frozenset\(")
"""An address, or members in the order of their hashes, which Python makes anew for each process."""


def _varies(value: object) -> bool:
    """Tell whether another process may write an equal value differently; sets and dicts have no order of their own."""
    if isinstance(value, str | bytes):
        return False
    if isinstance(value, tuple | list):
        return any(map(_varies, value))
    if isinstance(value, Set | Mapping):
        return True
    if is_dataclass(value) and not isinstance(value, type):
        return any(_varies(getattr(value, field.name)) for field in fields(value) if field.repr)
    return _OF_A_PROCESS.search(repr(value)) is not None


class SqlLedger:
    """A `Ledger` in a table of the database that the data is written to. Use it in one thread.

    ::

        ledger = SqlLedger(lambda: psycopg.connect(url), "totals")

        def work(connection, first):
            connection.execute("INSERT INTO totals …")

        ledger.apply("orders/0", Span(100, 150), work)

    It is pickled without its connection, and opens one where it is used.

    Arguments:
        connect: opens a connection of the DB-API, not in autocommit; called again when one has failed.
        job: the name of the job. Two jobs of one name would take each other's input for written.
        placeholder: of a parameter in its SQL: "?" for SQLite.
        table: where the positions are; the ledger makes it when it is missing.
    """

    def __init__(
        self, connect: Callable[[], Any], job: str, *, placeholder: str = "%s", table: str = "retrysafe_positions"
    ) -> None:
        self._connect, self._mark = connect, placeholder
        self._positions = Positions(job, table, placeholder)
        self._connection: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None}

    def take(self, source: str) -> int:
        """See `Ledger.take`."""
        return self._positions.take(self._open(), source).epoch

    def position(self, source: str) -> int:
        """The first position of a source that is not written; below 0: none is."""
        found = self._positions.find(self._open(), source)
        return NONE if found is None else found.next

    def apply(
        self,
        source: str,
        span: Span,
        work: Callable[[Any, int], object],
        *,
        origin: str = "",
        epoch: int | None = None,
        gaps: bool = True,
    ) -> bool:
        """See `Ledger.apply`. ``work`` gets the connection; it neither commits nor rolls back."""
        try:
            for _ in range(_TURNS):
                found = self._find(source, origin)
                first = first_to_write(self._positions.job, source, found, span, origin=origin, epoch=epoch, gaps=gaps)
                if first is None:
                    return False
                to = Position(span.next, found.epoch, origin)
                # Before the work: another job with the same batch waits here, and then sees that it is written.
                if self._positions.move(self._connection, source, found, to):
                    work(self._connection, first)
                    self._connection.commit()
                    return True
                self._connection.rollback()
        except BaseException:
            self._roll_back()
            raise
        where = f"job {self._positions.job!r}, source {source!r}"
        raise LedgerError(f"Gave up after {_TURNS} attempts: other processes kept advancing {where}.")

    def forget(self) -> int:
        """Delete what the ledger knows of the job, and return how many sources that were."""
        return self._positions.forget(self._open())

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _find(self, source: str, origin: str) -> Position:
        connection = self._open()
        return self._positions.find(connection, source) or self._positions.begin(connection, source, origin)

    def _open(self) -> Any:
        if self._connection is None:
            connection = self._connect()
            try:
                refuse_autocommit(connection, self._mark)
                self._positions.create(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _roll_back(self) -> None:
        """End the transaction; a connection that cannot is replaced by the next batch."""
        connection = self._connection
        if connection is None:
            return
        try:
            connection.rollback()
        except Exception:  # noqa: BLE001 - of whatever driver
            with suppress(Exception):
                connection.close()
            self._connection = None
