"""The requests about steps, each to the shard that has the record of their work."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from retrysafe.backends.sharded.store import OnShard, ShardedStore, route
from retrysafe.backends.steps import steps_of, sweep_steps
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.requests import Ask, Program, as_it_is
from retrysafe.protocol.steps import At, FoundRow, StepRow, StepState, StepStore, Work


class ShardedSteps:
    """Steps beside their records."""

    def __init__(self, store: ShardedStore) -> None:
        self._store = store

    def rows(self, work: Work) -> list[Ask[list[StepRow]]]:
        return [self._all(work, lambda steps: steps.rows(work))]

    def insert(self, work: Work, row: StepRow, *, joined: bool) -> Ask[bool]:
        return self._one(work, lambda steps: steps.insert(work, row, joined=joined))

    def change(self, work: Work, row: StepRow, before: StepState) -> Ask[bool]:
        return self._one(work, lambda steps: steps.change(work, row, before))

    def drop(self, work: Work, at: At) -> Ask[bool]:
        return self._one(work, lambda steps: steps.drop(work, at))

    def find(self, work: Work, at: At) -> Ask[FoundRow]:
        return self._one(work, lambda steps: steps.find(work, at))

    def signal(self, work: Work, row: StepRow) -> Ask[bool]:
        return self._one(work, lambda steps: steps.signal(work, row))

    def conclude(self, work: Work) -> list[Ask[None]]:
        return [self._all(work, lambda steps: steps.conclude(work))]

    def sweep(self, limit: int) -> list[Ask[int]]:
        shards = self._store.shards.items()
        return [Ask(OnShard(name, partial(sweep_steps, shard, limit)), as_it_is) for name, shard in shards]

    @route
    def _all(self, work: Work, asks: Callable[[StepStore], Iterable[Ask[Any]]]) -> Program[Any]:
        name = yield from self._shard_of(work)
        found: list[Any] = []
        for ask in asks(steps_of(self._store.shards[name])):
            found += (yield self._store.at(name, ask)) or ()
        return found

    @route
    def _one(self, work: Work, ask: Callable[[StepStore], Ask[Any]]) -> Program[Any]:
        name = yield from self._shard_of(work)
        return (yield self._store.at(name, ask(steps_of(self._store.shards[name]))))

    def _shard_of(self, work: Work) -> Program[str]:
        """The shard of a work: while its key moves, the one with its record."""
        places = self._store.places(work.key)
        if len(places) > 1 and not work.generation:
            raise ConfigurationError(
                f"This saga without a claim moves between the shards {' and '.join(places)}, and has no record by "
                "which one of them is its own. Nothing was run. Let it rest until the move is over."
            )
        for name in places[1:]:
            record = yield self._store.at(name, self._store.shards[name].store.read(work.key))
            if record is not None and record.created == work.generation:
                return name
        return places[0]
