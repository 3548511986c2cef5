"""Loads of a boundary into a target: each run once, each part of a table by the last run that began.

A run is a claim: run again, it gives its summary and reads nothing. The part of a table that it writes has a fence in
the target, which each load sets one higher than it has seen at its beginning, in the commit of its data. So of two
runs one is told that it came too late, also if it was believed to be dead; and a commit whose reply was lost is looked
up, never sent again blindly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from datetime import datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from retrysafe.backends.user_tables import refuse_text
from retrysafe.errors import ConfigurationError, KeyReused, StaleToken, StoreUnavailable
from retrysafe.loads.targets import target_of
from retrysafe.loads.work import (
    Bound,
    Late,
    Mark,
    Merge,
    Strategy,
    Window,
    Work,
    in_scope,
    may_publish,
    part_of,
    read,
    text_of_bound,
)
from retrysafe.protocol import keys
from retrysafe.protocol.durations import seconds
from retrysafe.protocol.records import Duration

if TYPE_CHECKING:
    from retrysafe.boundary import Boundary

_OF_WINDOW = "window"
_ARGUMENTS = {"part": "by=, partition= or window=", "high": "window="}
"""Arguments of `Loads.load` by the parts of a run's payload that are called otherwise."""


class Load(NamedTuple):
    """A finished load.

    rows: how many rows were given, less the late ones.
    fence: the number of this load of its part, higher than those before.
    run: the run that it belongs to.
    superseded: the run whose data it came after, if there was one.
    late: how many rows were below the window, and are in the table of ``late=``.
    """

    rows: int
    fence: int
    run: str
    superseded: str | None
    late: int = 0


class Loads:
    """Loads into one target.

    Arguments:
        boundary: keeps the runs; its ``effects`` are "keyed".
        target: a database as ``store=`` takes it (a URL, an engine, a pool, a Django alias) on SQLite, PostgreSQL,
            MySQL or MariaDB, which has retrysafe's tables; "duckdb:///file.db" or a connection of DuckDB; the folder of
            Delta tables, as "delta:///lake" or "delta:s3://bucket/lake"; or a catalog of PyIceberg.

    It serves sync code; async code calls it in a thread.
    """

    def __init__(self, boundary: Boundary[Any], target: Any) -> None:
        if boundary.effects != "keyed":
            raise ConfigurationError("A boundary of loads has effects='keyed': its target recognises each run.")
        self._boundary = boundary
        self._target = target_of(target)

    def load(
        self,
        table: str,
        *,
        rows: Callable[[], Any],
        run: str,
        by: str | None = None,
        partition: Any = None,
        strategy: Strategy = "overwrite",
        input: Any = None,
        version: int | None = None,
        window: Window | None = None,
        late: Late | None = None,
        check: Callable[[Any], Any] | None = None,
        tag: str | None = "loaded_by",
    ) -> Load:
        """Load a part of a table, once for each run.

        Arguments:
            table: its name.
            rows: is called only if there is something to do, and gives tuples in the order of the table's columns
                without ``tag``, mappings, an Arrow table, or the text of a SELECT on the target.
            run: names the work, such as "nightly 2026-11-27"; the same again gives its `Load` and loads nothing.
            by, partition: the column and its value in each row, where a load is one part of a table; without them it
                is the whole table.
            strategy: "overwrite" (the part has these rows and no others), "append_once" (they are added), or a `Merge`.
            input: a fingerprint of what is loaded; the same run with another one is refused with `KeyReused`.
            version: the number of the input, such as a batch's or a file's time: a load of a lower one than was loaded
                is refused. Without it, an old run that is tried again after a newer one puts its old data back.
            window: from `window`; the load then moves the beginning of the next one.
            late: a `Late`: rows that are below the window go to a table of their own, in the same commit, and are
                counted. Without it they are loaded like others.
            check: is called with the transaction before its commit; what it raises, or False, undoes the load.
            tag: a text column of the table for run and fence; None: there is none.

        Raises `StaleToken` if another run has loaded this part since this one began, or all of the table or any part of
        it where one of the two runs is of all, and `StoredFailure` whenever this one is tried again; `InProgress` if
        this run is under way; and whatever ``rows`` and ``check`` raise. Nothing was loaded then.
        """
        keys.check_name(run, "run")
        name = strategy if isinstance(strategy, str) else "merge"
        refuse_text("key", getattr(strategy, "key", ()))
        self._refuse(name, by, partition, version, window, rows)
        self._refuse_late(late, window, tag)
        tenant = self._boundary.entrypoint.tenant()
        named = keys.check_name(in_scope(run, tenant), "run")
        part = f"run {named}" if name == "append_once" and window is None else part_of(by, partition)
        mark = Mark(0, named, 0, version, None if window is None else text_of_bound(window.high))
        work = Work(
            table,
            keys.check_name(part if window is None else in_scope(_OF_WINDOW, tenant), "partition"),
            by,
            partition,
            rows,
            strategy,
            check,
            tag,
            mark,
            late,
            None if window is None else window.low,
        )
        given = {"part": work.part, "strategy": name, "input": input, "version": version, "high": mark.high}
        operation = f"load {self._target.locate(table)}"
        if len(operation) > keys.LONGEST:
            operation = f"load {table} {sha256(operation.encode()).hexdigest()[:32]}"
        with ExitStack() as entered:
            claim = self._boundary.claim(run, operation=operation, payload=given, scope=tenant)
            try:
                entered.enter_context(claim)
            except KeyReused as error:
                raise claim._sign(KeyReused(_differs(table, run, error.differing), differing=error.differing)) from None
            if not claim.replayed:
                try:
                    claim.result = self._publish(work, window)._asdict()
                except StaleToken as error:  # for good: tried again, the run would put its data over later ones
                    claim.fail(error)
                    raise
        return Load(**claim.result)

    def window(self, table: str, upto: Bound, *, overlap: Duration | int = 0) -> Window:
        """The part of a source that comes next: behind what was loaded, up to ``upto``.

        ``upto`` is what the source calls complete, never the time of now: rows that are committed late would be
        missed. With ``overlap`` the window begins earlier by a duration, or by a number; load it with a `Merge`.
        """
        text_of_bound(upto)
        last, _ = self._target.look(table, in_scope(_OF_WINDOW, self._boundary.entrypoint.tenant()))
        if last is None or last.high is None:
            return Window(None, upto)
        before = read(last.high)
        kinds = {(type(bound), getattr(bound, "tzinfo", None) is None) for bound in (before, upto)}
        if len(kinds) > 1 or upto < before:  # type: ignore[operator]
            raise ConfigurationError(
                f"upto={upto!r} is below {before!r}, up to which {table} was loaded, or of another kind (a number, an "
                "instant, one without a zone). Was it restored?"
            )
        back: Any = (
            timedelta(seconds=seconds(overlap, "overlap") if overlap else 0) if isinstance(upto, datetime) else overlap
        )
        low: Any = before
        return Window(low - back, upto, last.fence)

    def _publish(self, work: Work, window: Window | None) -> Load:
        last, beside = self._target.look(work.table, work.part)
        if last is not None and last.run == work.mark.run:
            work = work._replace(mark=last)  # its commit was made, and its reply was lost
            return Load(last.counted, last.fence, last.run, None, self._count_late(work))
        version = work.mark.version
        if last is not None and last.version is not None and version is not None and version < last.version:
            raise StaleToken(f"Version {last.version} was loaded by run {last.run!r}; this run has {version}.")
        seen = Mark(0, "") if last is None else last
        if window is not None and work.strategy == "append_once" and window.fence == seen.fence and seen.high:
            before: Any = read(seen.high)
            if window.low is not None and window.low < before:
                raise ConfigurationError(
                    f"The window begins at {window.low!r}, and {work.table} was loaded up to {before!r}: append_once "
                    "would add the rows between them again. Load it with a Merge, or without overlap=. Nothing was "
                    "loaded."
                )
        mark = work.mark._replace(
            fence=(seen.fence if window is None else window.fence) + 1,
            version=seen.version if work.mark.version is None else work.mark.version,
        )
        work = work._replace(mark=mark, beside=None if isinstance(work.strategy, Merge) else beside)
        try:
            counted = self._target.publish(work)
        except StoreUnavailable:
            found, beside = self._target.look(work.table, work.part)
            if found is None or may_publish(found, beside, work):
                raise
            counted = found.counted
        superseded = None if last is None else last.run
        return Load(counted, work.mark.fence, work.mark.run, superseded, self._count_late(work))

    def _count_late(self, work: Work) -> int:
        return 0 if work.late is None else self._target.count_late(work)

    def _refuse_late(self, late: Late | None, window: Window | None, tag: str | None) -> None:
        if late is not None and (window is None or tag is None or not self._target.keeps_late):
            raise ConfigurationError(
                "late= is for loads with window= and tag=, by which its rows are counted, on a SQL target or DuckDB. "
                "Nothing was loaded."
            )

    def _refuse(
        self, strategy: str, by: str | None, partition: Any, version: int | None, window: Window | None, rows: Any
    ) -> None:
        if strategy not in self._target.strategies:
            able = ", ".join(sorted(self._target.strategies))
            raise ConfigurationError(
                f"strategy={strategy!r}: this target has {able}. To swap what was checked, overwrite with check=: "
                "that is one commit. Nothing was loaded."
            )
        if not callable(rows):
            raise ConfigurationError("rows= has to be a function: it is called again when a load is tried again.")
        if by is not None and not isinstance(by, str):
            raise ConfigurationError(f"by={by!r} has to be the name of one column. Nothing was loaded.")
        if (by is None) != (partition is None):
            raise ConfigurationError("by= and partition= belong together.")
        if window is not None and (by is not None or strategy == "overwrite"):
            raise ConfigurationError("window= is for a Merge or append_once of a whole table.")
        if version is not None and type(version) is not int:
            raise ConfigurationError(f"version={version!r} has to be a whole number, such as a time in microseconds.")


def _differs(table: str, run: str, differing: Iterable[str]) -> str:
    """The refusal of a run that was begun with other arguments."""
    names = dict.fromkeys(name.partition(".")[0] for name in differing)
    given = ", ".join(_ARGUMENTS.get(name, f"{name}=") for name in names)
    return (
        f"Run {run!r} of {table} was begun with another value of {given}. Nothing was loaded. Give this load a run= of "
        "its own, or the arguments of the first."
    )
