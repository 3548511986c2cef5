"""The application whose tasks the workers of these tests run: set by the environment, so that a child imports it.

A charge asks a bank that knows keys, which a ledger notes, and then waits at a gate that the test opens.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import redis

from retrysafe import Boundary, current

KIND, BROKER, QUEUE = os.environ["TASKS_KIND"], os.environ["TASKS_BROKER"], os.environ["TASKS_QUEUE"]
GATES, LEDGER = os.environ["TASKS_GATES"], os.environ["TASKS_LEDGER"]
GUARDED, STORE = os.environ["TASKS_GUARDED"] == "1", os.environ["TASKS_STORE"]
CRASHES, VISIBILITY = int(os.environ["TASKS_CRASHES"]), 2
boundary = Boundary("tasks", store=STORE, effects="keyed", lease="2s", window="1h", observers=[])


def note(order: str, what: str) -> None:
    """Write into the ledger under the key that the bank is given: a new one each time where nothing is guarded."""
    key = current().key_for("bank") if GUARDED else os.urandom(8).hex()
    with closing(sqlite3.connect(LEDGER, timeout=30)) as ledger, ledger:
        ledger.execute("INSERT INTO ledger VALUES (?, ?, ?, ?)", (order, what, os.getpid(), key))


def pass_gate(order: str) -> None:
    """Wait until the test opens the gate of the order, for everybody who comes."""
    with redis.Redis.from_url(GATES, socket_timeout=None) as gates:
        gates.xread({f"{QUEUE}:gate:{order}": "0"}, block=60_000)


def charge(order: str) -> dict[str, str]:
    note(order, "began")
    if order == "nudge":
        return {}
    if order.startswith("fail"):
        raise ValueError("no")
    if order.startswith("crash"):
        os.kill(os.getpid(), 9)
    note(order, "charged")
    pass_gate(order)
    note(order, "done")
    return {"charged": order}


async def acharge(order: str) -> dict[str, str]:
    return await asyncio.to_thread(charge, order)


def guard(once: Callable[..., Any]) -> Callable[..., Any]:
    return (
        once(boundary, key="order", max_crashes=CRASHES, operation="charge") if GUARDED else lambda function: function
    )


if KIND.startswith("celery"):
    from celery import Celery

    from retrysafe.tasks import GIVE_UP
    from retrysafe.tasks import celery as room

    app = Celery("tests.tasks.app", broker=BROKER, backend=GATES)
    restore = {"unacked_restore_interval": 1, "unacked_restore_throttle": 1, "unacked_mutex_expire": 1}
    app.conf.update(
        task_default_queue=QUEUE,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
        broker_transport_options={"confirm_publish": True}
        if BROKER.startswith("amqp")
        else {"visibility_timeout": VISIBILITY, **restore},
    )
    retries = {
        "autoretry_for": (ValueError,),
        "dont_autoretry_for": GIVE_UP,
        "max_retries": 1,
        "default_retry_delay": 0,
    }
    task = app.task(name="charge", **retries)(guard(room.once)(charge))

    def send(order: str) -> Any:
        return task.apply_async((order,))

elif KIND.startswith("dramatiq"):
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker
    from dramatiq.middleware import AsyncIO

    from retrysafe.tasks import dramatiq as actors

    broker = RedisBroker(url=BROKER, namespace=QUEUE, heartbeat_timeout=VISIBILITY * 1000, maintenance_chance=1_000_000)
    broker.add_middleware(AsyncIO())
    broker.add_middleware(actors.OnceMiddleware())
    dramatiq.set_broker(broker)
    actor = dramatiq.actor(actor_name="charge", min_backoff=10, max_retries=1)(guard(actors.once)(charge))

    def send(order: str) -> Any:
        return actor.send(order)

else:
    from taskiq import SimpleRetryMiddleware
    from taskiq_redis import RedisStreamBroker

    from retrysafe.tasks import taskiq as jobs

    broker = RedisStreamBroker(
        url=BROKER,
        queue_name=QUEUE,
        idle_timeout=VISIBILITY * 1000,
        unacknowledged_lock_timeout=1.0,
        xread_block=200,
    ).with_middlewares(SimpleRetryMiddleware())
    job = broker.task(task_name="charge", retry_on_error=True, max_retries=2)(guard(jobs.once)(acharge))

    def send(order: str) -> Any:
        async def go() -> None:
            await broker.startup()
            await job.kiq(order)
            await broker.shutdown()

        return asyncio.run(go())
