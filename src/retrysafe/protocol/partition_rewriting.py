"""Rewriting partitions without what is forgotten, instead of deleting it row by row."""

from __future__ import annotations

from enum import StrEnum
from typing import BinaryIO

from retrysafe.errors import ConfigurationError, StoreUnavailable
from retrysafe.protocol.records import Partition
from retrysafe.protocol.requests import Ask, Program, ask
from retrysafe.protocol.store import RotatingStore

WORTH_IT = 0.5
"""A partition is rewritten when at least this share of it is forgotten."""


class Obstacle(StrEnum):
    """The reason that a partition was left as it is."""

    IN_USE = "others work on it, and it could not be locked soon"
    TOO_LARGE = "the server ended its copy, at the bound of time that `RotatingStore.enter` sets"


def worth_rotating(store: RotatingStore) -> Program[list[Partition]]:
    """The partitions of which enough is forgotten; there is nothing to do with the others."""
    partitions = yield from ask(store.partitions())
    if not partitions:
        raise ConfigurationError(
            "retrysafe_records is a plain table without partitions to rotate: sweep it without rotation, or see "
            '"Partitions" in the guide to sweeping.'
        )
    shares: list[float] = []
    for partition in partitions:
        shares.append((yield from ask(store.share(partition))))  # noqa: PERF401 - no comprehension can yield
    return [partition for partition, share in zip(partitions, shares, strict=True) if share >= WORTH_IT]


def rotate(store: RotatingStore, partition: Partition, spool: BinaryIO) -> Program[int | Obstacle]:
    """Rewrite one partition, in one transaction on a connection that is rolled back if it is left open.

    Return how many records went, or what stood in the way.
    """
    yield from ask(store.begin())
    *bounds, lock = store.enter(partition)
    for request in bounds:
        yield from ask(request)
    try:
        yield from ask(lock)
    except StoreUnavailable:
        return Obstacle.IN_USE
    try:
        return (yield from _rewrite(store, partition, spool))
    except StoreUnavailable as error:
        if store.ran_out_of_time(error):
            return Obstacle.TOO_LARGE
        raise


def _rewrite(store: RotatingStore, partition: Partition, spool: BinaryIO) -> Program[int]:
    before = yield from ask(store.count(partition))
    kept = yield from _last(store.unload(partition, spool))
    if kept == before:
        return 0
    spool.seek(0)
    back = yield from _last(store.reload(partition, spool))
    if back != kept:
        raise StoreUnavailable(f"{back} of {kept} records were put back.")
    yield from ask(store.commit())
    return before - kept


def _last(asks: list[Ask[int]]) -> Program[int]:
    answer = 0
    for request in asks:
        answer = yield from ask(request)
    return answer
