"""Steps in a dictionary of this process, beside its records."""

from __future__ import annotations

from typing import TypeVar

from retrysafe.backends.memory.store import Kept, MemoryStore
from retrysafe.protocol.records import Micros, State
from retrysafe.protocol.requests import Ask, as_it_is
from retrysafe.protocol.steps import At, FoundRow, StepRow, StepState, Work

R = TypeVar("R")
Place = tuple[bytes, Micros, At]


class MemorySteps:
    """Rows by key, generation, name and index."""

    def rows(self, work: Work) -> list[Ask[list[StepRow]]]:
        return [
            Ask(lambda records, now: [row for place, row in records.steps.items() if place[:2] == work[:2]], as_it_is)
        ]

    def insert(self, work: Work, row: StepRow, *, joined: bool) -> Ask[bool]:
        return Ask(lambda records, now: _holds(records, work) and _put_first(records, work, row), as_it_is)

    def change(self, work: Work, row: StepRow, before: StepState) -> Ask[bool]:
        def step(records: Kept, now: Micros) -> bool:
            found = records.steps.get(_place(work, row.at))
            if found is None or found.state is not before or found.token > work.token:
                return False
            if row.state is StepState.UNDONE and not _holds(records, work):
                return False
            records.steps[_place(work, row.at)] = row._replace(token=work.token)
            return True

        return Ask(step, as_it_is)

    def drop(self, work: Work, at: At) -> Ask[bool]:
        def step(records: Kept, now: Micros) -> bool:
            found = records.steps.get(_place(work, at))
            if found is None or (found.state, found.token) != (StepState.STARTED, work.token):
                return False
            del records.steps[_place(work, at)]
            return True

        return Ask(step, as_it_is)

    def find(self, work: Work, at: At) -> Ask[FoundRow]:
        return Ask(lambda records, now: FoundRow(records.steps.get(_place(work, at)), _holds(records, work)), as_it_is)

    def signal(self, work: Work, row: StepRow) -> Ask[bool]:
        def step(records: Kept, now: Micros) -> bool:
            record = records.get(work.key)
            if record is None or record.created != work.generation:
                return False
            return record.state not in (State.COMPLETED, State.FAILED) and _put_first(records, work, row)

        return Ask(step, as_it_is)

    def conclude(self, work: Work) -> list[Ask[None]]:
        return []

    def sweep(self, limit: int) -> list[Ask[int]]:
        def step(records: Kept, now: Micros) -> int:
            lost = [place for place in records.steps if not _is_of(records, *place)][:limit]
            for place in lost:
                del records.steps[place]
            return len(lost)

        return [Ask(step, as_it_is)]


def step_store(store: MemoryStore) -> MemorySteps:
    return MemorySteps()


def _place(work: Work, at: At) -> Place:
    return work.key, work.generation, at


def _is_of(records: Kept, key: bytes, generation: Micros, _: At) -> bool:
    record = records.get(key)
    return record is not None and record.created == generation


def _holds(records: Kept, work: Work) -> bool:
    if work.ownership is None:
        return True
    record = records.get(work.key)
    return (
        record is not None
        and (record.attempt, record.token) == (work.ownership.attempt, work.ownership.token)
        and record.state in (State.RUNNING, State.UNKNOWN)
    )


def _put_first(records: Kept, work: Work, row: StepRow) -> bool:
    place = _place(work, row.at)
    if place in records.steps:
        return False
    records.steps[place] = row._replace(token=work.token)
    return True
