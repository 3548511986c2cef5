"""Forgets records before their time, and removes them: those of named keys, and no others."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from retrysafe.backends.backend import Backend
from retrysafe.backends.driver import run
from retrysafe.protocol.procedures import PAGE, expire_seen, read, remove, settle_doubt
from retrysafe.protocol.records import EffectiveState, Record
from retrysafe.protocol.requests import Program, ask
from retrysafe.protocol.retry_table import in_doubt
from retrysafe.protocol.store import BatchStore, OperableStore
from retrysafe.protocol.transitions import Transition


class Forgotten(NamedTuple):
    """The numbers of records that were forgotten, and that were left because an attempt still holds them."""

    forgotten: int
    left: int


def forget_keys(backend: Backend, hashes: Iterable[bytes], *, threads: int = 1) -> Forgotten:
    """Forget the records of keys, which are named by their hashes, in so many threads.

    The outcome of one that is unknown, or whose attempt died, is settled first: its effect must be known not to matter.
    Removes what it has forgotten where the store does not by itself. Raises `StoreUnavailable`; then some records are
    forgotten, and repeating it forgets the others.
    """
    client = backend.client()

    def page(chunk: Sequence[bytes]) -> Forgotten:
        return run(_forget_page(backend.store, chunk), client)

    with ThreadPoolExecutor(threads, "retrysafe-forget") as pool:
        try:
            running = [pool.submit(page, chunk) for chunk in _pages(hashes)]
            done = [one.result() for one in running]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return Forgotten(sum(one.forgotten for one in done), sum(one.left for one in done))


def _pages(hashes: Iterable[bytes]) -> Iterator[list[bytes]]:
    left = iter(hashes)
    while page := list(itertools.islice(left, PAGE)):
        yield page


def _forget_page(store: OperableStore, hashes: Sequence[bytes]) -> Program[Forgotten]:
    gone: list[Record] = []
    left = 0
    for record in (yield from _read_all(store, hashes)):
        forgotten = yield from _forget(store, record)
        if forgotten is None:
            left += 1
        else:
            gone.append(forgotten)
    yield from remove(store, gone)
    return Forgotten(len(gone), left)


def _read_all(store: OperableStore, hashes: Sequence[bytes]) -> Program[list[Record]]:
    if isinstance(store, BatchStore):
        return list((yield from ask(store.read_many(hashes))).values())
    found: list[Record] = []
    for key in hashes:
        record = yield from read(store, key)
        if record is not None:
            found.append(record)
    return found


def _forget(store: OperableStore, record: Record) -> Program[Record | None]:
    """The record as it is when it is forgotten; None when an attempt holds it."""
    if in_doubt(record):
        yield from settle_doubt(store, record.key, Transition.RESOLVE_RELEASED, None, attempt=record.attempt)
        settled = yield from read(store, record.key)
        if settled is None:
            return record
        record = settled
    if record.effective_state is EffectiveState.FORGOTTEN:
        return record
    change = yield from expire_seen(store, record, forget=True)
    return record._replace(version=record.version + 1) if change.done else None
