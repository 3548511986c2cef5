"""Every public name, used as a user would: checked by mypy --strict and pyright, never run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

import asyncpg
import redis
from psycopg_pool import ConnectionPool
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from retrysafe import (
    Boundary,
    Claim,
    Codec,
    CommandBus,
    ConfigurationError,
    Event,
    IllegalTransition,
    InProgress,
    InvalidKey,
    JSONCodec,
    KeyExpired,
    KeyReused,
    Keyring,
    Lease,
    LeaseLost,
    LoggingObserver,
    Observer,
    OutcomeUnknown,
    Postponed,
    Quota,
    QuotaExceeded,
    ResultNotEncodable,
    ResultUnreadable,
    RetrysafeError,
    RetryTransaction,
    SchemaOutdated,
    StaleToken,
    Step,
    StoredFailure,
    StoredResult,
    StoreMisconfigured,
    StoreUnavailable,
    content_key,
    current,
    declare,
    insert_once,
    layered,
    reject,
    update_if,
    upsert,
    wait,
)
from retrysafe.admin.archive import JsonLines
from retrysafe.admin.sweeper import Sweeper, Swept
from retrysafe.backends.sharded import sharded
from retrysafe.observability.otel import OpenTelemetryObserver
from retrysafe.protocol.events import Watch
from retrysafe.protocol.records import Reject


class Order:
    id: str


def observe(occurrence: Event) -> None:
    assert_type(occurrence.name, str)


def probe(claim: Claim) -> None:
    claim.result = 1
    claim.committed()


def in_steps(order: Order, tx: Engine) -> int:
    claim = current()
    charged = assert_type(claim.step("charge", len, order.id, undo=print, effects="external"), int)
    row = assert_type(claim.step("row", tx=tx), Step)
    assert_type(row.replayed, bool)
    try:
        claim.sleep("cool off", "1h")
    except Postponed as postponed:
        assert_type(postponed.retry_after, float)
    return charged


async def in_async_steps(order: Order) -> str:
    async def book(what: str) -> str:
        return what

    async with current().step("hotel", each=1) as step:
        step.result = 1
    return assert_type(await current().step("flight", book, order.id, undo=None), str)


def hold(jobs: Boundary, tx: Engine) -> int:
    with jobs.lease("nightly", lease="10m", scope="green") as lease:
        assert_type(lease, Lease)
        try:
            lease.update(tx, "reports", {"total": 5}, {"day": 1}, column="token")
        except StaleToken as stale:
            assert_type(stale.detail, str)
        return assert_type(lease.token, int)


async def ahold(jobs: Boundary, client: Any) -> str:
    async with jobs.lease("nightly") as lease:
        await lease.set(client, "key", b"value")
        return assert_type(lease.name, str)


def handle(accounts: Boundary) -> int:
    bus = CommandBus(accounts, key="id")

    @bus.handles(Order)
    def place(command: Order, tx: Any) -> int:
        return 1

    @bus.handles(Order)  # type: ignore[arg-type]  # a handler of another type
    def text(command: str) -> int:  # pyright: ignore[reportArgumentType]
        return 1

    return assert_type(place(Order(), None), int)


class Raw:
    def encode(self, value: Any, annotation: Any) -> StoredResult:
        return StoredResult(bytes(value), "application/octet-stream", 1)

    def decode(self, stored: StoredResult, annotation: Any) -> Any:
        return stored.body


observer: Observer = observe
logging_observer: Observer = LoggingObserver()
telemetry: Observer = OpenTelemetryObserver()
watch: Watch = OpenTelemetryObserver().watch(Event("received", "b", "o", "k", "a", {}))
codec: Codec = Raw()
json_codec: Codec = JSONCodec()


def stores(engine: Engine, sessions: async_sessionmaker[AsyncSession], pool: asyncpg.Pool, tables: Any) -> None:
    for store in ("default", "memory://"):
        Boundary("text", store=store)
    Boundary("engine", store=engine)
    Boundary("sessions", store=sessions)
    Boundary("psycopg", store=ConnectionPool("", open=False))
    Boundary("asyncpg", store=pool)
    Boundary("redis", store=redis.Redis())
    Boundary("dynamodb", store=tables)
    Boundary("layered", store=layered("redis://localhost/0", "sqlite:///shop.db", name="shop"))
    Boundary("wrong", store=5)  # type: ignore[call-overload]
    Boundary("nothing", store=None)  # type: ignore[call-overload]
    Boundary("path", store=Path("shop.db"))  # type: ignore[call-overload]


charges = Boundary(
    "charges",
    store="sqlite:///shop.db",
    window="48h",
    memory="96h",
    lease=30,
    concurrency=wait(5),
    effects="keyed",
    scope=lambda: "tenant",
    probe=probe,
    permanent=(ValueError, KeyError),
    on_expired="refuse",
    on_missing="error",
    codec=codec,
    observers=[observer, logging_observer, telemetry],
    secret="pepper",
)
assert_type(reject(), Reject)
keyring = Keyring({"2026-11": Keyring.generate(), "2026-05": bytes(32)}, unencrypted="read")
assert_type(keyring.ids, tuple[str, ...])
assert_type(Keyring.from_env().current, str)
assert_type(content_key("alice", 17), str)
assert_type(Keyring.from_text("a:b"), Keyring)
Boundary("safe", store="sqlite:///shop.db", quota=Quota(rate="100/1m", outstanding=1000), encryption=keyring)
Boundary("shards", store=sharded(east="postgresql://east", moved_from=sharded(old="postgresql://old")))
Boundary("layers", store=layered("redis://fast", "postgresql://truth", name="shop", at_most="5m"))


@charges.once(key="order.id")
def charge(order: Order, times: int = 1) -> dict[str, int]:
    assert_type(current(), Claim)
    assert_type(current().key_for("bank"), str)
    current().ensure_held()
    return {"times": times}


@charges.once(key=lambda order: order.id, payload=None, operation="charge")
@declare("Charges an order.", safety="neither", side_effects=["a charge"])
async def acharge(order: Order) -> int:
    return 1


declare(safety="sure")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class Till:
    @charges.once(key="number", payload="amount")
    def ring(self, number: int, amount: int) -> str:
        return str(amount)


assert_type(charge(Order(), times=2), dict[str, int])
assert_type(Till().ring(1, 2), str)
charge("not an order")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
charge(Order(), time=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
Boundary("x", store="memory://", effects="exactly once")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


def block() -> None:
    with charges.claim("key", operation="place", payload={"a": 1}, scope="tenant", tx=None) as claim:
        assert_type(claim, Claim[Any, None])
        assert_type(claim.replayed, bool)
        assert_type(claim.token, int)
        assert_type(claim.attempt_id, str)
        claim.result = 1
        claim.fail(ValueError())
        claim.not_executed()
    assert_type(charges.resolve("key", "completed", result=1), bool)
    charges.close()


async def ablock() -> None:
    async with charges.claim(5) as claim:
        assert_type(claim, Claim[Any, None])
    assert_type(await acharge(Order()), int)
    assert_type(await charges.aresolve("key", "released"), bool)
    await charges.aclose()


def errors(error: RetrysafeError) -> None:
    match error:
        case InProgress():
            assert_type(error.retry_after, float)
        case KeyReused():
            assert_type(error.differing, tuple[str, ...])
        case QuotaExceeded():
            assert_type(error.limit, str)
            assert_type(error.retry_after, float)
        case StoredFailure():
            assert_type(error.type, str)
            assert_type(error.message, str)
        case (
            ConfigurationError()
            | IllegalTransition()
            | InvalidKey()
            | KeyExpired()
            | LeaseLost()
            | OutcomeUnknown()
            | ResultNotEncodable()
            | ResultUnreadable()
            | RetryTransaction()
            | SchemaOutdated()
            | StoreMisconfigured()
            | StoreUnavailable()
        ):
            assert_type(error.detail, str)
        case _:
            assert_type(error.safe_new_key, bool)


async def swept() -> None:
    with Sweeper("sqlite:///shop.db", every="1h", archive=JsonLines("old.jsonl"), observers=[observe]) as sweeper:
        assert_type(sweeper.run_once(limit=5), Swept)
    async with Sweeper("postgresql://localhost/shop", rotate=True) as sweeper:
        assert_type(await sweeper.arun_once(), Swept)


def wrote(tx: object) -> None:
    assert_type(insert_once(tx, "ledger", {"id": 1}, key=("id",)), tuple[dict[str, Any], bool])
    assert_type(upsert(tx, "stock", {"id": 1, "n": 2}, key=("id",), newer="n"), bool)
    assert_type(update_if(tx, "jobs", {"status": "paid"}, {"status": "new"}, unset=("at",), at_most={"fence": 1}), bool)
