"""Traps: what users do that could run twice, lose work, hang or mislead; each is met or refused by name."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import sqlite3
import threading
import warnings
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from retrysafe import (
    Boundary,
    ConfigurationError,
    Event,
    InProgress,
    KeyReused,
    LeaseLost,
    OutcomeUnknown,
    ResultNotEncodable,
    RetryTransaction,
    StoredFailure,
    StoredResult,
    current,
    wait,
)
from retrysafe.backends.registry import connect
from tests.stores.ageing import let_lapse
from tests.tables import each_row

if TYPE_CHECKING:
    from only_for_type_checkers import Missing  # type: ignore[import-not-found]


@pytest.fixture
def keyed(tmp_path: Path) -> Boundary:
    return Boundary("keyed", store=f"sqlite:///{tmp_path / 'traps.db'}")


@pytest.fixture
def transactional(tmp_path: Path) -> Boundary:
    return Boundary("transactional", store=f"sqlite:///{tmp_path / 'traps.db'}", effects="transactional")


# ---------------------------------------------------------------- results and errors that break their own rendering


class BrokenCodec:
    def encode(self, value: Any, annotation: Any) -> StoredResult:
        raise NameError("the codec is broken")

    def decode(self, stored: StoredResult, annotation: Any) -> Any:
        raise AssertionError("nothing was stored")


def test_a_codec_that_raises_settles_the_key_all_the_same(tmp_path: Path) -> None:
    boundary = Boundary("x", store=f"sqlite:///{tmp_path / 'x.db'}", codec=BrokenCodec())
    with pytest.raises(ResultNotEncodable, match="the codec is broken"), boundary.claim("k") as claim:
        claim.result = 1
    with pytest.raises(ResultNotEncodable, match="withheld"), boundary.claim("k"):
        pytest.fail("the work must not run again")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@each_row("error", [Unspeakable(), ValueError("\ud800")])
def test_an_error_without_a_text_is_still_stored(tmp_path: Path, error: Exception) -> None:
    boundary = Boundary("x", store=f"sqlite:///{tmp_path / 'x.db'}", permanent=Exception)
    with pytest.raises(type(error)), boundary.claim("k"):
        raise error
    with pytest.raises(StoredFailure) as caught, boundary.claim("k"):
        pytest.fail("a stored failure is not run again")
    assert caught.value.type == type(error).__name__


@each_row("inner", [InProgress, LeaseLost, OutcomeUnknown, RetryTransaction])
def test_a_passing_error_of_an_inner_claim_is_never_stored_as_permanent(inner: type[Exception]) -> None:
    boundary = Boundary("x", store="memory://", permanent=Exception)
    with pytest.raises(inner), boundary.claim("k"):
        raise inner("of an inner claim")
    with boundary.claim("k") as claim:
        assert not claim.replayed


# ---------------------------------------------------------------- what is decorated


def logged(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


async def coroutine(key: str) -> str:
    return key


def test_a_sync_wrapper_around_a_coroutine_is_refused(keyed: Boundary) -> None:
    with pytest.raises(ConfigurationError, match="next to the coroutine function"):
        keyed.once(key="key")(logged(coroutine))


def test_a_function_that_returns_an_awaitable_is_refused_as_one_that_failed(keyed: Boundary) -> None:
    """It may have done something before: where that must not happen twice, its key is unknown."""
    external = Boundary("external", store="memory://", effects="external")
    sent: list[str] = []

    def run(key: str) -> Any:
        sent.append(key)
        return coroutine(key)

    for boundary, again in ((keyed, ConfigurationError), (external, OutcomeUnknown)):
        once = boundary.once(key="key")(run)
        with pytest.raises(ConfigurationError, match="returned an awaitable"):
            once("k")
        with pytest.raises(again):
            once("k")
    assert len(sent) == 3


def test_undone_work_of_a_function_is_refused_and_not_stored(keyed: Boundary) -> None:
    """A generator never runs, nor does a coroutine that a coroutine function returns."""

    def numbers() -> Any:
        yield 1

    @keyed.once(key="key", operation="numbers")
    def generate(key: str) -> Any:
        return numbers()

    @keyed.once(key="key", operation="coroutine")
    async def forget(key: str) -> Any:
        return coroutine(key)

    async def main() -> None:
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="awaitable or a generator"):
                generate("k")
            with pytest.raises(ConfigurationError, match="awaitable or a generator"):
                await forget("k")
        await keyed.aclose()

    asyncio.run(main())


def test_a_task_that_a_function_has_begun_is_its_effect(keyed: Boundary) -> None:
    """It goes on although it was refused: its key must not become free beneath it."""
    sent: list[str] = []

    async def later(key: str) -> None:
        sent.append(key)

    async def main() -> None:
        begun: list[asyncio.Task[None]] = []

        @keyed.once(key="key", operation="begin")
        async def begin(key: str) -> Any:
            begun.append(asyncio.create_task(later(key)))
            return begun[0]

        with pytest.raises(ConfigurationError, match="awaitable or a generator"):
            await begin("k")
        await begun[0]
        with pytest.raises(OutcomeUnknown):
            await begin("k")
        assert sent == ["k"]
        await keyed.aclose()

    asyncio.run(main())


def test_an_object_that_is_called_as_a_generator_is_refused(keyed: Boundary) -> None:
    class Pages:
        def __call__(self, key: str) -> Any:
            yield key

    with pytest.raises(ConfigurationError, match="generator"):
        keyed.once(key="key", operation="pages")(Pages())


def test_a_callable_object_with_an_async_call_is_awaited(keyed: Boundary) -> None:
    class Sender:
        async def __call__(self, key: str) -> str:
            return f"sent {key}"

    send = keyed.once(key="key", operation="send")(Sender())

    async def main() -> None:
        assert await send("k") == "sent k"
        await keyed.aclose()

    asyncio.run(main())


def test_functions_that_would_share_keys_by_their_name_are_refused(keyed: Boundary) -> None:
    with pytest.raises(ConfigurationError, match="operation="):
        keyed.once(key="x")(lambda x: x)

    def make(kind: str) -> Any:
        def handler(key: str) -> str:
            return kind

        return handler

    ship = make("ship")
    keyed.once(key="key")(ship)
    keyed.once(key="key")(ship)
    with pytest.raises(ConfigurationError, match="their keys would collide"):
        keyed.once(key="key")(make("refund"))


def test_a_call_with_a_wrong_name_claims_nothing(keyed: Boundary) -> None:
    @keyed.once(key="a")
    def function(a: str, b: int) -> int:
        return b

    with pytest.raises(TypeError):
        function(a="k", c=2)  # type: ignore[call-arg]
    assert function(a="k", b=3) == 3


@dataclass
class Receipt:
    number: int


def test_a_parameter_only_type_checkers_know_does_not_hide_the_return_annotation(keyed: Boundary) -> None:
    @keyed.once(key="key", payload=None)
    def pay(key: str, order: Missing = None) -> Receipt:
        return Receipt(7)

    assert pay("k") == pay("k") == Receipt(7)


def test_a_return_annotation_that_cannot_be_resolved_is_refused_before_the_work(keyed: Boundary) -> None:
    @keyed.once(key="key")
    def pay(key: str) -> Missing:
        pytest.fail("the work must not start")

    with pytest.raises(ConfigurationError, match="at run time"):
        pay("k")


def test_a_parameter_called_tx_is_payload_where_nothing_is_joined(keyed: Boundary) -> None:
    @keyed.once(key="number")
    def send(number: int, tx: str) -> str:
        return tx

    assert send(1, "a") == "a"
    with pytest.raises(KeyReused):
        send(1, "b")


def test_a_person_settles_a_dead_attempt_with_the_class_that_callers_expect(tmp_path: Path) -> None:
    boundary = Boundary("x", store=f"sqlite:///{tmp_path / 'x.db'}", effects="external")

    @boundary.once(key="key", operation="pay")
    def pay(key: str) -> Receipt:
        pytest.fail("an effect in doubt must not be run again")

    dead = boundary.claim("k", operation="pay")
    dead.__enter__()
    dead._context.leave()
    from retrysafe.claims import heartbeat

    assert dead._held is not None
    heartbeat.for_thread(boundary._settings.backend).drop(dead._held)
    let_lapse(f"sqlite:///{tmp_path / 'x.db'}", "x")
    assert boundary.resolve("k", "completed", result=Receipt(9), operation="pay")
    assert boundary.resolve("k", "released", operation="pay") is False
    boundary.close()


# ---------------------------------------------------------------- grounds


def test_a_nested_claim_finds_the_transaction_over_another_store(tmp_path: Path, transactional: Boundary) -> None:
    other = Boundary("other", store="memory://")
    keyed = Boundary("keyed", store=f"sqlite:///{tmp_path / 'traps.db'}")
    with transactional.claim("outer") as outer, other.claim("between"):
        with transactional.claim("inner") as inner:
            assert inner.tx is outer.tx
        with pytest.raises(ConfigurationError, match="would not be rolled back"), keyed.claim("leased"):
            pytest.fail("a lease cannot live inside the transaction")


def test_a_task_made_inside_a_transaction_does_not_join_it_unasked(transactional: Boundary) -> None:
    async def inner() -> None:
        async with transactional.claim("inner"):
            pytest.fail("it could outlive the transaction around it")

    async def main() -> None:
        async with transactional.claim("outer"):
            with pytest.raises(ConfigurationError, match="another task or thread"):
                await asyncio.create_task(inner())
        await transactional.aclose()

    asyncio.run(main())


def test_an_error_while_entering_frees_the_key(tmp_path: Path) -> None:
    class Stop(BaseException):
        pass

    def observe(occurrence: Event) -> None:
        if occurrence.name == "started" and armed:
            armed.clear()
            raise Stop

    armed = [True]
    url = f"sqlite:///{tmp_path / 'x.db'}"
    boundary = Boundary("x", store=url, effects="transactional", observers=[observe])
    with pytest.raises(Stop), boundary.claim("k"):
        pytest.fail("the block must not run")
    with boundary.claim("k") as claim:
        assert not claim.replayed


def test_a_claim_that_is_left_twice_stays_out_of_the_way_of_others(transactional: Boundary) -> None:
    first = transactional.claim("first")
    with first:
        pass
    with transactional.claim("second"):
        first.__exit__(None, None, None)
        assert current().operation == "transactional"
        with transactional.claim("third") as third:
            third.result = 3
    freed = weakref.ref(first)
    del first
    gc.collect()
    assert freed() is None


@pytest.mark.slow
def test_a_child_forked_inside_the_block_does_not_settle_its_parents_claim(tmp_path: Path) -> None:
    for effects in ("keyed", "transactional"):
        terms: dict[str, Any] = {"store": f"sqlite:///{tmp_path / 'fork.db'}", "effects": effects}
        boundary = Boundary(effects, **terms)
        with boundary.claim("k") as claim:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # forking beside our heartbeat is the point
                child = os.fork()
            if child == 0:
                try:
                    claim.__exit__(ValueError, ValueError(), None)
                finally:
                    os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            claim.result = "parent's"
        with boundary.claim("k") as claim:
            assert claim.result == "parent's"


def test_many_loops_leave_nothing_behind(tmp_path: Path) -> None:
    boundary, before = Boundary("x", store=f"sqlite:///{tmp_path / 'x.db'}"), set(threading.enumerate())

    async def claim(number: int) -> None:
        async with boundary.claim(f"k{number}"):
            pass

    for number in range(10):
        asyncio.run(claim(number))
    made = set(threading.enumerate()) - before
    assert len([thread for thread in made if thread.name == "retrysafe-sqlite-writer"]) <= 1
    boundary.close()


def test_closing_under_an_open_claim_tells_it(tmp_path: Path) -> None:
    seen: list[Event] = []
    boundary = Boundary("x", store=f"sqlite:///{tmp_path / 'x.db'}", observers=[seen.append])
    with boundary.claim("k") as claim:
        boundary.close()
        with pytest.raises(LeaseLost):
            claim.ensure_held()
    assert "lease_lost" in [occurrence.name for occurrence in seen]


# ---------------------------------------------------------------- connections with habits of their own


def test_row_factories_of_the_user_do_not_matter(tmp_path: Path, transactional: Boundary) -> None:
    connection = sqlite3.connect(tmp_path / "traps.db")
    connection.row_factory = lambda cursor, row: dict(enumerate(row))
    with connection, transactional.claim("k", tx=connection) as claim:
        claim.result = 1
    connection.text_factory = bytes
    with pytest.raises(ConfigurationError, match="text_factory"), transactional.claim("k2", tx=connection):
        pytest.fail("text must be text")
    connection.close()


def test_psycopg_habits(postgresql: str) -> None:
    import psycopg
    from psycopg.rows import dict_row

    connect(postgresql).migrate()
    boundary = Boundary("habits", store=postgresql, effects="transactional")
    with psycopg.connect(postgresql, row_factory=dict_row, cursor_factory=psycopg.RawCursor) as connection:
        with boundary.claim("k", tx=connection) as claim:
            claim.result = 1
        with (
            connection.pipeline(),
            pytest.raises(ConfigurationError, match="pipeline"),
            boundary.claim("k2", tx=connection),
        ):
            pytest.fail("a claim cannot be answered in a pipeline")
    boundary.close()


def test_the_isolation_level_of_the_users_pool_holds_in_our_transaction(postgresql: str) -> None:
    import psycopg
    from psycopg_pool import ConnectionPool

    connect(postgresql).migrate()

    def serializable(connection: psycopg.Connection[Any]) -> None:
        connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE

    with ConnectionPool(postgresql, min_size=1, configure=serializable, open=True) as pool:
        boundary = Boundary("pooled", store=pool, effects="transactional")
        with boundary.claim("k") as claim:
            level = claim.tx.execute("SHOW transaction_isolation").fetchone()
        assert level == ("serializable",)
        with boundary.claim("k") as claim:
            assert claim.replayed
        boundary.close()


async def test_asyncpg_users_can_nest_their_own_transactions(postgresql: str) -> None:
    connect(postgresql).migrate()
    url = postgresql.replace("postgresql:", "postgresql+asyncpg:")
    boundary = Boundary("nesting", store=url, effects="transactional")
    async with boundary.claim("k") as claim:
        with pytest.raises(ZeroDivisionError):
            async with claim.tx.transaction():
                raise ZeroDivisionError
        claim.result = 1
    async with boundary.claim("k") as claim:
        assert claim.replayed
    await boundary.aclose()


def test_a_swallowed_database_error_is_not_run_again(postgresql: str) -> None:
    import psycopg

    connect(postgresql).migrate()
    boundary = Boundary("swallowed", store=postgresql, effects="transactional")
    runs: list[str] = []

    @boundary.once(key="key")
    def run(key: str) -> None:
        runs.append(key)
        with pytest.raises(psycopg.Error):
            current().tx.execute("SELECT 1/0")

    with pytest.raises(ConfigurationError, match="put a savepoint around it"):
        run("k")
    assert runs == ["k"]
    boundary.close()


@pytest.mark.parametrize("url", ["sqlite3", "postgresql"])
def test_a_handler_that_committed_and_then_failed_is_unknown(
    url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seen: list[Event] = []
    store = f"sqlite:///{tmp_path / 'x.db'}" if url == "sqlite3" else request.getfixturevalue("postgresql")
    connect(store).migrate()
    boundary = Boundary(f"committed {url}", store=store, effects="transactional", observers=[seen.append])
    with pytest.raises(ZeroDivisionError), boundary.claim("k") as claim:
        claim.tx.execute("COMMIT")
        raise ZeroDivisionError
    assert seen[-1].name == "unknown"
    with pytest.raises(OutcomeUnknown), boundary.claim("k"):
        pytest.fail("what was committed must not be run again")
    boundary.close()


def test_engines_in_memory_are_refused() -> None:
    import sqlalchemy

    for url in ("sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true"):
        engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.StaticPool)
        with pytest.raises(ConfigurationError, match="must be on a file"):
            Boundary("x", store=engine)


# ---------------------------------------------------------------- terms


def test_a_result_must_outlive_those_who_wait_for_it() -> None:
    with pytest.raises(ConfigurationError, match="window="):
        Boundary("x", store="memory://", window="5s", concurrency=wait(5))


@each_row("url", ["postgresql://h/db?user=u&password=hunter2", "postgresql://u:hunter2@h/db", "mysql://u:hunter2@h/db"])
def test_no_form_of_a_password_is_shown(url: str) -> None:
    assert "hunter2" not in repr(Boundary("x", store=url))


@each_row("text", ["a\x00b", "\ud800", "x" * 256])
def test_names_that_cannot_serve_are_refused(text: str) -> None:
    boundary = Boundary("x", store="memory://")
    for terms in ({"scope": text}, {"operation": text}):
        with pytest.raises(ConfigurationError, match=next(iter(terms))):
            boundary.claim("k", **terms)
    with pytest.raises(ConfigurationError, match="name="):
        Boundary(text, store="memory://")


@pytest.mark.parametrize("dropped", ["never", "before", "behind"])
@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_a_claim_that_is_dropped_inside_its_block_is_not_renewed(
    colour: str, dropped: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key would be locked until the process ends; so it becomes free, or unknown, when its lease has lapsed.

    Whether it is dropped before its renewals are scheduled or behind that.
    """
    from retrysafe.claims import heartbeat

    boundary = Boundary("x", store=f"sqlite:///{tmp_path / 'x.db'}", lease="60s", observers=())
    claim = boundary.claim("k")
    if colour == "sync":
        claim.__enter__()
        schedule = heartbeat.for_thread(boundary._settings.backend)._schedule
    else:
        await claim.__aenter__()
        schedule = heartbeat.for_loop(boundary._settings.backend)._schedule
    assert claim._held is not None
    owned = claim._held.ownership
    for moment in ("before", "behind"):
        if dropped == moment:
            del claim
            gc.collect()
        if moment == "before":
            schedule.looks_at = 0.0
            schedule.look(heartbeat.clock())
            assert (owned in schedule.leases) is (dropped != "before")
    now = heartbeat.clock()
    with monkeypatch.context() as patched:
        patched.setattr(heartbeat, "clock", lambda: now + 30)
        assert schedule.due() == ([owned] if dropped == "never" else [])
    assert (owned in schedule.leases) is (dropped == "never")
    if dropped == "never":
        await claim.__aexit__(None, None, None)
    await boundary.aclose()
