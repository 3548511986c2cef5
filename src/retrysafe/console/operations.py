"""Changes to everything that a filter selects, as operations that survive their process.

An operation is guarded by retrysafe itself, in a boundary of the console's in the same store. Its plan is the stored
result of one key; its run is a claim, so that one process at a time carries it out; and each batch is a claim below it
whose result has the totals and the place to go on from. If the process dies, the lease lapses, and the process that
resumes the operation replays the finished batches and goes on behind them. Every process reads the same progress.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import Any, NamedTuple, Protocol

from retrysafe.admin.operator import Batch, Operator
from retrysafe.boundary import Boundary
from retrysafe.claims.codec import JSONCodec, decode_failure
from retrysafe.claims.encryption import Keyring
from retrysafe.errors import ConfigurationError, InProgress, RetrysafeError, StoredFailure
from retrysafe.protocol.records import EffectiveState, Record

NAME = "retrysafe.console"
"""The boundary of operations."""
LISTED_DAYS = 7
_BEGINNING = 5.0
"""Seconds that a page waits for an operation to begin."""
_PLAN, _RUN, _BATCH, _CANCEL, _LIST = "plan", "run", "batch", "cancel", "list"
_LOG = logging.getLogger("retrysafe.console")

Plan = dict[str, Any]
"""The definition of an operation: its id, verb, fields of the filter, actor, reason, and the arguments of the verb."""
Step = Callable[[Plan, str | None], Batch]


class OperationState(StrEnum):
    """The state of an operation."""

    WAITING = "waiting"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"
    FAILED = "failed"
    DONE = "done"


class Operation(NamedTuple):
    """A plan, and how far it has come; ``error`` is why it failed."""

    plan: Plan
    state: OperationState
    changed: int
    unchanged: int
    error: str = ""


class OperationStopped(Exception):
    """The process ends: the run is released, to be resumed."""


class OperatedStore(Protocol):
    """The part of a console that operations use."""

    store: Any
    encryption: Keyring | None


class Operations:
    """Starts, shows, cancels and resumes operations; each runs in a thread of its own."""

    def __init__(self, console: OperatedStore, step: Step) -> None:
        self._console = console
        self._step = step
        self._boundary: Boundary | None = None
        self._opening = threading.Lock()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    # ------------------------------------------------------------ from the pages

    def start(self, plan: Plan) -> None:
        """Store a plan and carry it out; the same plan again does nothing more."""
        with self._boundary_of().claim(plan["id"], operation=_PLAN, payload=plan) as claim:
            if not claim.replayed:
                claim.result = plan
                self._enlist(plan["id"])
        self.resume(plan)

    def resume(self, plan: Plan) -> None:
        """Carry out a plan from where it was left, unless a process is at it or it has ended.

        Returns when it is under way, so that the next page shows it so, or after `_BEGINNING` seconds.
        """
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        begun = threading.Event()
        thread = threading.Thread(target=self._carry_out, args=(plan, begun), name="retrysafe-operation", daemon=True)
        self._threads.append(thread)
        thread.start()
        begun.wait(_BEGINNING)

    def cancel(self, plan: Plan, by: str) -> None:
        with self._boundary_of().claim(plan["id"], operation=_CANCEL) as claim:
            if not claim.replayed:
                claim.result = by

    def close(self) -> None:
        """Stop before the next batches; what is left can be resumed."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        if self._boundary is not None:
            self._boundary.close()

    # ------------------------------------------------------------ how it stands

    def find(self, number: str) -> Operation | None:
        with self._operator() as operator:
            return self._find(operator, number)

    def recent(self, most: int = 20) -> list[Operation]:
        with self._operator() as operator:
            return list(islice(self._list(operator), most))

    def _find(self, operator: Operator, number: str) -> Operation | None:
        plan = self._result(operator, number, _PLAN)
        if not isinstance(plan, dict):
            return None
        run = self._record(operator, number, _RUN)
        totals = self._totals(operator, number)
        state, error = OperationState.WAITING, ""
        if run is not None:
            state, stored = _STATES.get(run.effective_state, OperationState.INTERRUPTED), operator.plain(run)
            if state is OperationState.DONE and stored is not None and JSONCodec().decode(stored, None)["cancelled"]:
                state = OperationState.CANCELLED
            if state is OperationState.FAILED and stored is not None:
                error = decode_failure(stored)[1]
        return Operation(plan, state, totals.get("changed", 0), totals.get("unchanged", 0), error)

    def _totals(self, operator: Operator, number: str) -> dict[str, Any]:
        """Those of the last batch that has ended; the one after it may be under way, or have been interrupted."""
        last = self._last(operator, _BATCH, number)
        for place in (last, last - 1):
            totals = self._result(operator, f"{number}/{place}", _BATCH)
            if totals is not None:
                return dict(totals)
        return {}

    def _list(self, operator: Operator) -> Iterator[Operation]:
        today = datetime.now(UTC).date()
        for day in (today - timedelta(days=ago) for ago in range(LISTED_DAYS)):
            for place in range(self._last(operator, _LIST, str(day)), -1, -1):
                number = self._result(operator, f"{day}/{place}", _LIST)
                found = None if number is None else self._find(operator, str(number))
                if found is not None:
                    yield found

    # ------------------------------------------------------------ running

    def _carry_out(self, plan: Plan, begun: threading.Event) -> None:
        try:
            self._run(plan, begun)
        except (InProgress, OperationStopped, StoredFailure):
            return
        except RetrysafeError as error:
            _LOG.warning("operation %s was interrupted: %s", plan["id"], error.detail)
        except Exception:  # noqa: BLE001 - the operation can be resumed, and the log says why it must be
            _LOG.exception("operation %s was interrupted", plan["id"])
        finally:
            begun.set()

    def _run(self, plan: Plan, begun: threading.Event) -> None:
        boundary, number = self._boundary_of(), plan["id"]
        with boundary.claim(number, operation=_RUN, payload=plan) as run:
            begun.set()
            if run.replayed:
                return
            totals: dict[str, Any] = {"changed": 0, "unchanged": 0, "cursor": None}
            cancelled = False
            for place in range(1 << 62):
                if self._stopping.is_set():
                    raise OperationStopped
                if cancelled := self._is_cancelled(number):
                    break
                with boundary.claim(f"{number}/{place}", operation=_BATCH) as batch:
                    if not batch.replayed:
                        batch.result = self._after(plan, totals)
                    totals = batch.result
                if totals["cursor"] is None:
                    break
            run.result = {**totals, "cancelled": cancelled}

    def _after(self, plan: Plan, totals: dict[str, Any]) -> dict[str, Any]:
        done = self._step(plan, totals["cursor"])
        return {
            "changed": totals["changed"] + done.changed,
            "unchanged": totals["unchanged"] + done.unchanged,
            "cursor": done.cursor,
        }

    def _is_cancelled(self, number: str) -> bool:
        with self._operator() as operator:
            return self._record(operator, number, _CANCEL) is not None

    # ------------------------------------------------------------ what is stored

    def _enlist(self, number: str) -> None:
        """Take the first free place in the list of the day."""
        day = datetime.now(UTC).date()
        with self._operator() as operator:
            place = self._last(operator, _LIST, str(day)) + 1
        while True:
            with self._boundary_of().claim(f"{day}/{place}", operation=_LIST) as claim:
                if not claim.replayed:
                    claim.result = number
                    return
            place += 1

    def _last(self, operator: Operator, operation: str, number: str) -> int:
        """The highest place in a row of keys, all of which below it have records; -1 without any."""
        low, step = -1, 1
        while self._record(operator, f"{number}/{low + step}", operation) is not None:
            low, step = low + step, 2 * step
        while step > 1:
            step //= 2
            if self._record(operator, f"{number}/{low + step}", operation) is not None:
                low += step
        return low

    def _record(self, operator: Operator, key: str, operation: str) -> Record | None:
        return operator.show(operator.hash_of(key, boundary=NAME, operation=operation))

    def _result(self, operator: Operator, key: str, operation: str) -> Any:
        record = self._record(operator, key, operation)
        stored = None if record is None else operator.plain(record)
        return None if stored is None else JSONCodec().decode(stored, None)

    def _operator(self) -> Operator:
        """As the boundary of operations sees the store: without the secret of the application's boundaries."""
        return Operator(self._console.store, observers=(), encryption=self._console.encryption)

    def _boundary_of(self) -> Boundary:
        with self._opening:
            if self._boundary is None:
                self._boundary = Boundary(
                    NAME,
                    store=self._console.store,
                    effects="keyed",
                    window=timedelta(days=LISTED_DAYS + 1),
                    permanent=ConfigurationError,
                    encryption=self._console.encryption,
                    observers=(),
                    shared=True,
                )
        return self._boundary


_STATES = {
    EffectiveState.RUNNING: OperationState.RUNNING,
    EffectiveState.COMPLETED: OperationState.DONE,
    EffectiveState.FAILED: OperationState.FAILED,
}
