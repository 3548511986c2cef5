"""The one table: what a queue is told of each end of a delivery, on a store with dead letters and on one without."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from retrysafe import (
    Boundary,
    ConfigurationError,
    InProgress,
    InvalidKey,
    KeyReused,
    OutcomeUnknown,
    Postponed,
    StoredFailure,
    StoreUnavailable,
    current,
)
from retrysafe.claims.decorator import Selector
from retrysafe.messaging import InboxOperator, MessageDead
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus
from retrysafe.tasks import TaskPublisher, redrive
from retrysafe.tasks.delivery import GIVE_UP, LONGEST, TOLD, Call, Reply, TaskHandler, Told
from retrysafe.tasks.publisher import arguments_of
from tests.tables import each_row

_numbers = itertools.count()


def raising(error: BaseException) -> Any:
    def work(order: str, amount: int = 1) -> str:
        raise error

    return work


def failing(order: str, amount: int = 1) -> str:
    current().fail(KeyError("gone"))
    return order


ENDS: dict[str, tuple[Any, str, Told, type[BaseException]]] = {
    "done": (lambda order, amount=1: order, "external", Told.RETURN, Exception),
    "an error": (raising(ValueError()), "keyed", Told.ERROR, ValueError),
    "an unreachable provider": (raising(ConnectionError()), "keyed", Told.ERROR, ConnectionError),
    "a permanent error": (raising(KeyError()), "keyed", Told.GIVE_UP, KeyError),
    "a declared failure": (failing, "keyed", Told.GIVE_UP, KeyError),
    "a wait": (raising(Postponed("later", retry_after=20)), "keyed", Told.HAND_BACK, Postponed),
    "a long wait": (raising(Postponed("later", retry_after=7200)), "keyed", Told.HAND_BACK, Postponed),
    "a claim within": (raising(InProgress(retry_after=3)), "keyed", Told.HAND_BACK, InProgress),
    "a store within": (raising(StoreUnavailable()), "keyed", Told.HAND_BACK, StoreUnavailable),
}
NEXT = {
    "done": (Told.RETURN, Exception),
    "a permanent error": (Told.GIVE_UP, StoredFailure),
    "a declared failure": (Told.GIVE_UP, StoredFailure),
}
"""The second delivery, if it ends otherwise than the first."""


@pytest.fixture(params=["sqlite", "memory"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Makes handlers on a store, in boundaries of their own."""
    store = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'keys.db'}"
    made: list[Boundary] = []

    def handler(function: Any, effects: Any = "keyed", key: Selector = "order", **options: Any) -> TaskHandler:
        boundary = Boundary(f"b{next(_numbers)}", store=store, effects=effects, permanent=KeyError, observers=[])
        made.append(boundary)
        return TaskHandler(boundary, function, key, "test", options)

    handler.boundaries = made  # type: ignore[attr-defined]
    yield handler
    for boundary in made:
        boundary.close()


def deliver(handler: TaskHandler, *args: Any, redelivered: bool = True) -> Reply:
    return handler.deliver(Call(args, {}, "id", "shop.work", (args, {})), redelivered=redelivered)


async def adeliver(handler: TaskHandler, *args: Any) -> Reply:
    return await handler.adeliver(Call(args, {}, "id", "shop.work", (args, {})))


def coloured(function: Any) -> Any:
    async def work(order: str, amount: int = 1) -> str:
        return function(order, amount)

    return work


@pytest.mark.every_value
@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_a_queue_is_told_what_the_table_says(make: Any, colour: str) -> None:
    for name, (function, effects, told, error) in ENDS.items():
        handler = make(function if colour == "sync" else coloured(function), effects, operation="work")
        for expected, kind in ((told, error), NEXT.get(name, (told, error))):
            reply = deliver(handler, "A") if colour == "sync" else await adeliver(handler, "A")
            assert reply.told is expected, name
            assert isinstance(reply.error, kind), name
            assert reply.pause <= LONGEST
            assert reply.value == "A" or expected is not Told.RETURN


def test_a_task_meets_its_key_as_any_other_claim(make: Any) -> None:
    ran: list[str] = []

    def work(order: str, amount: int = 1) -> str:
        ran.append(order)
        if order == "busy":
            assert deliver(handler, order).told is Told.HAND_BACK
        if order == "doubt":
            raise ValueError
        return order

    handler = make(work, "external")
    assert deliver(handler, "A").told is Told.RETURN
    assert isinstance(deliver(handler, "A", 2).error, KeyReused)
    assert isinstance(deliver(handler, "").error, InvalidKey)
    assert deliver(handler, "busy").told is Told.RETURN
    assert deliver(handler, "doubt").told is Told.ERROR
    doubted = deliver(handler, "doubt")
    assert (doubted.told, type(doubted.error)) == (Told.GIVE_UP, OutcomeUnknown)
    assert handler.call_guarded("A") == "A"
    assert ran == ["A", "busy", "doubt"]
    with pytest.raises(TypeError):
        deliver(handler)


def test_attempts_that_end_by_an_error_or_with_their_worker_are_counted(make: Any, tmp_path: Path) -> None:
    """Without a place for the counts, on a store that is no database, the queue's own limits are the only ones."""

    handler = make(raising(ValueError("no")), max_attempts=2, operation="work")
    told = [deliver(handler, "A", redelivered=n > 0) for n in range(4)]
    if handler.keeps:
        assert [one.told for one in told] == [Told.ERROR, Told.GIVE_UP, Told.GIVE_UP, Told.GIVE_UP]
        assert [type(one.error) for one in told[1:]] == [ValueError, StoredFailure, StoredFailure]
        with closing(sqlite3.connect(tmp_path / "keys.db")) as read:
            kept = read.execute("SELECT consumer, CAST(payload AS TEXT), started FROM retrysafe_inbox_dead").fetchall()
        assert kept == [("work", '{"args": ["A"], "kwargs": {}}', 2)]
    else:
        assert {one.told for one in told} == {Told.ERROR}


def test_a_dead_letter_that_a_person_has_settled_is_a_replay(make: Any) -> None:
    handler = make(raising(ValueError()), "external")
    assert [deliver(handler, "A").told for _ in range(3)] == [Told.ERROR, Told.GIVE_UP, Told.GIVE_UP]
    make.boundaries[-1].resolve("A", "completed", result="paid", operation="work", reason="seen at the bank")
    reply = deliver(handler, "A")
    assert (reply.told, reply.value) == (Told.RETURN, "paid")


def test_a_dead_letter_that_is_marked_is_sent_again(tmp_path: Path) -> None:
    errors: list[BaseException] = [KeyError("gone")]

    def work(order: str) -> str:
        if errors:
            raise errors.pop()
        return order

    store = f"sqlite:///{tmp_path / 'keys.db'}"
    boundary = Boundary(f"b{next(_numbers)}", store=store, permanent=KeyError, observers=[])
    handler = TaskHandler(boundary, work, "order", "test", {})
    assert [deliver(handler, "A").told for _ in range(2)] == [Told.GIVE_UP] * 2

    class Queue:
        def publish(self, envelopes: Any, /) -> list[PublishResult]:
            (one,) = envelopes
            assert (one.topic, one.id) == ("shop.work", "id")
            assert deliver(handler, *arguments_of(one)[0]).value == "A"
            return [PublishResult(PublishStatus.ACKED)]

        def close(self) -> None: ...

    assert redrive(boundary, Queue()) == 0
    InboxOperator(store).redrive()
    assert [redrive(boundary, Queue()) for _ in range(2)] == [1, 0]
    boundary.close()


def test_every_error_of_giving_up_is_named_for_the_queues_retries() -> None:
    assert {MessageDead, OutcomeUnknown, KeyReused, StoredFailure, InvalidKey} <= set(GIVE_UP)
    assert set(TOLD.values()) == set(Told)


@each_row("options", [{"max_crashes": 0}, {"max_attempts": "3"}, {"max_crash": 1}, {"shared": True}])
def test_options_that_mean_nothing_are_refused(options: Any) -> None:
    boundary = Boundary(f"b{next(_numbers)}", store="memory://", observers=[])
    with pytest.raises(ConfigurationError):
        TaskHandler(boundary, failing, "order", "test", options)
    boundary.close()


def envelope(payload: bytes) -> Envelope:
    return Envelope("row-1", "charge", None, "charge", "/shop", None, {}, payload, "application/json")


def test_tasks_are_refused_where_they_could_be_lost() -> None:
    celery = pytest.importorskip("celery")
    app = celery.Celery(broker="amqp://127.0.0.1:1//")
    with pytest.raises(ConfigurationError, match="confirm_publish"):
        TaskPublisher(app)
    app.conf.broker_transport_options = {"confirm_publish": True}
    publisher = TaskPublisher(app)
    for payload in (b"7", b"{", b'{"args": {}}', b'{"order": 1}'):
        (said,) = publisher.publish([envelope(payload)])
        assert said.status is PublishStatus.REJECTED


@each_row("amount, sent", [(7, True), (Decimal("1.50"), True), (date(2026, 11, 30), True), (object(), False)])
def test_a_dead_letter_of_celery_is_sent_again_with_the_arguments_that_it_had(
    amount: object, sent: bool, tmp_path: Path
) -> None:
    kombu, celery = pytest.importorskip("kombu.utils.json"), pytest.importorskip("celery")
    store = f"sqlite:///{tmp_path / 'keys.db'}"
    boundary = Boundary(f"b{next(_numbers)}", store=store, permanent=KeyError, observers=[])
    args = ("A", amount)
    call = Call(args, {}, "id", "charge", (args, {}), dumps=kombu.dumps)
    once = TaskHandler(boundary, raising(KeyError()), "order", "celery", {"payload": None})
    assert once.deliver(call).told is Told.GIVE_UP
    InboxOperator(store).redrive()
    app = celery.Celery(broker="memory://", set_as_current=False)
    app.conf.task_default_queue = f"queue-{next(_numbers)}"
    assert redrive(boundary, TaskPublisher(app)) == int(sent)
    if sent:
        with app.connection_for_read() as connection:
            message = connection.SimpleQueue(app.conf.task_default_queue).get(timeout=1)
            assert message.payload[0] == list(args)
            message.ack()
    boundary.close()


async def test_a_dead_letter_of_taskiq_keeps_what_its_annotations_say(tmp_path: Path) -> None:
    taskiq = pytest.importorskip("taskiq")
    once = importlib.import_module("retrysafe.tasks.taskiq").once
    store = f"sqlite:///{tmp_path / 'keys.db'}"
    boundary = Boundary(f"b{next(_numbers)}", store=store, permanent=KeyError, observers=[])
    broker, seen = taskiq.InMemoryBroker(), list[object]()

    async def charge(order: str, amount: Decimal) -> None:
        seen.append(amount)
        raise KeyError(order)

    task = broker.task(task_name="charge")(once(boundary, key="order")(charge))
    await broker.startup()
    args: list[Any] = ["A", Decimal("1.50")]
    for order in ("A", "B"):
        sent = await task.kiq(order, *args[1:])
        assert (await sent.wait_result(timeout=5)).is_err
        letter = await asyncio.to_thread(lambda: next(InboxOperator(store).dead()))
        args = arguments_of(letter.arrival.envelope)[0]
    assert seen == [Decimal("1.50")] * 2
    await broker.shutdown()
    await boundary.aclose()


@pytest.mark.filterwarnings(r"ignore:\s*The 'queue' task attribute:DeprecationWarning")
@each_row("headers, queue", [({}, "payments"), ({"celery-queue": "slow", "x": "y"}, "slow")])
def test_a_published_task_goes_where_its_decorator_says_or_where_it_came_from(headers: Any, queue: str) -> None:
    """The decorator counts in a process that has made no use of the task yet, as a relay's."""
    celery = pytest.importorskip("celery")
    app = celery.Celery(broker="memory://", set_as_current=False)
    app.task(name="charge", queue="payments")(failing)
    (said,) = TaskPublisher(app).publish([envelope(b'{"args": ["A"]}')._replace(headers=headers)])
    assert said.status is PublishStatus.ACKED
    with app.connection_for_read() as connection, connection.SimpleQueue(queue) as messages:
        sent = messages.get(timeout=1)
        assert (sent.headers["id"], sent.headers.get("x"), "celery-queue" in sent.headers) == (
            "row-1",
            headers.get("x"),
            False,
        )
        sent.ack()


def test_once_above_the_decorator_of_a_queue_is_refused() -> None:
    celery, dramatiq, taskiq = (pytest.importorskip(name) for name in ("celery", "dramatiq", "taskiq"))
    from dramatiq.brokers.stub import StubBroker

    boundary = Boundary(f"b{next(_numbers)}", store="memory://", observers=[])
    middleware = importlib.import_module("retrysafe.tasks.dramatiq").OnceMiddleware()
    decorators = {
        "celery": celery.Celery().task,
        "dramatiq": dramatiq.actor(broker=StubBroker(middleware=[middleware])),
        "taskiq": taskiq.InMemoryBroker().task,
    }
    for name, theirs in decorators.items():
        once = importlib.import_module(f"retrysafe.tasks.{name}").once(boundary, key="order")
        above = theirs(failing)
        with pytest.raises(ConfigurationError, match=r"\n    @(app|dramatiq|broker)\..*\n    @once\(…, key='order'\)"):
            once(above)
    boundary.close()
