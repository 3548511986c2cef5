"""Rivals as contenders in rows where they do the same work.

They are imported where they are opened, so that one that isn't installed is missing from its rows alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks import services
from benchmarks.guarding import function, in_batches
from benchmarks.rows import Side, one_by_one
from benchmarks.stores import database


@contextmanager
def dbos() -> Iterator[Side]:
    """A workflow of one step, whose ID is the key."""
    from dbos import DBOS, SetWorkflowID

    with database() as url:
        DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})

        @DBOS.step()
        def step(order: str) -> Any:
            return function(order)

        @DBOS.workflow()
        def workflow(order: str) -> Any:
            return step(order)

        def work(key: str) -> None:
            with SetWorkflowID(key):
                workflow(key)

        DBOS.launch()
        try:
            yield one_by_one(work)
        finally:
            DBOS.destroy()


@contextmanager
def dbos_steps() -> Iterator[Side]:
    """The steps of a turn in one workflow."""
    from dbos import DBOS, SetWorkflowID

    with database() as url:
        DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})

        @DBOS.step()
        def step(order: str) -> Any:
            return {"order": order}

        @DBOS.workflow()
        def workflow(orders: list[str]) -> int:
            for order in orders:
                step(order)
            return len(orders)

        def turn(keys: Sequence[str]) -> None:
            with SetWorkflowID(keys[0]):
                workflow(list(keys))

        DBOS.launch()
        try:
            yield Side(turn)
        finally:
            DBOS.destroy()


@contextmanager
def powertools() -> Iterator[Side]:
    """A function that is idempotent by its argument, on Redis."""
    os.environ.setdefault("POWERTOOLS_METRICS_DISABLED", "true")
    import redis
    from aws_lambda_powertools.utilities.idempotency import idempotent_function
    from aws_lambda_powertools.utilities.idempotency.persistence.redis import RedisCachePersistenceLayer

    client = redis.Redis.from_url(services.url("redis"), decode_responses=True)

    @idempotent_function(data_keyword_argument="order", persistence_store=RedisCachePersistenceLayer(client=client))
    def guarded(*, order: str) -> Any:
        return function(order)

    yield one_by_one(lambda key: guarded(order=key))
    client.close()


@contextmanager
def powertools_batch() -> Iterator[Side]:
    """A batch of SQS whose records are idempotent by a part of their body, on Redis."""
    os.environ.setdefault("POWERTOOLS_METRICS_DISABLED", "true")
    import redis
    from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
    from aws_lambda_powertools.utilities.idempotency import idempotent_function
    from aws_lambda_powertools.utilities.idempotency.persistence.redis import RedisCachePersistenceLayer

    client = redis.Redis.from_url(services.url("redis"), decode_responses=True)
    processor = BatchProcessor(event_type=EventType.SQS)

    @idempotent_function(data_keyword_argument="order", persistence_store=RedisCachePersistenceLayer(client=client))
    def guarded(*, order: str) -> Any:
        return function(order)

    def handle_record(record: Any) -> Any:
        return guarded(order=json.loads(record.body)["order"])

    yield in_batches(lambda event, context: process_partial_response(event, handle_record, processor, context))
    client.close()
