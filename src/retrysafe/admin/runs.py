"""Runs: records that have steps. What stands in the way of one, and what an operator can do about it."""

from __future__ import annotations

from heapq import nlargest
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from retrysafe.admin.rendering import RELEASING, details, duration, instant, next_steps, summary
from retrysafe.backends.backend import Backend
from retrysafe.backends.commands import WHY, Commands
from retrysafe.backends.migrations.on_demand import is_present
from retrysafe.backends.sql.inbox import SqlInbox
from retrysafe.backends.sql.store import keeps_messages
from retrysafe.backends.steps import has_steps, runs_of, steps_of
from retrysafe.claims.codec import decode_failure
from retrysafe.claims.notes import is_settled_by_hand
from retrysafe.claims.outcome import reason_of_doubt
from retrysafe.claims.sealing import Bound, Sealer, unseal
from retrysafe.errors import ResultUnreadable
from retrysafe.protocol.procedures import Change, clocks_of, read
from retrysafe.protocol.records import (
    EffectiveState,
    Filter,
    Micros,
    Ownership,
    Record,
    State,
    StoredResult,
    counted,
)
from retrysafe.protocol.requests import Program, ask
from retrysafe.protocol.steps import DECISION, NO_PLACE, SIGNAL, At, RunEntry, StepRow, StepState, Work, label
from retrysafe.protocol.steps import read as read_steps

StepOutcome = Literal["done", "not-done", "undone"]
"""The outcomes with which a person can settle a step: it happened, it did not, or its compensation was made by hand."""
STRANDED = frozenset({EffectiveState.LAPSED, EffectiveState.RELEASED})
"""The states of runs that go on when they are asked for again, and only then."""
OLD: Micros = 3_600_000_000
"""The time without an attempt after which such a run is taken for stranded, unless another is given."""
UNASKED = Filter(states=STRANDED, older_than=OLD)
MOST_COUNTED, MOST_PAGES = 1000, 50
"""Runs that are counted at most, and pages that are looked at for them."""
_OPEN = (EffectiveState.RUNNING, EffectiveState.LAPSED, EffectiveState.RELEASED, EffectiveState.UNKNOWN)


class RunStep(NamedTuple):
    """A step's row, and when it was last written; 0 where the store does not keep that."""

    row: StepRow
    written: Micros


class Run(NamedTuple):
    """A record and its steps, in their order.

    ``cause`` is the failure for which it goes back, if it does; ``letter`` the id and consumer of its message, if that
    is a dead letter.
    """

    record: Record
    steps: list[RunStep]
    cause: str = ""
    letter: tuple[str, str] | None = None

    @property
    def goes_back(self) -> bool:
        """True if it was decided that it goes back."""
        return any(step.row.at == DECISION for step in self.steps)

    @property
    def doubt(self) -> StepRow | None:
        """The row in doubt: of a step that was begun, or was to be undone; None while an attempt is at work."""
        state, reason = self.record.reported_state, reason_of_doubt(self.record, self.record.result)
        if state not in _OPEN or state is EffectiveState.RUNNING:
            return None
        rows = [step.row for step in self.steps]
        begun = [row for row in rows if row.state is StepState.STARTED]
        if not begun and self.goes_back and state is EffectiveState.UNKNOWN:
            left = sorted(
                (row for row in rows if row.state is StepState.DONE and row.undoable), key=attrgetter("place")
            )
            begun = [row for row in left if not reason or f"Step {label(row.at)} " in reason]
        return begun[-1] if begun else None

    @property
    def can_be_undone(self) -> bool:
        """True if a step that has a compensation is not undone."""
        return any(step.row.undoable and step.row.state is not StepState.UNDONE for step in self.steps)

    @property
    def obstacle(self) -> str:
        """The reason why it cannot be cancelled; empty if it can."""
        state = self.record.reported_state
        if state not in _OPEN:
            return f"The run is {state}: there is nothing left to give up."
        if self.goes_back:
            return "The run goes back already: its next attempt undoes what is left."
        if not self.can_be_undone:
            return (
                "None of its steps has a compensation (undo=), so that nothing would be undone. A retry goes on behind "
                "the last step; without one, the run ends with its window."
            )
        return ""


class FoundRuns(NamedTuple):
    """Runs, the latest first; ``capped`` if not all rows were looked at."""

    runs: list[RunEntry]
    capped: bool


NONE = FoundRuns([], capped=False)


def work_of(record: Record, token: int | None = None) -> Work:
    """The work of a record; with ``token``, as its attempt with that token has it."""
    clocks = clocks_of(record)
    ownership = None if token is None else Ownership(record.key, record.attempt, token, clocks, transactional=False)
    return Work(record.key, record.created, clocks.memory, ownership)


# ---------------------------------------------------------------- looking


def find(backend: Backend, wanted: Filter, limit: int, pages: int | None = None) -> Program[FoundRuns]:
    """Look for the latest runs that a filter selects, on so many pages at most."""
    store, found, cursor, looked = runs_of(backend), dict[bytes, RunEntry](), None, 0
    present = yield from has_steps(backend)
    while store is not None and present:
        page = yield from ask(store.runs(wanted, cursor), again=True)
        latest = nlargest(limit, (found | {one.record.key: one for one in page.runs}).values(), key=_age)
        found = {one.record.key: one for one in latest}
        cursor, looked = page.cursor, looked + 1
        if cursor is None or looked == pages or (store.newest_first and len(found) == limit):
            break
    return FoundRuns(list(found.values()), capped=cursor is not None)


def find_stranded(backend: Backend, pages: int = MOST_PAGES) -> Program[FoundRuns]:
    """Look for the latest runs that go on if they are asked for, and were not for an hour."""
    return (yield from find(backend, UNASKED, MOST_COUNTED, pages))


def _age(entry: RunEntry) -> Micros:
    return entry.record.updated


def show(backend: Backend, record: Record, keyring: Sealer | None) -> Program[Run]:
    """The run of a record; one without steps where it has none."""
    store, rows, steps = runs_of(backend), list[tuple[StepRow, Micros]](), list[RunStep]()
    if (yield from has_steps(backend)):
        if store is not None:
            rows = yield from ask(store.history(work_of(record)), again=True)
        else:
            rows = [(row, 0) for row in (yield from read_steps(steps_of(backend), work_of(record)))]
        steps = [RunStep(*one) for one in sorted(rows, key=lambda one: (one[1], one[0].at == DECISION, one[0].place))]
    decision = next((step.row.result for step in steps if step.row.at == DECISION), None)
    cause = "" if decision is None else _cause(record, decision, keyring)
    return Run(record, steps, cause, (yield from _letter_of(backend, record)))


def _letter_of(backend: Backend, record: Record) -> Program[tuple[str, str] | None]:
    store = backend.store
    if keeps_messages(store) and (backend.kind != "sqlite" or (yield from is_present("inbox"))):
        return (yield from ask(SqlInbox(store).dead_of(record.key)))
    return None


def _cause(record: Record, stored: StoredResult, keyring: Sealer | None) -> str:
    try:
        kind, message, _ = decode_failure(unseal(keyring, stored, bind_result(record, DECISION)))
    except ResultUnreadable:
        return "encrypted"
    return f"{kind}: {message}"


def bind_result(record: Record, at: At) -> Bound:
    """The place that the result of a step is sealed for."""
    return Bound.of_step(record.boundary, record.scope, record.operation, work_of(record), at)


# ---------------------------------------------------------------- changing


def cancel(backend: Backend, seen: Run, stored: StoredResult | None) -> Program[Change]:
    """Write down that the run goes back; not made if it has ended meanwhile."""
    store, work = steps_of(backend), work_of(seen.record)
    row = StepRow(DECISION, StepState.DONE, NO_PLACE, result=stored)
    done = yield from ask(store.signal(work, row), again=True)
    if not done:
        kept, _ = yield from ask(store.find(work, DECISION))
        done = kept is not None and kept.result == stored  # the reply was lost
    record = yield from read(backend.store, work.key)
    ended = record is None or record.state in (State.COMPLETED, State.FAILED)
    return Change(done and not ended, record)


def resolve(
    backend: Backend, seen: Run, row: StepRow, outcome: StepOutcome, stored: StoredResult | None
) -> Program[Change]:
    """Settle a step as its own attempt would have; not made if a later attempt has it by now."""
    store, record = steps_of(backend), seen.record
    work = work_of(record, record.token if outcome == "undone" else row.token)
    if outcome == "not-done":
        request = store.drop(work, row.at)
    elif outcome == "done":
        request = store.change(work, row._replace(state=StepState.DONE, result=stored), StepState.STARTED)
    else:
        request = store.change(work, row._replace(state=StepState.UNDONE), StepState.DONE)
    done = yield from ask(request)
    return Change(done, (yield from read(backend.store, record.key)))


# ---------------------------------------------------------------- rendering


def entry(found: RunEntry) -> dict[str, Any]:
    return summary(found.record) | {"last_step": describe(found.last)}


def describe(row: StepRow) -> str:
    if row.at == DECISION:
        return "goes back"
    if row.at.name.startswith(SIGNAL):
        return f"{row.at.name!r} came"
    return f"{label(row.at)} {row.state}"


def doubt(run: Run) -> str:
    """The step in doubt in words; empty if there is none."""
    row = run.doubt
    if row is None:
        reason = reason_of_doubt(run.record, run.record.result) if run.steps else ""
        return f"{reason}." if reason else ""
    if row.state is StepState.STARTED:
        told = f"Step {label(row.at)} was begun, and it is not known whether it happened."
        if run.record.reported_state is EffectiveState.UNKNOWN:
            return told
        return f"{told} The next attempt does it again under its own key; one that is external asks its probe=, if any."
    return f"Step {label(row.at)} was to be undone, and it is not known whether that happened."


def timeline(run: Run) -> list[dict[str, str]]:
    """The rows of a run, each with its time, its name and what became of it."""
    shown = []
    for row, written in run.steps:
        undone = "undone" if row.result is not None else "not done"
        text = {StepState.STARTED: "begun", StepState.DONE: "done", StepState.UNDONE: undone}[row.state]
        if row.at == DECISION:
            text = f"goes back, because of {run.cause}"
        elif row == run.doubt:
            text += ", in doubt"
        elif row.undoable and row.state is StepState.DONE:
            text += ", can be undone"
        at, name = instant(written) if written else "", row.at.name or "(decision)"
        shown.append({"at": at, "step": name, "each": row.at.each, "state": row.state.value, "text": text})
    return shown


def actions(run: Run, commands: Commands) -> list[dict[str, str]]:
    """The commands that apply to a run, each with its purpose; those for the step in doubt first."""
    named, row, why = [("hash", run.record.key.hex())], run.doubt, ("reason", WHY)
    found: list[tuple[str, list[tuple[str, str]], str]] = []
    if row is not None:
        step = [*named, ("step", row.at.name), *([("each", row.at.each)] if row.at.each else [])]
        if row.state is StepState.STARTED:
            then = "undoes the rest" if run.goes_back else "does it"
            found = [
                ("runs resolve", [*step, ("as", "done"), ("result", "JSON"), why], "It happened, with this result"),
                ("runs resolve", [*step, ("as", "not-done"), why], f"It did not happen; the next attempt {then}"),
            ]
        else:
            found = [
                ("keys release", [*named, why], "The cause is corrected; the next attempt undoes the step"),
                ("runs resolve", [*step, ("as", "undone"), why], "You have undone the step by hand"),
            ]
    if not run.obstacle:
        after = "" if row is None else ", once the step in doubt is settled, or done under its own key"
        found.append(("runs cancel", [*named, why], f"Give the run up; its next attempt undoes what was done{after}"))
    told = [{"command": commands.line(verb, options), "when": when} for verb, options, when in found]
    others = [] if row is not None else next_steps(run.record, commands, can_fail=not run.can_be_undone)
    return [*told, *others, *redriving(run, commands)]


def redriving(run: Run, commands: Commands) -> list[dict[str, str]]:
    """The command for the message of a run that is a dead letter: nothing else lets it come again, or removes it."""
    state = run.record.reported_state
    if run.letter is None or state in (EffectiveState.RUNNING, EffectiveState.COMPLETED):
        return []
    options = list(zip(("id", "consumer"), run.letter, strict=True))
    if state is EffectiveState.FAILED and is_settled_by_hand(run.record.result):
        when = "Its message is a dead letter, and is not handled when it is redriven"
        return [{"command": commands.line("inbox dead discard", options), "when": when}]
    when = "Its message is a dead letter, and comes again only when it is redriven"
    settled = ", once the key is settled" if state is EffectiveState.UNKNOWN else ""
    return [{"command": commands.line("inbox dead redrive", options), "when": f"{when}{settled}"}]


def as_json(run: Run) -> dict[str, Any]:
    """A run in full, without what its steps have stored."""
    told = {"in_doubt": doubt(run), "goes_back": run.goes_back, "cause": run.cause}
    return told | details(run.record) | reasons(run) | {"steps": timeline(run)}


def reasons(run: Run) -> dict[str, str]:
    """Why a run is as it is, and what a retry does, which are more than the same of its record."""
    shown = {"why": explain(run)}
    retried = run.record.reported_state in STRANDED and run.goes_back
    return shown | {"retry": "undoes what is left, and gets a failure"} if retried else shown


def explain(run: Run) -> str:
    """Why a run is as it is: what was done before the key was released stays, and a step in doubt may be another's."""
    said, row = details(run.record)["why"], run.doubt
    if row is not None and row.state is StepState.STARTED and _is_of_another(row, run.record):
        reason = reason_of_doubt(run.record, run.record.result)
        met = f" The attempt has said: {reason}." if reason else ""
        return f"{doubt(run)} An earlier attempt than the last one began it. Find out, and settle the step.{met}"
    if not run.steps or run.record.reported_state not in STRANDED:
        return str(said)
    return f"{said} Its steps stay: the next attempt {_going(run)}."


def _is_of_another(row: StepRow, record: Record) -> bool:
    return row.token < record.token and record.state is State.UNKNOWN


def _going(run: Run) -> str:
    return "undoes what is left" if run.goes_back else "goes on behind the last step"


def next_retry(run: Run) -> str:
    """The effect of a retry, now that the key is released."""
    return f"The next retry {_going(run) if run.steps else 'runs the work again'}."


def consequence(run: Run) -> str:
    """Explain the effect of a retry after the key was released although its effect may have happened."""
    key, told = run.record, RELEASING
    if run.steps:
        told = f"Once released, the next attempt {_going(run)}: finished steps stay, and one in doubt stays in doubt."
    return f"Key {key.key.hex()[:8]} of {key.boundary!r}, operation {key.operation!r}: {told}"


def without_action(run: Run) -> str:
    """The sentence for a key that no command applies to: a run that goes on is to be asked for again."""
    if not run.steps or run.record.reported_state not in STRANDED:
        return "No command applies, and none is needed."
    what = "Its steps are undone" if run.goes_back else "It goes on"
    return f"{what} when it is asked for again with its key; no command starts it."


def of_stranded(found: FoundRuns) -> str:
    number, oldest = len(found.runs), min(map(_age, found.runs))
    waits = duration((found.runs[0].record.now - oldest) / 1e6)
    names = ", ".join(sorted({one.record.boundary for one in found.runs}))
    told = f"{counted(number, capped=found.capped)} {'run' if number == 1 else 'runs'} of {names}"
    begun = sum(one.last.state is StepState.STARTED for one in found.runs)
    doubt = f" The last step of {begun} was begun and has not ended: an external one is in doubt." if begun else ""
    return f"{told} would go on, and {'is' if number == 1 else 'are'} not asked for any more, for up to {waits}.{doubt}"
