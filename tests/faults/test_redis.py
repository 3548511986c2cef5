"""Scripts forgotten, connections killed, slots moved, tasks cancelled, expiries lost. FAULTS 39-43."""

from __future__ import annotations

import asyncio
import contextvars
import fcntl
import re
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import redis
import redis.asyncio

from retrysafe import Boundary, ConfigurationError, Quota, QuotaExceeded, StoreUnavailable, wait
from retrysafe.admin.operator import Operator
from retrysafe.backends.backend import Backend
from retrysafe.backends.driver import arun, run
from retrysafe.backends.redis import client as executor
from retrysafe.backends.redis import packing
from retrysafe.backends.redis import url as urls
from retrysafe.backends.redis.async_client import Wire
from retrysafe.backends.redis.store import name_of
from retrysafe.backends.registry import connect
from retrysafe.cli import main
from retrysafe.protocol import backoff
from retrysafe.protocol.decisions import Decision
from retrysafe.protocol.procedures import Won, claim, page, read, renew, settle, sweep
from retrysafe.protocol.records import ClaimRequest, Filter, Ownership, State, StoredResult
from retrysafe.protocol.transitions import Transition
from retrysafe.testing.lockstep import CLOCKS
from tests.conftest import absent, require
from tests.faults.conftest import Making
from tests.faults.helpers import DEADLINE, ROOT, Told, auntil, environment, unique, until
from tests.faults.redis_servers import Server, installed
from tests.stores.ageing import age_at, redis_masters
from tests.stores.harnesses.redis import redis_url
from tests.tables import each_row

TOPOLOGIES = ["", "_CLUSTER", "_SENTINEL"]
DONE = StoredResult(b"done", "text/plain", 1)


@pytest.fixture(params=TOPOLOGIES, ids=["redis", "redis-cluster", "redis-sentinel"])
def url(request: pytest.FixtureRequest) -> str:
    """Every topology."""
    require(f"redis{request.param.lower().replace('_', '-')}")
    return redis_url(request.param)


@pytest.fixture
def cluster() -> str:
    """The cluster's URL."""
    require("redis-cluster")
    return redis_url("_CLUSTER")


@pytest.fixture
def backend(url: str) -> Iterator[Backend]:
    """A backend of the test's own."""
    made = connect(_named(url)[0])
    yield made
    made.close()


def _want(key: bytes, attempt: str = "first") -> ClaimRequest:
    return ClaimRequest(key, "b", "s", "o", b"p", attempt, "keyed", CLOCKS)


def _nodes(url: str) -> dict[str, Any]:
    found: dict[str, Any] = redis_masters(url).all()
    return found


# ---------------------------------------------------------------- scripts and connections


@pytest.mark.fault(40)
def test_forgotten_scripts_are_loaded_again(url: str, make: Making) -> None:
    """40."""
    boundary = make(url)
    for number in range(3):
        for node in _nodes(url).values():
            node.script_flush()
        with boundary.claim(number) as claim:
            claim.result = number
            for node in _nodes(url).values():
                node.script_flush()
    with closing(Operator(url, observers=())) as operator:
        assert {record.boundary for record in operator.each(Filter(boundary.name))} == {boundary.name}


@pytest.mark.slow
@pytest.mark.fault(40)
@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_a_server_without_our_scripts_is_given_them(colour: str, make: Making, told: Told) -> None:
    """40: after every step it has forgotten them; nobody else is there to give them to it."""
    if not installed():
        absent("no redis-server to start")
    server = Server("--appendonly", "yes")
    boundary = make(server.url)
    for replayed in (False, True):
        server.client.script_flush()
        if colour == "sync":
            with boundary.claim("key") as claim:
                server.client.script_flush()
        else:
            async with boundary.claim("key") as claim:
                server.client.script_flush()
        assert claim.replayed is replayed
    assert (told.names["completed"], told.names["settle_deferred"]) == (1, 0)
    await boundary.aclose()
    server.close()


async def test_forgotten_scripts_are_loaded_again_by_many_tasks(url: str, make: Making) -> None:
    boundary = make(url)

    async def one(number: int) -> None:
        async with boundary.claim(number) as claim:
            claim.result = number
            if number % 7 == 0:
                for node in _nodes(url).values():
                    node.script_flush()

    await asyncio.gather(*map(one, range(50)))
    await boundary.aclose()


def test_killed_connections_are_made_again(url: str, make: Making) -> None:
    named, name = _named(url)
    boundary = make(named)
    for number in range(3):
        with boundary.claim(number) as claim:
            claim.result = number
        _kill(url, name)
        with boundary.claim(number) as claim:
            assert claim.replayed


async def test_killed_lanes_are_laid_again(url: str, make: Making) -> None:
    named, name = _named(url)
    boundary = make(named)
    for number in range(3):
        async with boundary.claim(number) as claim:
            claim.result = number
        await asyncio.to_thread(_kill, url, name)
        async with boundary.claim(number) as claim:
            assert claim.replayed
    await boundary.aclose()


def _named(url: str) -> tuple[str, str]:
    """The URL with a name for its connections, and the name: a test kills its own only."""
    name = unique("client")
    return f"{url}?client_name={name}", name


def _kill(url: str, name: str) -> None:
    """Kill every connection of that name, on every master."""
    for node in _nodes(url).values():
        for client in node.client_list():
            if client["name"] == name:
                node.execute_command("CLIENT", "KILL", "ID", client["id"])


@pytest.mark.fault(43)
async def test_a_kill_in_mid_flight_is_recognised_afterwards(url: str) -> None:
    """2, 43: whether the claim was written or not, the same attempt learns that the key is its own."""
    named, name = _named(url)
    backend = connect(named)
    client = backend.aclient()
    keys = [secrets.token_bytes(32) for _ in range(30)]
    await arun(read(backend.store, keys[0]), client)
    claims = [asyncio.create_task(arun(claim(backend.store, _want(key)), client)) for key in keys]
    await asyncio.sleep(0)
    await asyncio.to_thread(_kill, url, name)
    for key, outcome in zip(keys, await asyncio.gather(*claims, return_exceptions=True), strict=True):
        if not isinstance(outcome, Won):
            assert isinstance(outcome, StoreUnavailable)
            assert isinstance(await arun(claim(backend.store, _want(key)), client), Won)
    await backend.aclose()


@pytest.mark.fault(43)
async def test_cancelling_one_waiter_disturbs_no_other(backend: Backend, url: str) -> None:
    """43: on one wire, every reply goes to the one who asked."""
    client, store = backend.aclient(), backend.store
    keys = [secrets.token_bytes(32) for _ in range(60)]
    for key in keys:
        assert isinstance(await arun(claim(store, _want(key, key.hex()[:8])), client), Won)
    for pause in (200, 1000, 3000):  # milliseconds; on a busy machine it may be over before anything is cancelled
        for node in _nodes(url).values():
            node.execute_command("CLIENT", "PAUSE", pause, "ALL")
        reads = [asyncio.create_task(arun(read(store, key), client)) for key in keys]
        await asyncio.sleep(0.01)
        for task in reads[::2]:
            task.cancel()
        records = await asyncio.gather(*reads, return_exceptions=True)
        if all(isinstance(record, asyncio.CancelledError) for record in records[::2]):
            break
    assert [type(record).__name__ for record in records[::2]] == ["CancelledError"] * 30
    for key, record in zip(keys[1::2], records[1::2], strict=True):
        assert not isinstance(record, BaseException)
        assert record is not None
        assert (record.key, record.attempt) == (key, key.hex()[:8])
    for key in keys:
        record = await arun(read(store, key), client)
        assert record is not None
        assert record.attempt == key.hex()[:8]
    await backend.aclose()


async def test_a_wire_that_was_cut_before_its_first_command_answers() -> None:
    """13, 18: the server took the connection and hung up on it at once."""
    require("redis")
    client = redis.Redis.from_url(redis_url())
    wire = await Wire.over(redis.asyncio.Connection(**client.get_connection_kwargs()))
    client.client_kill_filter(_id=await wire.ask(("CLIENT", "ID")))
    await asyncio.wait_for(wire.lost, DEADLINE)
    with pytest.raises(StoreUnavailable) as caught:
        await asyncio.wait_for(wire.ask(("PING",)), DEADLINE)
    assert caught.value.unsent
    client.close()


@pytest.mark.fault(18)
async def test_a_server_that_answers_one_after_the_other_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """18: in a flood the last one waits for long; the server is given up when it says nothing for so long."""
    loop, later = asyncio.get_running_loop(), 0.0
    real = loop.time
    monkeypatch.setattr(loop, "time", lambda: real() + later)
    wire = Wire(silence=5.0)
    wire._transport = MagicMock()
    first, second, third = (wire.ask(("PING",)) for _ in range(3))
    for answer in (first, second):
        later += 4.0
        wire.data_received(b"+PONG\r\n")
        await asyncio.sleep(0)
        assert await answer == b"PONG"
    later += 4.0
    await asyncio.sleep(0)
    assert wire.is_open
    later += 1.5
    with pytest.raises(StoreUnavailable, match="no reply within 5 seconds"):
        await asyncio.wait_for(third, DEADLINE)
    wire._transport.abort.assert_called_once_with()


async def test_connecting_goes_on_when_the_first_to_ask_is_cancelled(backend: Backend) -> None:
    client, key = backend.aclient(), secrets.token_bytes(32)
    first = asyncio.create_task(arun(read(backend.store, key), client))
    second = asyncio.create_task(arun(read(backend.store, key), client))
    await asyncio.sleep(0)
    first.cancel()
    assert await second is None
    with pytest.raises(asyncio.CancelledError):
        await first
    await backend.aclose()


@pytest.mark.fault(43)
def test_a_connection_that_was_left_between_two_replies_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interruption there leaves a reply to come, which the next request would take for its own."""
    require("redis")
    node = next(iter(_nodes(redis_url("")).values()))
    assert executor.perform(node, [("ECHO", "before")]) == [b"before"]
    replies = executor._reply
    left = [1]

    def interrupted(connection: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return replies(connection)

    monkeypatch.setattr(executor, "_reply", interrupted)
    with pytest.raises(KeyboardInterrupt):
        executor.perform(node, [("ECHO", "one"), ("BLPOP", unique("never"), "0.3")])
    monkeypatch.undo()
    assert executor.perform(node, [("ECHO", "three")]) == [b"three"]


# ---------------------------------------------------------------- a step is whole, or was not there


@pytest.mark.fault(39)
def test_half_a_record_is_no_record(backend: Backend, url: str) -> None:
    """A MULTI that was cut short could leave this: the state, which is written last, is missing."""
    key = secrets.token_bytes(32)
    name = name_of(key)
    half = {"boundary": "b", "scope": "s", "operation": "o", "fingerprint": "other", "attempt": "dead", "token": "7"}
    redis_masters(url).of_key(name).hset(name, mapping=half)
    assert run(read(backend.store, key), backend.client()) is None
    won = run(claim(backend.store, _want(key)), backend.client())
    assert isinstance(won, Won)
    assert (won.record.attempt, won.record.attempts, won.record.fingerprint) == ("first", 1, b"p")
    assert run(settle(backend.store, won.ownership, Transition.COMPLETE, DONE), backend.client())


# ---------------------------------------------------------------- records of retrysafe 0.1, which were hashes


_OLD_CLAIM = """
local values = redis.call('HMGET', KEYS[1], 'state', 'attempt')
if not values[1] then redis.call('HSET', KEYS[1], 'state', 'running') end"""
"""As 0.1 began to claim a key."""


def _hash(url: str, key: bytes, state: str, *, lease: int = 60, result: StoredResult | None = None) -> Any:
    """Write a record as 0.1 did; return the node that it is on."""
    node, name = redis_masters(url).of_key(name_of(key)), name_of(key)
    seconds, micros = node.time()
    now = seconds * 1_000_000 + micros
    fields: dict[Any, Any] = {
        "boundary": "b",
        "scope": "s",
        "operation": "o",
        "fingerprint": b"p",
        "state": state,
        "attempt": "old",
        "token": now,
        "attempts": 2,
        "effects": "keyed",
        "lease_until": now + lease * 1_000_000,
        "created": now,
        "updated": now,
        "expires": now + CLOCKS.window,
        "forget": now + CLOCKS.memory,
        "version": 3,
    }
    if result is not None:
        body = {} if result.body is None else {"result": result.body}
        fields |= {**body, "media_type": result.media_type, "codec_version": result.codec_version}
    node.hset(name, mapping=fields)
    if state not in ("running", "unknown"):
        node.pexpireat(name, (now + CLOCKS.memory) // 1000)
    return node


@each_row("result", [DONE, StoredResult(None, "text/plain", 3), StoredResult(b"", "a/b", 1), None])
def test_a_hash_is_read_and_left_alone(backend: Backend, url: str, result: StoredResult | None) -> None:
    key = secrets.token_bytes(32)
    node = _hash(url, key, "completed", result=result)
    before = node.hgetall(name_of(key))
    found = run(read(backend.store, key), backend.client())
    assert found is not None
    assert (found.state, found.attempt, found.attempts, found.version, found.result) == (
        "completed",
        "old",
        2,
        3,
        result,
    )
    assert (found.boundary, found.scope, found.operation, found.effects, found.fingerprint) == (
        "b",
        "s",
        "o",
        "keyed",
        b"p",
    )
    met = run(claim(backend.store, _want(key)), backend.client())
    assert (met.record, met.decision) == (found._replace(now=met.record.now), Decision.REPLAY)  # type: ignore[union-attr]
    assert node.hgetall(name_of(key)) == before
    assert node.pttl(name_of(key)) > 0


def test_a_hash_that_runs_is_waited_for_and_its_owner_settles_it(backend: Backend, url: str) -> None:
    """The owner may be of this version, or of the old one, which finds its hash."""
    key, client = secrets.token_bytes(32), backend.client()
    node = _hash(url, key, "running")
    assert run(claim(backend.store, _want(key)), client)[0] is Decision.BUSY
    assert node.type(name_of(key)) == b"hash"
    record = run(read(backend.store, key), client)
    assert record is not None
    ownership = Ownership(key, "old", record.token, CLOCKS, transactional=False)
    assert run(renew(backend.store, [ownership]), client) == {ownership}
    assert node.type(name_of(key)) == b"string"
    assert run(settle(backend.store, ownership, Transition.COMPLETE, DONE), client)
    settled = run(read(backend.store, key), client)
    assert settled is not None
    assert (settled.result, settled.version, settled.attempts, settled.created) == (DONE, 5, 2, record.created)
    assert node.pttl(name_of(key)) > 0


def test_a_hash_that_has_lapsed_is_taken_over_and_the_old_version_runs_nothing(backend: Backend, url: str) -> None:
    key, client = secrets.token_bytes(32), backend.client()
    node = _hash(url, key, "running", lease=-1)
    before = run(read(backend.store, key), client)
    won = run(claim(backend.store, _want(key)), client)
    assert isinstance(won, Won)
    assert before is not None
    assert won.record.token > before.token
    assert (won.record.attempts, won.record.created, won.record.attempt) == (3, before.created, "first")
    with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
        node.eval(_OLD_CLAIM, 1, name_of(key))
    after = run(read(backend.store, key), client)
    assert after is not None
    assert after._replace(now=won.record.now) == won.record


def test_half_a_hash_is_no_record_to_an_operator(backend: Backend, url: str) -> None:
    """A scan passes it over, as it does what is no record at all."""
    key = secrets.token_bytes(32)
    node = redis_masters(url).of_key(name_of(key))
    node.hset(name_of(key), "attempt", "dead")
    assert all(record.key != key for record in _scanned(backend))
    node.delete(name_of(key))


@pytest.mark.fault(83)
def test_a_sweep_leaves_records_of_a_newer_retrysafe_alone(backend: Backend, url: str) -> None:
    """They may mean something else behind their first byte."""
    key, client = secrets.token_bytes(32), backend.client()
    name, node = name_of(key), redis_masters(url).of_key(name_of(key))
    won = run(claim(backend.store, _want(key)), client)
    assert isinstance(won, Won)
    packed: Any = node.get(name)
    forgotten = packing._HEAD.pack(2, packing.number_of(State.COMPLETED), *[1] * 7, 1, 0)
    node.set(name, forgotten + packed[packing._HEAD.size :])
    run(sweep(backend.store, 100_000), client)
    assert node.exists(name)
    assert node.pttl(name) == -1
    node.delete(name)


def _scanned(backend: Backend) -> Iterator[Any]:
    found = run(page(backend.store, Filter(), None), backend.client())
    yield from found.records
    while found.cursor is not None:
        found = run(page(backend.store, Filter(), found.cursor), backend.client())
        yield from found.records


@pytest.mark.fault(39)
def test_every_step_is_one_script(backend: Backend, url: str) -> None:
    """No step can be cut into two: nothing of ours changes a key outside a script."""
    key, client = secrets.token_bytes(32), backend.client()
    node = redis_masters(url).of_key(name_of(key))
    run(read(backend.store, key), client)
    with node.monitor() as monitor:
        won = run(claim(backend.store, _want(key)), client)
        assert isinstance(won, Won)
        assert run(renew(backend.store, [won.ownership]), client) == {won.ownership}
        assert run(settle(backend.store, won.ownership, Transition.RELEASE, None), client)
        taken = run(claim(backend.store, _want(key, "second")), client)
        assert isinstance(taken, Won)
        assert run(settle(backend.store, taken.ownership, Transition.DOUBT, None), client)
        node.echo("seen all")
        asked: list[str] = []
        while (command := monitor.next_command())["command"] != "ECHO seen all":
            if command["client_type"] != "lua" and name_of(key).decode() in command["command"]:
                asked.append(command["command"].split()[0].upper())
    assert set(asked) <= {"EVALSHA", "EVAL"}
    assert asked.count("EVALSHA") == 6, "claim, renew, release, claim, take, doubt"


# ---------------------------------------------------------------- a cluster whose slots move


class Moving:
    """One slot of the cluster on its way from the node that has it to another one."""

    def __init__(self, url: str, key: bytes) -> None:
        nodes = _nodes(url)
        self.name = name_of(key)
        self.slot = int(next(iter(nodes.values())).execute_command("CLUSTER", "KEYSLOT", self.name))
        ids = {name: node.execute_command("CLUSTER", "MYID") for name, node in nodes.items()}
        self.nodes = nodes
        self.source = next(name for name in nodes if self._serves(nodes[name]))
        self.target = next(name for name in nodes if name != self.source)
        self.ids = {name: found.decode() if isinstance(found, bytes) else found for name, found in ids.items()}

    def _serves(self, node: Any) -> bool:
        try:
            node.execute_command("EXISTS", self.name)
        except redis.exceptions.MovedError:
            return False
        return True

    def begin(self) -> None:
        """Keys that are not there are from now on asked for at the target: ASK."""
        self._set(self.target, "IMPORTING", self.ids[self.source])
        self._set(self.source, "MIGRATING", self.ids[self.target])

    def finish(self) -> None:
        """The target has the slot: MOVED."""
        host, _, port = self.target.rpartition(":")
        while keys := self.nodes[self.source].execute_command("CLUSTER", "GETKEYSINSLOT", self.slot, 100):
            self.nodes[self.source].execute_command("MIGRATE", host, port, "", 0, 5000, "KEYS", *keys)
        for name in (self.target, *self.nodes):
            self._set(name, "NODE", self.ids[self.target])
        until(self._is_agreed)

    def _is_agreed(self) -> bool:
        """Tell whether all nodes know the same slots and epochs: otherwise one may lose a slot that it takes."""
        seen = {self._seen_by(node) for node in self.nodes.values()}
        return len(seen) == 1 and not self._serves(self.nodes[self.source])

    def _seen_by(self, node: Any) -> tuple[tuple[str, ...], ...]:
        """The id, the epoch and the slots of every node."""
        lines = node.execute_command("CLUSTER", "NODES").decode().splitlines()
        return tuple(sorted((words[0], *words[6:7], *words[8:]) for words in map(str.split, lines)))

    def back(self) -> None:
        self.source, self.target = self.target, self.source
        self.begin()
        self.finish()

    def _set(self, name: str, *words: str) -> None:
        self.nodes[name].execute_command("CLUSTER", "SETSLOT", self.slot, *words)


@contextmanager
def moving_alone(url: str, key: bytes) -> Iterator[Moving]:
    """While one slot moves no other does: a node that takes a slot in claims those again that it is just giving up."""
    with (Path(tempfile.gettempdir()) / "retrysafe-moving-slots.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield Moving(url, key)


@pytest.mark.fault(41)
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_slot_that_moves_is_followed(colour: str, cluster: str) -> None:
    """41: ASK for a key that is on its way, MOVED afterwards; the record goes with its slot."""
    backend = connect(_named(cluster)[0])
    store, key = backend.store, secrets.token_bytes(32)
    with asyncio.Runner() as runner, ExitStack() as stack:

        def do(program: Any) -> Any:
            if colour == "sync":
                return run(program, backend.client())
            return runner.run(_on(backend, program))

        assert do(read(store, key)) is None
        moving = stack.enter_context(moving_alone(cluster, key))
        moving.begin()
        try:
            won = do(claim(store, _want(key)))
            assert isinstance(won, Won)
            left = moving.nodes[moving.source].execute_command("CLUSTER", "GETKEYSINSLOT", moving.slot, 1000)
            names = [name if isinstance(name, bytes) else name.encode() for name in left]
            assert name_of(key) not in names, "other tests may have keys in this slot"
            assert isinstance(do(claim(store, _want(key))), Won), "the same attempt"
        finally:
            moving.finish()
        try:
            assert do(settle(store, won.ownership, Transition.COMPLETE, DONE))
            assert do(read(store, key)).result == DONE
        finally:
            moving.back()
        assert do(read(store, key)).result == DONE
        runner.run(backend.aclose())


async def _on(backend: Backend, program: Any) -> Any:
    return await arun(program, backend.aclient())


@pytest.mark.fault(41)
def test_keys_of_one_script_are_in_one_slot(cluster: str, make: Making) -> None:
    """A quota counts the keys of a scope in two places; a script over two slots would be refused (CROSSSLOT)."""
    boundary = make(cluster, quota=Quota(rate="3/1h", outstanding=3))
    for scope in range(6):
        for key in range(3):
            with boundary.claim(key, scope=str(scope)) as claim:
                claim.result = key
        with pytest.raises(QuotaExceeded), boundary.claim("one more", scope=str(scope)):
            pytest.fail("it was not counted")


# ---------------------------------------------------------------- expiry


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_lost_expiry_is_found_and_mended(colour: str, backend: Backend, url: str) -> None:
    """A settled record that PERSIST or RESTORE left without expiry gets it back, or goes if it is forgotten."""
    settled, forgotten, running = (secrets.token_bytes(32) for _ in range(3))
    store, client = backend.store, backend.client()
    for key in (settled, forgotten, running):
        won = run(claim(store, _want(key)), client)
        assert isinstance(won, Won)
        if key != running:
            assert run(settle(store, won.ownership, Transition.COMPLETE, DONE), client)
            assert redis_masters(url).of_key(name_of(key)).pttl(name_of(key)) > 0
            redis_masters(url).of_key(name_of(key)).persist(name_of(key))
    age_at(url)(forgotten, 7_201_000_000)
    repaired: list[int] = []
    if colour == "sync":
        removed = run(sweep(store, 1000, repaired.append), client)
    else:

        async def swept() -> int:
            removed = await arun(sweep(store, 1000, repaired.append), backend.aclient())
            await backend.aclose()
            return removed

        removed = asyncio.run(swept())
        client = backend.client()
    assert _is_shared(url) or (removed >= 1 and sum(repaired) >= 1), "other tests' records may have lost theirs, too"
    record = run(read(store, settled), client)
    assert record is not None
    left = redis_masters(url).of_key(name_of(settled)).pexpiretime(name_of(settled))
    assert left == -(-record.tombstone_until // 1000)
    assert run(read(store, forgotten), client) is None
    assert redis_masters(url).of_key(name_of(running)).pttl(name_of(running)) == -1


def test_sweep_says_how_many_got_back_their_expiry(
    backend: Backend, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    key, client = secrets.token_bytes(32), backend.client()
    won = run(claim(backend.store, _want(key)), client)
    assert isinstance(won, Won)
    assert run(settle(backend.store, won.ownership, Transition.COMPLETE, DONE), client)
    owner = redis_masters(url).of_key(name_of(key))
    owner.persist(name_of(key))
    assert main(["sweep", "--store", url]) == 0
    assert owner.pttl(name_of(key)) > 0
    told = re.search(r"; gave back their expiry to (\d+) that had lost it", capsys.readouterr().out)
    assert _is_shared(url) or (told is not None and int(told[1]) >= 1)


def _is_shared(url: str) -> bool:
    """Tell whether workers share a database, where a sweep of another's may come first."""
    return url.startswith("redis+cluster")


# ---------------------------------------------------------------- wake-ups


@pytest.fixture
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiting duplicate does not look again by itself before the test has failed."""
    monkeypatch.setattr(backoff, "POLLING", backoff.Backoff(1e6, 1e6))
    monkeypatch.setattr("random.random", lambda: 0.9)


def _apart(url: str, name: str, told: Told) -> tuple[Boundary, Boundary]:
    """One that waits, and the same as another process would have it: that one can wake nobody here by itself."""
    here = Boundary(name, store=url, observers=[told], concurrency=wait("10m"))
    elsewhere = Boundary(name, store=f"{url}&socket_timeout=4", observers=[told])
    return here, elsewhere


def _is_listened_to(url: str, claim: Any) -> bool:
    """Tell whether a client is subscribed to the end of this claim."""
    name = name_of(claim._request.key)
    return sum(node.execute_command("PUBSUB", "NUMSUB", name)[1] for node in _nodes(url).values()) > 0


@pytest.mark.usefixtures("no_polling")
def test_a_waiting_thread_is_woken_from_elsewhere(url: str) -> None:
    named, client = _named(url)
    here, elsewhere = _apart(named, unique(), Told())
    answers: list[tuple[bool, Any]] = []

    def waits() -> None:
        with here.claim("key") as claim:
            answers.append((claim.replayed, claim.result))

    waiter = threading.Thread(target=waits)
    with elsewhere.claim("key") as claim:
        waiter.start()
        until(lambda: _is_listened_to(url, claim))
        _kill(url, client)
        until(lambda: _is_listened_to(url, claim))  # it came back by itself
        claim.result = "from elsewhere"
    waiter.join(DEADLINE)
    assert answers == [(True, "from elsewhere")]
    here.close()
    elsewhere.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "retrysafe-redis-listener"]


@pytest.mark.usefixtures("no_polling")
async def test_a_waiting_task_is_woken_from_elsewhere(url: str) -> None:
    named, client = _named(url)
    here, elsewhere = _apart(named, unique(), Told())
    answers: list[tuple[bool, Any]] = []

    async def waits() -> None:
        async with here.claim("key") as claim:
            answers.append((claim.replayed, claim.result))

    async with elsewhere.claim("key") as claim:
        waiter = asyncio.create_task(waits(), context=contextvars.Context())  # not inside this claim
        await auntil(lambda: _is_listened_to(url, claim))
        await asyncio.to_thread(_kill, url, client)
        await auntil(lambda: _is_listened_to(url, claim))
        claim.result = "from elsewhere"
    await asyncio.wait_for(waiter, DEADLINE)
    assert answers == [(True, "from elsewhere")]
    tasks = asyncio.all_tasks()
    await here.aclose()
    await elsewhere.aclose()
    assert len(asyncio.all_tasks()) == len(tasks) - 1, "the listener lives on"


@pytest.mark.slow
def test_a_listener_does_not_keep_the_interpreter(url: str) -> None:
    program = f"""
import asyncio
from retrysafe import Boundary, InProgress, wait
first = Boundary("exit", store={url!r}, observers=(), shared=True)
second = Boundary("exit", store={url!r}, observers=(), concurrency=wait(0.1), shared=True)
KEY = {unique()!r}
import threading
def holds(entered, leave):
    with first.claim(KEY):
        entered.set(); leave.wait()
entered, leave = threading.Event(), threading.Event()
holder = threading.Thread(target=holds, args=(entered, leave)); holder.start(); entered.wait()
try:
    with second.claim(KEY): pass
except InProgress: print("sync waited")
async def awaits():
    try:
        async with second.claim(KEY): pass
    except InProgress: print("async waited")
asyncio.run(awaits())
leave.set(); holder.join()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE, env=environment(), cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "sync waited\nasync waited\n"
    assert "Traceback" not in done.stderr


# ---------------------------------------------------------------- URLs


@each_row(
    ("text", "topology", "hosts", "service", "db"),
    [
        ("redis://cache", "", [("cache", 6379)], "", None),
        ("valkey://cache:7000/3", "", [("cache", 7000)], "", 3),
        ("unix:///run/redis.sock?db=2", "", [("localhost", 6379)], "", 2),
        ("redis+cluster://a:1,b:2/", "cluster", [("a", 1), ("b", 2)], "", None),
        ("redis+cluster://[::1]:1,b/0", "cluster", [("::1", 1), ("b", 6379)], "", None),
        ("rediss+sentinel://a,b:7/shop/4", "sentinel", [("a", 26379), ("b", 7)], "shop", 4),
        ("valkeys+sentinel://a/shop?db=1", "sentinel", [("a", 26379)], "shop", 1),
    ],
)
def test_urls(text: str, topology: str, hosts: list[tuple[str, int]], service: str, db: int | None) -> None:
    address = urls.parse(text)
    assert (address.topology, address.hosts, address.service) == (topology, hosts, service)
    assert address.options.get("db") == db
    assert bool(address.options.get("ssl")) is text.startswith(("rediss", "valkeys"))


def test_a_password_is_decoded_and_never_shown() -> None:
    text = "redis+sentinel://worker:p%40ss@a:1/shop?sentinel_password=p%40ss"
    address = urls.parse(text)
    assert (address.options["username"], address.options["password"]) == ("worker", "p@ss")
    assert address.sentinel_options == {"password": "p@ss"}
    backend = connect(text)
    assert "p%40ss" not in backend.address


@each_row(
    ("text", "message"),
    [
        ("redis://a?decode_responses=true", "no option 'decode_responses'; it has db, socket_timeout"),
        ("redis://a?ssl_ca_certs=x", "no option 'ssl_ca_certs'"),
        ("redis://a?socket_timeout=soon", "socket_timeout='soon' is not possible"),
        ("redis://a/first", "db='first' is not possible"),
        ("redis+cluster://a:1/3", "one database"),
        ("redis+sentinel://a:1", "service-name"),
        ("redis+proxy://a", "unknown kind of URL"),
    ],
)
def test_impossible_parts_of_a_url_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message.replace("?", "[?]")):
        connect(text)


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_cluster_that_is_taken_for_one_server_is_refused(colour: str, cluster: str) -> None:
    backend = connect(f"redis://{next(iter(_nodes(cluster)))}?client_name={unique()}")
    keys = [secrets.token_bytes(32) for _ in range(50)]
    with asyncio.Runner() as runner, pytest.raises(ConfigurationError, match=r"redis\+cluster://"):
        try:
            for key in keys:
                program = read(backend.store, key)
                run(program, backend.client()) if colour == "sync" else runner.run(_on(backend, program))
        finally:
            runner.run(backend.aclose())


def test_transactional_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="effects"):
        Boundary("b", store=url, effects="transactional")


class SwallowsACancellation:
    """Masters that are being looked for, by a library that takes the first cancellation for a time-out."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.swallowed = False

    async def all(self) -> Any:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if self.swallowed:
                raise
            self.swallowed = True
        raise StoreUnavailable("the library timed out")

    async def aclose(self) -> None: ...


def test_a_listener_ends_with_its_loop_although_a_library_swallowed_its_cancellation() -> None:
    """The loop cancels once what is left of its tasks, and waits for them."""
    from retrysafe.backends.redis.listener import AsyncRedisListener

    masters: Any = SwallowsACancellation()

    async def leave() -> None:
        AsyncRedisListener(masters, lambda key: None).listen(b"key")
        await masters.asked.wait()

    running = threading.Thread(target=asyncio.run, args=(leave(),), daemon=True)
    running.start()
    running.join(20)
    assert not running.is_alive()
    assert masters.swallowed


async def test_a_cancellation_that_redis_py_loses_while_it_connects_is_heeded(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends under `asyncio.wait_for`, which in Python 3.11 loses a cancellation that comes with its end."""
    send = redis.asyncio.Connection.send_packed_command
    lost: list[bool] = []

    async def losing(*arguments: Any, **options: Any) -> None:
        await send(*arguments, **options)
        task = asyncio.current_task()
        if task is not None and not lost:
            lost.append(task.cancel())
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)

    monkeypatch.setattr(redis.asyncio.Connection, "send_packed_command", losing)
    masters = urls.asynchronous(urls.parse(url))

    async def connect() -> None:
        for connection in (await masters.all()).values():
            (await Wire.over(connection())).close()

    connecting = asyncio.create_task(connect())
    await asyncio.wait((connecting,), timeout=DEADLINE)
    assert lost == [True]
    assert connecting.cancelled()
    await masters.aclose()


async def test_a_listener_ends_although_a_library_swallowed_its_cancellation() -> None:
    from retrysafe.backends.redis.listener import AsyncRedisListener

    masters: Any = SwallowsACancellation()
    listener = AsyncRedisListener(masters, lambda key: None)
    listener.listen(b"key")
    await masters.asked.wait()
    ending = asyncio.create_task(listener.aclose())
    done, _ = await asyncio.wait((ending,), timeout=20)
    assert done
    assert masters.swallowed
