"""A guarded task of Celery, a guarded tool of MCP, and records of SQS on Lambda, beside the same without a guard."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks import by_hand, services
from benchmarks.guarding import boundary_on, coroutine, function, in_batches
from benchmarks.rivals.contenders import powertools_batch
from benchmarks.rows import FLOOR, OURS, Row, Side, one_by_one
from benchmarks.stores import NORMAL, Store, postgresql
from benchmarks.stores import redis as on_redis


def rows() -> Sequence[Row]:
    """Fresh and replay of each; a record is one operation of Lambda."""
    found = []
    for kind, replay in (("fresh", False), ("replay", True)):
        task = {OURS: partial(_task, partial(postgresql, "psycopg")), FLOOR: partial(_task, None)}
        of_task: dict[str, Any] = {"needs": ("postgresql",), "counted": ("postgresql",)}
        tool = {OURS: partial(_tool, NORMAL), FLOOR: partial(_tool, None)}
        records = {OURS: _batch, FLOOR: _batch_by_hand, "Powertools": powertools_batch}
        of_records: dict[str, Any] = {"needs": ("redis",), "counted": ("redis",)}
        found += [
            Row(f"celery, postgresql psycopg/task {kind}", "Celery's own tracer alone", task, replay, **of_task),
            Row(f"mcp, sqlite NORMAL/call {kind}", "the SDK alone, in one process", tool, replay),
            Row(f"lambda, redis/record {kind}", "SET NX and SET by hand", records, replay, **of_records),
        ]
    return found


@contextmanager
def _task(store: Store | None) -> Iterator[Side]:
    """A task as a worker runs it, without the broker and the result backend."""
    from celery import Celery
    from celery.app.trace import build_tracer

    from retrysafe.tasks.celery import once

    app = Celery("bench", set_as_current=False)
    task: Any = app.task(name="place", acks_late=True, reject_on_worker_lost=True, ignore_result=True)

    def serve(run: Callable[..., Any]) -> Side:
        guarded = task(run)
        trace = build_tracer(guarded.name, guarded, app=app)

        def work(key: str) -> None:
            request = {"id": key, "delivery_info": {}, "is_eager": False, "called_directly": False}
            failed = trace(key, (key,), {}, request)[1]
            if failed is not None:
                raise RuntimeError(failed)

        return one_by_one(work)

    if store is None:
        yield serve(function)
        return
    with store() as url:
        boundary = boundary_on(url)
        yield serve(once(boundary, key="order", operation="place")(function))
        boundary.close()


@contextmanager
def _tool(store: Store | None) -> Iterator[Side]:
    """A tool that the SDK's own client calls in the same process."""
    from mcp import Client
    from mcp.server import MCPServer

    from retrysafe.agents.mcp import OnceTools

    with asyncio.Runner() as runner:

        def serve(*guards: Any) -> Side:
            server = MCPServer("bench", extensions=[*guards], log_level="WARNING")  # else Rich prints each claim
            server.tool(name="place")(coroutine)

            async def turn(keys: Sequence[str]) -> None:
                async with Client(server) as client:
                    for key in keys:
                        done = await client.call_tool("place", {"order": key})
                        if done.is_error:
                            raise RuntimeError(done.content)

            return Side(lambda keys: runner.run(turn(keys)))

        if store is None:
            yield serve()
            return
        with store() as url:
            boundary = boundary_on(url)
            yield serve(OnceTools(boundary, principal="shared", place="order"))
            runner.run(boundary.aclose())


@contextmanager
def _batch() -> Iterator[Side]:
    from retrysafe.tasks.aws_lambda import batch

    with on_redis() as url:
        boundary = boundary_on(url)
        yield in_batches(batch(boundary, key="body.order", operation="place")(_place))
        boundary.close()


@contextmanager
def _batch_by_hand() -> Iterator[Side]:
    import json

    import redis

    client = redis.Redis.from_url(services.url("redis"))
    prefix = f"bench:{os.getpid()}:"

    def handle(event: dict[str, Any], _: Any) -> dict[str, Any]:
        for record in event["Records"]:
            key = prefix + json.loads(record["body"])["order"]
            if client.set(key, b"running", nx=True, px=60_000):
                client.set(key, by_hand.encode(_place(record)), ex=by_hand.DAY)
        return {"batchItemFailures": []}

    yield in_batches(handle)
    client.close()


def _place(record: dict[str, Any]) -> dict[str, Any]:
    return by_hand.place(record["messageId"])
