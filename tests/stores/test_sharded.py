"""Stores that are made of named stores: keys in their shards, and a move in which no key is lost and none won twice."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest

from retrysafe import Boundary, ConfigurationError, Quota, StoreUnavailable, current
from retrysafe.admin.operator import Operator
from retrysafe.admin.sweeper import Sweeper
from retrysafe.backends.backend import Backend
from retrysafe.backends.memory.store import MemoryClient, MemoryStore
from retrysafe.backends.sharded import sharded
from retrysafe.backends.sharded.store import ShardedStore
from retrysafe.backends.spec import StoreAccess
from retrysafe.protocol.procedures import Won, claim
from retrysafe.protocol.records import ClaimRequest, Clocks, Sharded
from retrysafe.protocol.requests import Program
from retrysafe.testing import Clock
from tests.stores.harnesses.sharded import after, before, files
from tests.tables import each_row

KEYS = [f"order {number}" for number in range(40)]
CLOCKS = Clocks(30_000_000, 3600_000_000, 3600_000_000)


def in_file(store: str) -> int:
    with sqlite3.connect(store.removeprefix("sqlite:///")) as db:
        return int(db.execute("SELECT count(*) FROM retrysafe_records").fetchone()[0])


def done_by(store: Sharded, keys: list[str] = KEYS) -> list[str]:
    """Do the work of keys; those that were done now."""
    boundary = Boundary("shop", store=store)
    now: list[str] = []

    @boundary.once(key="key", operation="work")
    def work(key: str) -> str:
        now.append(key)
        return key.upper()

    assert [work(key) for key in keys] == [key.upper() for key in keys]
    boundary.close()
    return now


# ---------------------------------------------------------------- maps


def test_a_new_name_takes_its_share_from_all_and_moves_nothing_else() -> None:
    hashes = [bytes([number % 256, number // 256]) * 16 for number in range(4000)]
    old, new = sharded(a="x", b="y"), sharded(b="y", c="z", a="x")
    moves = Counter((old.shard_of(one), new.shard_of(one)) for one in hashes)
    assert set(moves) == {("a", "a"), ("b", "b"), ("a", "c"), ("b", "c")}
    assert 1200 < moves["a", "c"] + moves["b", "c"] < 1467


@each_row(
    ("make", "told"),
    [
        (lambda: sharded(), "name the stores"),
        (lambda: sharded(a="x", moving_to=sharded(b="y"), moved_from=sharded(c="z")), "at most one other map"),
        (lambda: sharded(a="x", moved_from=sharded(b="y", moved_from=sharded(c="z"))), "at most one other map"),
        (lambda: sharded(a="x", moved_from=sharded(a="y")), "a is of two stores"),
        (lambda: Boundary("b", store=sharded(a="memory://")), "durable store of one layer"),
        (lambda: Boundary("b", store=sharded(a=sharded(b="redis://127.0.0.1:1"))), "durable store of one layer"),
        (lambda: Boundary("b", store=sharded(a="redis://127.0.0.1:1"), quota=Quota(outstanding=1)), "quota="),
    ],
)
def test_a_map_that_cannot_be_kept_is_refused(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        make()


# ---------------------------------------------------------------- shards at work


def test_keys_lie_in_their_shards_and_all_are_listed_counted_and_swept(tmp_path: Path) -> None:
    stores = files(tmp_path)
    assert done_by(stores) == KEYS
    assert done_by(stores) == []
    counted = [in_file(store) for store in stores.shards.values()]
    assert sum(counted) == len(KEYS)
    assert min(counted) > 5
    with Operator(stores) as operator:
        found = list(operator.each())
        assert operator.count().records == len(found) == len(KEYS)
        assert [tally.records for tally in operator.tallies()] == [len(KEYS)]
        assert operator.show(found[-1].key) is not None
    with Clock(Boundary("shop", store=stores)) as clock:
        clock.advance("25h")
    assert Sweeper(stores).run_once().removed == len(KEYS)


def test_async_code_has_the_same_keys(tmp_path: Path) -> None:
    stores = files(tmp_path)
    done_by(stores)

    async def shout(key: str) -> str:
        return key.upper()

    async def again() -> list[str]:
        boundary = Boundary("shop", store=stores)
        now: list[str] = []

        @boundary.once(key="key", operation="work")
        async def work(key: str) -> str:
            now.append(key)
            return await current().step("shout", shout, key)

        assert [await work(key) for key in [*KEYS, "new"]] == [key.upper() for key in [*KEYS, "new"]]
        await boundary.aclose()
        return now

    assert asyncio.run(again()) == ["new"]


def test_a_transaction_is_one_of_the_keys_shard(tmp_path: Path) -> None:
    stores = files(tmp_path)
    boundary = Boundary("shop", store=stores, effects="transactional")
    files_of = {name: store.removeprefix("sqlite:///") for name, store in stores.shards.items()}
    for path in files_of.values():
        sqlite3.connect(path).execute("CREATE TABLE orders (id TEXT)")
    refused = 0
    for key in KEYS:
        with boundary.claim(key, operation="own") as claim:
            claim.tx.execute("INSERT INTO orders VALUES (?)", (key,))
        with sqlite3.connect(files_of["east"]) as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                with boundary.claim(key, operation="joined", tx=db):
                    db.execute("INSERT INTO orders VALUES (?)", (key,))
            except ConfigurationError as error:
                assert "another database" in str(error)  # noqa: PT017 - a key of the other shard
                refused += 1
    orders = [sqlite3.connect(path).execute("SELECT count(*) FROM orders").fetchone()[0] for path in files_of.values()]
    assert sum(orders) == 2 * len(KEYS) - refused
    assert [in_file(store) for store in stores.shards.values()] == orders
    assert 5 < refused < 35


def test_a_shard_that_is_away_stops_its_own_keys_only(tmp_path: Path) -> None:
    stores = sharded(here=f"sqlite:///{tmp_path / 'here.db'}", away="postgresql://nobody@127.0.0.1:1/shop")
    boundary = Boundary("shop", store=stores, effects="keyed")
    ended = Counter[str]()
    for key in KEYS[:8]:
        try:
            with boundary.claim(key):
                ended["done"] += 1
        except StoreUnavailable:
            ended["away"] += 1
    assert set(ended) == {"done", "away"}
    assert in_file(stores.shards["here"]) == ended["done"]


# ---------------------------------------------------------------- a move


def test_a_move_forgets_no_key_and_ends_when_nothing_is_left(tmp_path: Path) -> None:
    old, ready, new = files(tmp_path), before(tmp_path), after(tmp_path)
    first, second, third = KEYS[:10], KEYS[10:20], KEYS[20:30]
    assert done_by(old, first) == first
    assert done_by(ready, first + second) == second
    assert done_by(new, first + second + third) == third
    assert done_by(ready, first + second + third) == []
    assert [in_file(store) for store in (*old.shards.values(), new.shards["north"])][2] == len(third)
    begun: list[str] = []

    def run(store: Sharded, *, fails: bool) -> None:
        boundary = Boundary("steps", store=store, effects="keyed")
        for key in KEYS[:6]:
            with suppress(OSError), boundary.claim(key) as claim:
                claim.step("begin", begun.append, key)
                if fails:
                    raise OSError
        boundary.close()

    for store, fails in ((old, True), (ready, True), (new, False)):  # a released key has its steps where it began
        run(store, fails=fails)
    assert begun == KEYS[:6]
    boundary = Boundary("shop", store=new, effects="keyed")
    with Clock(boundary) as clock:
        clock.advance("25h")
    assert Sweeper(new).run_once().removed == len(first + second + third)
    with (
        pytest.raises(ConfigurationError, match="moves between the shards"),
        Boundary("other", store=new, effects="transactional").claim("order 1"),
    ):
        pass


def _maps() -> tuple[dict[str, Backend], ShardedStore, ShardedStore]:
    """Two shards in memory, the store of processes that write by the old map, and of those that write by the new."""

    def shard() -> Backend:
        client = MemoryClient(lambda: 1_800_000_000_000_000)
        return Backend(MemoryStore(), StoreAccess("a shard", sync=lambda: client))

    shards = {"old": shard(), "new": shard()}
    old, new = sharded(old="o"), sharded(new="n")
    return (
        shards,
        ShardedStore(Sharded(old.shards, new), shards),
        ShardedStore(Sharded(new.shards, old), shards),
    )


def _stepping(shards: dict[str, Backend], program: Program[Any], outcome: list[Any]) -> Any:
    """Drive a program of routed requests, one for each ``next``."""

    def inside(program: Program[Any]) -> Any:
        answer: Any = None
        while True:
            try:
                asked = program.send(answer)
            except StopIteration as stop:
                return stop.value
            if callable(asked.request):
                answer = asked.parse((yield from inside(asked.request())))
            else:
                yield
                answer = asked.parse(shards[asked.request.shard].client()(asked.request.request))

    outcome.append((yield from inside(program)))


def _met(order: tuple[int, ...]) -> tuple[int, bool]:
    """Two attempts at a key on the two maps, whose requests come in this order: who won, and whether it can be won."""
    shards, *stores = _maps()
    outcomes: list[list[Any]] = [[], []]

    def want(attempt: str) -> ClaimRequest:
        return ClaimRequest(b"k" * 32, "b", "", "o", b"f", attempt, "external", CLOCKS)

    running = [_stepping(shards, claim(store, want(f"attempt {i}")), outcomes[i]) for i, store in enumerate(stores)]
    for i in (*order, *([0, 1] * 20)):
        next(running[i], None)
    won = [isinstance(outcome[0], Won) for outcome in outcomes]
    last: list[Any] = []
    for _ in _stepping(shards, claim(stores[1], want("a later attempt")), last):
        pass
    return sum(won), isinstance(last[0], Won)


def test_two_attempts_on_the_two_maps_never_both_win_in_whatever_order_their_requests_come() -> None:
    met = Counter(_met(order) for order in itertools.product((0, 1), repeat=10))
    assert {won for won, _ in met} <= {0, 1}
    assert all(free == (won == 0) for won, free in met), (
        "a key that both gave back is free, and one that was won is not"
    )
    assert met[1, False] > 100


WORKER = """
import os, sys
from retrysafe import Boundary, InProgress, OutcomeUnknown
from tests.stores.harnesses.sharded import after, before
from pathlib import Path
path, deploy, begin = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
boundary = Boundary("shop", store=(before if deploy == "before" else after)(path), effects="external", lease="2s")
out = os.open(path / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
keys = [f"order {number}" for number in range(300)]
for key in keys[begin:] + keys[:begin]:
    try:
        with boundary.claim(key, operation="work") as claim:
            if not claim.replayed:
                os.write(out, (key + chr(10)).encode())
                print(flush=True)
                claim.result = key
    except (InProgress, OutcomeUnknown):
        pass
print("end", flush=True)
"""


@pytest.mark.slow
def test_processes_that_are_killed_during_a_move_do_nothing_twice(tmp_path: Path) -> None:
    killed = 0

    def worker(deploy: str, begin: int) -> Popen[bytes]:
        argv = [sys.executable, "-c", WORKER, str(tmp_path), deploy, str(begin)]
        return Popen(argv, stdout=PIPE, env=os.environ)

    for turn in range(6):
        workers = [worker(deploy, 40 * turn + 10 * i) for i, deploy in enumerate(("before", "after", "before"))]
        for i, one in enumerate(workers):
            assert one.stdout is not None
            for _ in range(5 + 7 * turn + i):  # each is killed somewhere behind an effect of its own
                if one.stdout.readline() in (b"", b"end\n"):
                    break
            one.send_signal(signal.SIGKILL)
            killed += one.wait() == -signal.SIGKILL
            one.stdout.close()
    last = worker("after", 0)
    last.communicate()
    assert last.returncode == 0
    effects = Counter((tmp_path / "effects").read_text(encoding="utf-8").split("\n")[:-1])
    assert killed >= 12
    assert set(effects.values()) == {1}
    with Operator(after(tmp_path)) as operator:
        records = list(operator.each())
    assert len(effects) <= len({record.key for record in records}) <= 300
