"""Queries of one event loop that are performed together: while one statement is under way, others of its kind queue up,
and what has queued becomes one statement. A query that meets none under way is performed with those of the same turn of
the loop, so nothing waits for a timer.

What a query is told does not differ from what it would be told alone:

- Its answer is the row of its key, which the store parses and judges like that of a statement of its own. A statement
  never has a key twice. Queries that are told the record, by any writer, share the row of one that asks for the same
  key: they would find it so a moment later. A query that is told of its own writing alone waits for the next statement.
- When the server has refused the statement, it has undone all of it. Each query is then performed alone, outside of the
  lane, so that an error, or a lock that another holds, is the matter of the one that met it. A merged statement waits
  for no lock for long.
- When there was no answer, it is not known what was done. Each query gets the `StoreUnavailable` that it would get
  alone, and its procedure asks again and recognises what it has written.
- A caller that is cancelled leaves the queue. If the statement is under way, it goes on for the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

from retrysafe.backends.sql.drivers.base import NO_ROWS, is_unreachable, sqlstate
from retrysafe.backends.sql.drivers.pool import CHECKOUT, Size
from retrysafe.errors import StoreUnavailable
from retrysafe.protocol.requests import Query, Rows

Perform = Callable[[Query], Awaitable[Rows]]

_OVERDUE = Size().pool_exhausted
MOST_AT_ONCE = 64
MOST_BYTES = 1 << 20
"""The largest number of result bytes that one statement writes, unless a single result is larger."""


class _Item(NamedTuple):
    """A query in the queue, and its answer: rows, or the query to be performed alone instead."""

    query: Query
    answer: asyncio.Future[Rows | Query]
    since: float


class QueryLane:
    """The queue of one kind of query."""

    def __init__(self, perform: Perform, overdue: Callable[[], StoreUnavailable] = _OVERDUE) -> None:
        self._perform = perform
        self._overdue = overdue
        self._loop = asyncio.get_running_loop()
        self._queue: list[_Item] = []
        self._is_under_way = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, query: Query) -> Rows:
        """Perform a query, with those that are queued if it has to queue up."""
        is_first, self._is_under_way = not self._is_under_way, True
        if is_first and not await self._is_joined():
            try:
                answer = (await self._answers([query]))[0]
            finally:
                self._next()
        else:
            item = _Item(query, self._loop.create_future(), self._loop.time())
            self._queue.append(item)
            if is_first:
                self._next()
            answer = await item.answer
        return answer if isinstance(answer, Rows) else await self._perform(answer)

    async def _is_joined(self) -> bool:
        """Tell whether others queue up in the same turn of the loop, as those do whom one statement has answered."""
        try:
            await asyncio.sleep(0)
        except BaseException:
            self._next()
            raise
        return bool(self._queue)

    def _next(self) -> None:
        """The statement has ended: begin the next one, if a caller is waiting for it."""
        batch = self._take()
        self._is_under_way = bool(batch)
        if batch:
            task = self._loop.create_task(self._together(batch))
            self._tasks.add(task)
            task.add_done_callback(partial(self._end, batch))

    def _end(self, batch: list[_Item], task: asyncio.Task[None]) -> None:
        """A task has ended, maybe before it began: who cancels all tasks of a loop cancels it too."""
        self._tasks.discard(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:
            cut_off = StoreUnavailable(f"The statement was cut off: {error!r}")
            cut_off.__cause__ = error
            _fail(batch, cut_off)
        self._next()

    def _take(self) -> list[_Item]:
        """Take the items of one statement, in the order of their keys, so that no two wait for each other."""
        chosen: dict[bytes, list[_Item]] = {}
        rest: list[_Item] = []
        room, oldest = MOST_BYTES, self._loop.time() - CHECKOUT
        for item in self._queue:
            key, size = item.query.params["key"], len(item.query.params.get("result") or b"")
            if item.answer.done():  # its caller was cancelled
                continue
            if item.since < oldest:
                item.answer.set_exception(self._overdue())
            elif key in chosen and item.query.otherwise is not None:
                chosen[key].append(item)
            elif key in chosen or len(chosen) >= MOST_AT_ONCE or (chosen and size > room):
                rest.append(item)
            else:
                chosen[key] = [item]
                room -= size
        self._queue = rest
        return [item for key in sorted(chosen) for item in chosen[key]]

    async def _together(self, batch: list[_Item]) -> None:
        try:
            answered = [*zip(batch, await self._answers([item.query for item in batch]), strict=True)]
        except StoreUnavailable as error:
            _fail(batch, error)
        else:
            for item, answer in answered:
                if not item.answer.done():
                    item.answer.set_result(answer)

    async def _answers(self, queries: list[Query]) -> list[Rows | Query]:
        merged = queries[0].merged
        assert merged is not None
        asked = {query.params["key"]: query for query in reversed(queries)}  # the first of a key asks for all of them
        first = [asked[key] for key in reversed(asked)]
        params = {name: [query.params[name] for query in first] for name in queries[0].params}
        try:
            rows = await self._perform(Query(merged, params))
        except StoreUnavailable as error:
            if not _has_undone(error):
                raise
            return [*queries]
        except Exception:  # noqa: BLE001 - it refused the statement, and each query will meet its own error
            return [*queries]
        found = {bytes(row[0]): row for row in rows.rows}
        return [_answer(query, found.get(query.params["key"])) for query in queries]

    async def aclose(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)


def _answer(query: Query, row: tuple[Any, ...] | None) -> Rows | Query:
    """The answer by the row of the query's key, as `ain_turn` gives it."""
    if row is not None:
        return Rows([row], 1)
    return NO_ROWS if query.otherwise is None else query.otherwise


def _has_undone(error: StoreUnavailable) -> bool:
    """Tell whether the server has refused the statement, so that nothing of it was done."""
    cause = error.__cause__
    return cause is not None and sqlstate(cause) is not None and not is_unreachable(cause)


def _fail(batch: list[_Item], error: StoreUnavailable) -> None:
    for item in batch:
        if not item.answer.done():
            told = StoreUnavailable(
                error.detail,
                unsent=error.unsent,
                transient=error.transient,
                more_connections=error.more_connections,
            )
            told.__cause__ = error.__cause__
            item.answer.set_exception(told)


class QueryLanes:
    """The lanes of one client, by the statements that perform many queries."""

    def __init__(self, perform: Perform, overdue: Callable[[], StoreUnavailable] = _OVERDUE) -> None:
        self._perform = perform
        self._overdue = overdue
        """The error of a query that has queued up for too long."""
        self._lanes: dict[str, QueryLane] = {}

    def __call__(self, query: Query) -> Awaitable[Rows]:
        """Perform a query: with others if it can be, else alone."""
        if query.merged is None:
            return self._perform(query)
        lane = self._lanes.get(query.merged)
        if lane is None:
            lane = self._lanes[query.merged] = QueryLane(self._perform, self._overdue)
        return lane.ask(query)

    async def aclose(self) -> None:
        for lane in self._lanes.values():
            await lane.aclose()
