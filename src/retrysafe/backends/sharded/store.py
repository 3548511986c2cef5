"""The store that is made of named stores: a key's requests go to its shard, the others to all shards.

While keys move from one map to another, two shards can have a key's record. Then a claim first looks where the other
map puts the key: a record that counts there is the key's, and is claimed there. What is won in one of the two places
is confirmed by a look at the other, and given back if there is a record by then. Of two attempts on the two maps each
has written before it looks, so at least one sees the other: at most one of them works.

A process that knows one map alone does not look. So both maps are known to all processes before any of them writes by
the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from retrysafe.backends.spec import StoreDefaults
from retrysafe.errors import RetrysafeError
from retrysafe.protocol import procedures
from retrysafe.protocol.records import (
    ClaimRequest,
    Clocks,
    Count,
    EffectiveState,
    Filter,
    Ownership,
    Page,
    QuotaRefusal,
    Record,
    Sharded,
    State,
    StoredResult,
    Tally,
)
from retrysafe.protocol.requests import Ask, Program, as_it_is
from retrysafe.protocol.store import OperableStore, Removal
from retrysafe.protocol.transitions import Transition

if TYPE_CHECKING:
    from retrysafe.backends.backend import Backend

P = ParamSpec("P")
R = TypeVar("R")
_FREE = (EffectiveState.RELEASED, EffectiveState.FORGOTTEN)
"""States of a record whose key is free of work, and which answers for nothing; a released one may have steps."""


class ToShard(NamedTuple):
    """A request to one shard."""

    shard: str
    request: Any


class OnShard(NamedTuple):
    """A program of requests to one shard; a request that is a function makes a program of requests to several."""

    shard: str
    program: Any


def route(program: Callable[P, Program[R]]) -> Callable[P, Ask[R]]:
    """Make a program of requests to shards one ask."""

    @wraps(program)
    def make(*args: P.args, **kwargs: P.kwargs) -> Ask[R]:
        return Ask(partial(program, *args, **kwargs), as_it_is)

    return make


class ShardedStore(StoreDefaults):
    """Records in the stores of a map, and of the other map of a move; each is examined when it is first asked."""

    def __init__(self, given: Sharded, shards: Mapping[str, Backend]) -> None:
        self._maps = [given] if given.other is None else [given, given.other]
        self.shards = shards
        self._names = list(shards)
        every = [shard.store.capabilities for shard in shards.values()]
        self.capabilities = every[0]._replace(
            name="sharded",
            transactions=all(one.transactions for one in every),
            largest_result=min((one.largest_result for one in every if one.largest_result), default=None),
            margin=max(one.margin for one in every),
            quotas="",
        )

    def places(self, key: bytes) -> list[str]:
        """The shard of a key, and while it moves the one that the other map gives it."""
        return list(dict.fromkeys(one.shard_of(key) for one in self._maps))

    def at(self, name: str, ask: Ask[Any]) -> Ask[Any]:
        """The ask of a shard's store, as one of this store."""
        return Ask(ToShard(name, ask.request), ask.parse)

    def _store(self, name: str) -> OperableStore:
        return self.shards[name].store

    # ------------------------------------------------------------ asks about a key

    @route
    def claim(self, request: ClaimRequest) -> Program[Record | QuotaRefusal | None]:
        home, *others = self.places(request.key)
        for name in others:
            if _counts((yield self.at(name, self._store(name).read(request.key))), request, released=True):
                home = name
        met = yield self.at(home, self._store(home).claim(request))
        won = isinstance(met, Record) and met.attempt == request.attempt and met.state is State.RUNNING
        return (yield from self._confirm(request, home, met)) if won else met

    @route
    def take(self, request: ClaimRequest, seen: Record) -> Program[Record | None]:
        for name in self.places(request.key):
            taken = yield self.at(name, self._store(name).take(request, seen))
            if taken is not None:
                return (yield from self._confirm(request, name, taken))
        return None

    def _confirm(self, request: ClaimRequest, home: str, won: Record) -> Program[Record | None]:
        """The record that was won, or None if the key has one in its other place too: then it is given back."""
        fresh = won.attempts == 1
        clocks = request.clocks._replace(window=0, memory=0) if fresh else request.clocks  # forgotten at once
        ownership = Ownership(request.key, won.attempt, won.token, clocks, transactional=False)
        give_back = self.at(home, self._store(home).settle(ownership, Transition.RELEASE, None))
        for name in self.places(request.key):
            if name != home:
                try:
                    there = yield self.at(name, self._store(name).read(request.key))
                except RetrysafeError:
                    yield give_back  # nothing was done under it, which the next attempt could not know
                    raise
                if _counts(there, request, released=fresh):
                    yield give_back
                    return None
        return won

    def settle(self, ownership: Ownership, event: Transition, result: StoredResult | None) -> Ask[bool]:
        return self._first(ownership.key, lambda store: store.settle(ownership, event, result))

    def resolve(self, seen: Record, event: Transition, result: StoredResult | None, clocks: Clocks) -> Ask[bool]:
        return self._first(seen.key, lambda store: store.resolve(seen, event, result, clocks))

    @route
    def _first(self, key: bytes, write: Any) -> Program[bool]:
        """A write on the condition of an attempt, in the place that has it."""
        for name in self.places(key):
            if (yield self.at(name, write(self._store(name)))):
                return True
        return False

    def renew(self, ownerships: Sequence[Ownership]) -> list[Ask[set[bytes]]]:
        """Extend leases; in a place that has not the claim of a key nothing is written."""
        return self._spread(ownerships, lambda store, some: store.renew(some))

    def _spread(self, those: Sequence[Any], asks: Callable[[OperableStore, Any], list[Ask[Any]]]) -> list[Ask[Any]]:
        """The asks about many keys, each in its places."""
        spread: list[Ask[Any]] = []
        for name, store in self._each():
            some = [one for one in those if name in self.places(one.key)]
            spread += [self.at(name, ask) for ask in asks(store, some)] if some else ()
        return spread

    @route
    def read(self, key: bytes) -> Program[Record | None]:
        found: list[Record] = []
        for name in self.places(key):
            record: Record | None = yield self.at(name, self._store(name).read(key))
            if record is not None:
                found.append(record)
                if record.effective_state not in _FREE:
                    return record
        return max(found, key=lambda record: record.effective_state is EffectiveState.RELEASED, default=None)

    # ------------------------------------------------------------ asks about all shards

    def sweep(self, limit: int) -> list[Ask[Removal]]:
        return [self._sweep(limit)]

    @route
    def _sweep(self, limit: int) -> Program[Removal]:
        removed = repaired = 0
        for name in self._names:
            asks: Iterable[Ask[Any]] = self._store(name).sweep(limit - removed) if removed < limit else ()
            for ask in asks:
                answer: Any = yield self.at(name, ask)
                told = answer if isinstance(answer, Removal) else Removal(answer, 0)
                removed, repaired = removed + told.removed, repaired + told.repaired
        return Removal(removed, repaired)

    def forgotten(self, limit: int) -> list[Ask[list[Record]]]:
        able = [name for name in self._names if self._store(name).forgotten(limit)]
        return [self._find_forgotten(able, limit)] if able else []

    @route
    def _find_forgotten(self, names: Sequence[str], limit: int) -> Program[list[Record]]:
        found: list[Record] = []
        for name in names:
            if len(found) < limit:
                for ask in self._store(name).forgotten(limit - len(found)):
                    found += yield self.at(name, ask)
        return found

    def remove(self, seen: Sequence[Record]) -> list[Ask[int]]:
        return self._spread(seen, lambda store, some: store.remove(some))

    def scan(self, wanted: Filter, cursor: str | None, limit: int) -> Ask[Page]:
        """Read a page of one shard; a cursor is the shard's number and its own cursor."""
        number, _, inner = (cursor or "0:").partition(":")
        name, following = self._names[int(number)], int(number) + 1
        ask = self._store(name).scan(wanted, inner or None, limit)

        def parse(answer: Any) -> Page:
            page = ask.parse(answer)
            if page.cursor is not None:
                return page._replace(cursor=f"{number}:{page.cursor}")
            return page._replace(cursor=f"{following}:" if following < len(self._names) else None)

        return Ask(ToShard(name, ask.request), parse)

    def count_selected(self, wanted: Filter, most: int) -> list[Ask[Count]]:
        return [
            Ask(OnShard(name, partial(procedures.count, store, wanted, most)), as_it_is) for name, store in self._each()
        ]

    def tally(self) -> list[Ask[list[Tally]]]:
        return [self._tally()]

    @route
    def _tally(self) -> Program[list[Tally]]:
        found: dict[tuple[str, EffectiveState], Tally] = {}
        for name, store in self._each():
            for one in (yield Ask(OnShard(name, partial(procedures.tally, store)), as_it_is)):
                same = found.setdefault((one.boundary, one.state), one._replace(records=0))
                found[one.boundary, one.state] = one._replace(
                    records=one.records + same.records, oldest=min(one.oldest, same.oldest), now=max(one.now, same.now)
                )
        return list(found.values())

    def _each(self) -> Iterator[tuple[str, OperableStore]]:
        return ((name, shard.store) for name, shard in self.shards.items())


def _counts(record: Record | None, request: ClaimRequest, *, released: bool) -> bool:
    """Tell whether a record in a key's other place decides about a claim, also if it is ``released``."""
    state = None if record is None else record.effective_state
    if state is EffectiveState.RELEASED:
        return released
    if state is EffectiveState.EXPIRED:
        return request.on_expired != "new"
    return state not in (None, EffectiveState.FORGOTTEN)
