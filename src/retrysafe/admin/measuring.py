"""Measures what a store gives this process: claims by threads at once, under a boundary of its own.

Each profile has keys of its own, and counts how often the work of each key ran, so that a run also shows whether the
store kept its promise. The boundary has effects="external": then no key may run twice, not even one whose attempt was
paused for longer than its lease.
"""

from __future__ import annotations

import itertools
import math
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from retrysafe.admin.forgetting import Forgotten, forget_keys
from retrysafe.admin.operator import Operator, connect
from retrysafe.backends import registry
from retrysafe.backends.backend import Backend
from retrysafe.boundary import Boundary
from retrysafe.errors import ConfigurationError, InProgress
from retrysafe.protocol.records import Filter

R = TypeVar("R")

PREFIX = "retrysafe-bench-"
"""With what the names of the boundaries begin that measure."""
WINDOW = "24h"
"""The memory of a record that could not be forgotten."""
MOST_CLIENTS = 1000
MOST_KEYS = 1_000_000
"""New keys that one profile makes at most; it ends then."""
REPLAYED_KEYS = 100
"""Completed keys that the profile "replay" claims in turn."""
PAUSE = 0.1
"""Seconds that a client waits after a claim that failed: a store in trouble is not flooded."""
_WARMING = "warming"


class BenchProfile(StrEnum):
    """The keys that the clients claim."""

    FRESH = "fresh"
    """A new key each time."""
    REPLAY = "replay"
    """Keys that are completed."""
    STORM = "storm"
    """All clients claim one new key at the same time, again and again."""


class BenchLoad(NamedTuple):
    """The amount of claims.

    clients: threads that claim at the same time.
    result: bytes of each stored result.
    seconds: how long each profile lasts; None where ``claims`` says how many it makes.
    claims: how many claims each profile makes; a storm makes as many as fill its last round.
    """

    clients: int = 8
    result: int = 500
    seconds: float | None = 5.0
    claims: int | None = None


class Measured(NamedTuple):
    """The result of a profile.

    ran, replayed, refused: claims whose work ran, that got a stored result, and that were told of another attempt.
    errors: claims that failed, by the type of the error. Their time is in no latency and no rate.
    ran_twice: keys whose work ran more than once.
    seconds: from the start of the first claim to the end of the last one.
    latencies: seconds of each claim that was answered, the shortest first.
    """

    profile: BenchProfile
    ran: int
    replayed: int
    refused: int
    errors: Mapping[str, int]
    ran_twice: tuple[str, ...]
    seconds: float
    latencies: Sequence[float]

    @property
    def claims(self) -> int:
        return self.ran + self.replayed + self.refused

    @property
    def rate(self) -> float:
        return self.claims / self.seconds if self.seconds else 0.0

    def latency(self, share: float) -> float:
        """Seconds within which this share of the claims, from 0 to 1, was answered; 0 without any."""
        return self.latencies[math.ceil(share * len(self.latencies)) - 1] if self.latencies else 0.0


@contextmanager
def measuring(store: Any, load: BenchLoad) -> Iterator[Measurement]:
    """A measurement on a store that exists and has its schema; the caller calls `Measurement.forget` in the end.

    Raises `ConfigurationError` for a load or a store that cannot be measured, `SchemaOutdated`, and
    `StoreUnavailable` if it does not answer.
    """
    _check(load)
    backend = registry.connect(store, migrate=False)
    if backend.access.missing():
        raise ConfigurationError(f"store= ({backend.address}) does not exist. A boundary that uses it creates it.")
    _check_sync(backend)
    name = PREFIX + secrets.token_hex(4)
    boundary = Boundary(name, store=backend, effects="external", window=WINDOW, observers=())
    try:
        largest = boundary.entrypoint.largest_result
        if largest is not None and load.result > largest:
            raise ConfigurationError(f"A result of {load.result} bytes: this store keeps up to {largest}.")
        boundary.check()
        yield Measurement(boundary, load)
    finally:
        boundary.close()


class Measurement:
    """Runs profiles on a boundary of its own, and forgets its records."""

    def __init__(self, boundary: Boundary, load: BenchLoad) -> None:
        self._boundary = boundary
        self._load = load
        self._stop = threading.Event()
        self._last: dict[str, int] = {}
        """The number of the last key of each operation."""

    @property
    def name(self) -> str:
        return self._boundary.name

    @property
    def address(self) -> str:
        """The store's URL, without a password."""
        return self._boundary.address

    @property
    def kind(self) -> str:
        return self._boundary.entrypoint.backend.kind

    def run(self, profile: BenchProfile) -> Measured:
        """Run one profile. A `KeyboardInterrupt` ends it when the claims that are under way have ended."""
        self._warm()
        keys = _Keys(profile, self._load, self._stop)
        runs = Runs(keys.room)
        if profile is BenchProfile.REPLAY:
            worker = _Worker(self._boundary, profile, self._load.result, runs)
            for number in range(REPLAYED_KEYS):
                self._last[profile] = number
                worker.complete(number)

        def work(client: int) -> _Worker:
            worker = _Worker(self._boundary, profile, self._load.result, runs)
            worker.claim_all(keys, self._stop)
            return worker

        try:
            workers = self._together(work, keys.start)
        finally:
            self._last[profile] = max(self._last.get(profile, -1), keys.last)
        return _add_up(profile, workers, runs, keys.began)

    def forget(self) -> Forgotten:
        """Forget, and remove, the records of all profiles that were run. Raises `StoreUnavailable`."""
        entry = self._boundary.entrypoint
        hashes = (
            entry.lookup(str(number), operation=operation)
            for operation, last in self._last.items()
            for number in range(last + 1)
        )
        return forget_keys(entry.backend, hashes, threads=self._load.clients)

    def _warm(self) -> None:
        """Let every client open its connection, which is not what is measured."""
        if _WARMING in self._last:
            return
        self._last[_WARMING] = self._load.clients - 1

        def work(client: int) -> None:
            _Worker(self._boundary, _WARMING, 0, Runs(self._load.clients)).complete(client)

        self._together(work, lambda: None)

    def _together(self, work: Callable[[int], R], start: Callable[[], None]) -> list[R]:
        """Work in all clients, which begin together, after ``start`` was called; what each returned."""
        line = threading.Barrier(self._load.clients, start)

        def run_in_line(client: int) -> R:
            line.wait()
            return work(client)

        with ThreadPoolExecutor(self._load.clients, "retrysafe-bench") as threads:
            try:
                running = [threads.submit(run_in_line, client) for client in range(self._load.clients)]
                return [one.result() for one in running]
            except BaseException:
                self._stop.set()
                line.abort()  # a thread that could not be started is not waited for
                raise


class _Keys:
    """Numbers of the keys that the clients claim, until the load is done or it is stopped."""

    def __init__(self, profile: BenchProfile, load: BenchLoad, stop: threading.Event) -> None:
        self._load = load
        self._stop = stop
        self._ends = math.inf
        self._taken = itertools.count()
        self._storm = threading.Barrier(load.clients, self._hit)
        self._hot: int | None = None
        self._replays = profile is BenchProfile.REPLAY
        self.take = self._next_of_storm if profile is BenchProfile.STORM else self._next
        """The next key for a client; None when there is none any more. In a storm it waits for all clients."""
        self._most: float = _most(profile, load)
        self.room = REPLAYED_KEYS if self._replays else int(self._most)
        """The number of keys that there can be."""
        self.last = -1
        """The highest number that was handed out."""
        self.began = 0.0

    def start(self) -> None:
        self.began = time.perf_counter()
        if self._load.seconds is not None:
            self._ends = self.began + self._load.seconds

    def _next(self) -> int | None:
        if self._stop.is_set() or time.perf_counter() >= self._ends:
            return None
        taken = next(self._taken)
        if taken >= self._most:
            return None
        number = taken % REPLAYED_KEYS if self._replays else taken
        self.last = max(self.last, number)
        return number

    def _next_of_storm(self) -> int | None:
        self._storm.wait()
        return self._hot

    def _hit(self) -> None:
        """Choose the key of the next round, in one thread while all others wait."""
        self._hot = self._next()


def _most(profile: BenchProfile, load: BenchLoad) -> float:
    """Return the largest number of keys that a profile hands out; a storm uses one in each round."""
    if profile is BenchProfile.REPLAY:
        return math.inf if load.claims is None else load.claims
    if load.claims is None:
        return MOST_KEYS
    return math.ceil(load.claims / load.clients) if profile is BenchProfile.STORM else load.claims


class Runs:
    """Counts the runs of each key's work."""

    def __init__(self, room: int) -> None:
        self._times = bytearray(room)
        self._lock = threading.Lock()

    def add(self, number: int) -> None:
        with self._lock:
            self._times[number] = min(self._times[number] + 1, 255)

    def twice(self) -> tuple[str, ...]:
        return tuple(str(number) for number, times in enumerate(self._times) if times > 1)


class _Worker:
    """Claims keys one after the other, and counts what came of it."""

    def __init__(self, boundary: Boundary, operation: str, size: int, runs: Runs) -> None:
        self._boundary = boundary
        self._operation = operation
        self._result = "r" * max(0, size - len('""'))
        self._runs = runs
        self.latencies: list[float] = []
        self.counts: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.ended = 0.0

    def claim_all(self, keys: _Keys, stop: threading.Event) -> None:
        while (number := keys.take()) is not None:
            began = time.perf_counter()
            try:
                self.counts[self._claim_key(number)] += 1
            except Exception as error:  # noqa: BLE001 - a store that breaks its driver is measured too
                self.errors[type(error).__name__] += 1
                stop.wait(PAUSE)
            else:
                self.latencies.append(time.perf_counter() - began)
        self.ended = time.perf_counter()

    def complete(self, number: int) -> None:
        """Claim a key that must be completed then; raises what the claim raises."""
        self._claim(number)

    def _claim_key(self, number: int) -> str:
        try:
            return "replayed" if self._claim(number) else "ran"
        except InProgress:
            return "refused"

    def _claim(self, number: int) -> bool:
        with self._boundary.claim(str(number), operation=self._operation, payload=number) as claim:
            if not claim.replayed:
                self._runs.add(number)
                claim.result = self._result
        return claim.replayed


def _add_up(profile: BenchProfile, workers: list[_Worker], runs: Runs, began: float) -> Measured:
    latencies, counts, errors = list[float](), Counter[str](), Counter[str]()
    for worker in workers:
        latencies += worker.latencies
        counts.update(worker.counts)
        errors.update(worker.errors)
    return Measured(
        profile,
        ran=counts["ran"],
        replayed=counts["replayed"],
        refused=counts["refused"],
        errors=dict(errors.most_common()),
        ran_twice=runs.twice(),
        seconds=max(worker.ended for worker in workers) - began,
        latencies=sorted(latencies),
    )


def _check_sync(backend: Backend) -> None:
    if not backend.serves_sync:
        raise ConfigurationError(
            f"store= ({backend.address}) serves async code only, and the clients that measure are threads: give the "
            "same database by a URL that serves both, such as postgresql:// or mysql://."
        )


def _check(load: BenchLoad) -> None:
    if not 1 <= load.clients <= MOST_CLIENTS:
        raise ConfigurationError(f"clients={load.clients!r}: expected a number of threads from 1 to {MOST_CLIENTS}.")
    if load.claims is not None and not 1 <= load.claims <= MOST_KEYS:
        raise ConfigurationError(f"claims={load.claims!r}: expected a number of claims from 1 to {MOST_KEYS:,}.")
    if load.seconds is not None and not 0 < load.seconds < math.inf:
        raise ConfigurationError(f"seconds={load.seconds!r}: expected how long each profile lasts, more than 0.")
    if load.seconds is None and load.claims is None:
        raise ConfigurationError("Give seconds= or claims=: nothing else ends a measurement.")


def forget_boundary(store: Any, name: str) -> Forgotten:
    """Forget what an earlier measurement has left behind; looks through all records of the store for its boundary.

    Raises `ConfigurationError` for a boundary that is not one of a measurement, and `StoreUnavailable`.
    """
    if re.fullmatch(rf"{PREFIX}[0-9a-f]{{8}}", name) is None:
        raise ConfigurationError(f"{name!r} is not the boundary of a measurement, which is {PREFIX} and eight digits.")
    backend = connect(store)
    _check_sync(backend)
    with Operator(store, observers=()) as operator:
        hashes = [record.key for record in operator.each(Filter(boundary=name))]
        return forget_keys(backend, hashes)
