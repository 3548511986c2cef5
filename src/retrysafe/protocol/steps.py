"""Steps inside a claim: their rows, the table of what an attempt does with a row that it meets, and the procedures.

A step is a claim inside a claim. The record's lease says who works; the row's primary key decides who wrote first, and
the attempt's token who may change it. A row belongs to a `Work`: a key, and the generation of what is done under it,
which is the record's ``created``; a key that is used again after its window begins a new one. Steps without a claim,
of a choreographed saga, have the generation 0.

    state      written by
    started    a step that is external or has a compensation, before its effect; a step in the caller's transaction
               after a takeover, before its work
    done       the end of a step, with its result
    undone     the end of its compensation, or one that came before the step itself

The decision to go back is the row without a name. It is written before anything is undone, so that an attempt after a
crash goes back too, whatever its code says.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple, Protocol, runtime_checkable

from retrysafe.errors import ConfigurationError, InProgress, LeaseLost, RetryTransaction
from retrysafe.protocol.keys import check_name
from retrysafe.protocol.records import Filter, Micros, Ownership, Record, StoredResult
from retrysafe.protocol.requests import Ask, Program, ask


class StepState(StrEnum):
    """The state as it is written in a row."""

    STARTED = "started"
    DONE = "done"
    UNDONE = "undone"


class Aim(StrEnum):
    """The purpose for which an attempt comes to a step."""

    DO = "do"
    REDO = "do, when the run goes back"
    UNDO = "undo"


class Act(StrEnum):
    """The act of an attempt that has met a row, or none."""

    RUN = "run it"
    REPLAY = "its outcome is there"
    FIND_OUT = "it may have happened: run it again under its keys; an external step asks its probe, else it is unknown"
    DOUBT = "it may have happened: it is unknown"
    REFUSE = "it arrives after its compensation"
    STOP = "go no further: go back"
    RECORD = "there is nothing to undo: record that, and a later attempt to do it is refused"


MEETS: dict[tuple[StepState | None, Aim], Act] = {
    (None, Aim.DO): Act.RUN,
    (StepState.STARTED, Aim.DO): Act.FIND_OUT,
    (StepState.DONE, Aim.DO): Act.REPLAY,
    (StepState.UNDONE, Aim.DO): Act.REFUSE,
    (None, Aim.REDO): Act.STOP,
    (StepState.STARTED, Aim.REDO): Act.FIND_OUT,
    (StepState.DONE, Aim.REDO): Act.REPLAY,
    (StepState.UNDONE, Aim.REDO): Act.REPLAY,
    (None, Aim.UNDO): Act.RECORD,
    (StepState.STARTED, Aim.UNDO): Act.DOUBT,
    (StepState.DONE, Aim.UNDO): Act.RUN,
    (StepState.UNDONE, Aim.UNDO): Act.REPLAY,
}
"""The whole rule of steps and sagas. Without a row, undoing is *empty*; undone twice, *double*; REFUSE is *hanging*."""


class At(NamedTuple):
    """The address of a row in its work: the step's name, and its index where the step is done for each of many."""

    name: str
    each: str = ""


DECISION = At("")
"""The row that says that the run goes back, with the failure for which it does."""
SIGNAL = "signal "
"""With what the names of signals' rows begin, which no step's may."""
SLEEP = b"sleep"
"""The fingerprint of the row of a sleep; those of earlier versions have none."""
NO_PLACE = -1


class Work(NamedTuple):
    """The piece of work that rows belong to; ``ownership``: of its claim, None for a choreographed saga."""

    key: bytes
    generation: Micros
    memory: Micros
    ownership: Ownership | None

    @property
    def token(self) -> int:
        """The token that rows are written by."""
        return 0 if self.ownership is None else self.ownership.token


class StepRow(NamedTuple):
    """A step's row.

    place: how many other names had been asked for before its own, by which changed code is noticed; or `NO_PLACE`.
    undoable: the step has a compensation.
    fingerprint: of its input; empty where it has none.
    token: of the attempt that wrote it last.
    """

    at: At
    state: StepState
    place: int = 0
    undoable: bool = False
    fingerprint: bytes = b""
    result: StoredResult | None = None
    token: int = 0


class RunEntry(NamedTuple):
    """A record that has steps, without its result, and the latest of their rows, without what it stores."""

    record: Record
    last: StepRow


class RunPage(NamedTuple):
    """Some runs, and the cursor of the next page; None at the end. A page may be empty and still not be the last."""

    runs: list[RunEntry]
    cursor: str | None


class FoundRow(NamedTuple):
    """A row; where there is none, whether the work is still its claim's."""

    row: StepRow | None
    held: bool


class StepStore(Protocol):
    """The requests about steps of one kind of store; see `retrysafe.protocol.store` for what holds of all."""

    def rows(self, work: Work) -> Iterable[Ask[list[StepRow]]]:
        """Read the rows of a work. Unconditional. Each ask waits for the answer before."""
        ...

    def insert(self, work: Work, row: StepRow, *, joined: bool) -> Ask[bool]:
        """Write the first row of a step.

        Condition: there is none, and the work is its claim's, if it has one. ``joined``: in the caller's transaction,
        which takes the gate of the row to its end; where another one holds the gate, this does not wait for it. Lost:
        False, and nothing was written.
        """
        ...

    def change(self, work: Work, row: StepRow, before: StepState) -> Ask[bool]:
        """Write the next state and result of a row.

        Condition: its state is ``before``, and its token is not above the work's; to be undone, the work must be its
        claim's. Lost: False, and nothing was written.
        """
        ...

    def drop(self, work: Work, at: At) -> Ask[bool]:
        """Remove a row. Condition: it was started by this attempt. Lost: False."""
        ...

    def find(self, work: Work, at: At) -> Ask[FoundRow]:
        """Read one row; where there is none, whether the work is its claim's. Unconditional."""
        ...

    def signal(self, work: Work, row: StepRow) -> Ask[bool]:
        """Write the row of a signal. Condition: there is none, and the work has not ended. Lost: False."""
        ...

    def conclude(self, work: Work) -> Iterable[Ask[None]]:
        """Let the rows of a settled work end with its record; empty where a sweep does it. Each waits as those do."""
        ...

    def sweep(self, limit: int) -> Iterable[Ask[int]]:
        """Remove up to ``limit`` rows whose record is gone or of other work. Each ask waits for the answer before."""
        ...


@runtime_checkable
class RunStore(StepStore, Protocol):
    """A kind of store whose records with steps an operator can list."""

    newest_first: bool
    """True if the runs whose steps were written last come first."""

    def runs(self, wanted: Filter, cursor: str | None) -> Ask[RunPage]:
        """Read a page of the records that have steps and that the filter selects. Unconditional."""
        ...

    def history(self, work: Work) -> Ask[list[tuple[StepRow, Micros]]]:
        """Read the rows of a work, each with the time at which it was last written, 0 where that is not kept."""
        ...


def read(store: StepStore, work: Work) -> Program[list[StepRow]]:
    """Read the rows of a work."""
    found: list[StepRow] = []
    for request in store.rows(work):
        found += yield from ask(request, again=True)
    return found


def insert(store: StepStore, work: Work, row: StepRow, *, joined: bool = False) -> Program[StepRow | None]:
    """Write the first row of a step; or return the row that is there, of the attempt that was first.

    In the caller's transaction a row that is there raises `RetryTransaction`: what the step wrote must not stay beside
    what the first one wrote. Raises `LeaseLost` when the key was taken over, and `InProgress` while an earlier attempt
    holds the row's gate, in a transaction that has not ended.
    """
    if (yield from ask(store.insert(work, row, joined=joined), again=not joined)):
        return None
    return (yield from meet(store, work, row, joined=joined))


def meet(store: StepStore, work: Work, row: StepRow, *, joined: bool) -> Program[StepRow | None]:
    """`insert`, when the row was not written."""
    found, held = yield from ask(store.find(work, row.at))
    if found is None:
        if held:
            raise InProgress(f"Step {label(row.at)}: a transaction of another attempt has not ended.")
        raise LeaseLost(f"Step {label(row.at)}: another attempt has taken the key over.")
    if joined and work.ownership is not None:
        raise RetryTransaction(f"Step {label(row.at)}: another attempt has committed it.")
    return None if found == row._replace(token=work.token) and not joined else found  # the reply was lost


def change(store: StepStore, work: Work, row: StepRow, before: StepState, *, joined: bool = False) -> Program[StepRow]:
    """Write the next state of a row; raises `LeaseLost` when a later attempt has it."""
    written = row._replace(token=work.token)
    if not (yield from ask(store.change(work, row, before), again=not joined)):
        found, _ = yield from ask(store.find(work, row.at))
        if found != written:
            raise LeaseLost(f"Step {label(row.at)}: a later attempt has it.")
    return written


def sweep(store: StepStore, limit: int) -> Program[int]:
    """Remove up to ``limit`` rows whose record is gone; return the number of removed ones."""
    gone = 0
    for request in store.sweep(limit):
        gone += yield from ask(request)
    return gone


def at_of(name: object, each: object = None, *, call: str = "step('charge', …)") -> At:
    """The address of a step that a user names; raises `ConfigurationError` for a name that cannot be one."""
    verb = call.partition("(")[0]
    if not check_name(name, verb) or str(name).startswith(SIGNAL):
        raise ConfigurationError(f"{verb}({name!r}): give it a name, as in {call}.")
    return At(str(name), "" if each is None else check_name(str(each), "each"))


def label(at: At) -> str:
    """A step as errors name it."""
    return repr(at.name) if not at.each else f"{at.name!r} ({at.each})"


def table() -> str:
    """Return the table as Markdown, one row per aim."""
    states = (None, *StepState)
    lines = [f"| meets | no row | {' | '.join(f'`{state}`' for state in StepState)} |", "|---" * 5 + "|"]
    lines += [f"| {aim} | {' | '.join(MEETS[state, aim].value for state in states)} |" for aim in Aim]
    return "\n".join(lines) + "\n"
