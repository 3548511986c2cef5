"""Holders of leases in tests: on each store, and one whose process stands still."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from contextvars import Context
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from retrysafe import Boundary, Lease, LeaseLost
from retrysafe.testing import Clock
from tests.conftest import served
from tests.stores.harnesses import URLS

STORES = ("memory", "sqlite", "postgresql", "mysql", "redis", "dynamodb")


def jobs(store: Any = "memory://", **options: Any) -> Boundary:
    return Boundary(f"jobs {uuid4().hex}", store=store, **{"observers": [], **options})


@contextmanager
def boundary_on(request: pytest.FixtureRequest, store: str, folder: Path, **options: Any) -> Iterator[Boundary]:
    """A boundary on a kind of store."""
    service, url_of = URLS.get(store, (None, lambda folder: "memory://"))
    served(request, service)
    made = jobs(url_of(folder), **options)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def stopped(boundary: Boundary, name: str) -> Iterator[Lease]:
    """A holder that believes in its lease, which is over in the store: in the block another one may take it."""
    context, lease = Context(), boundary.lease(name)
    context.run(lease.__enter__)
    with Clock(boundary) as clock:
        clock.lapse()
    yield lease
    with pytest.raises(LeaseLost):
        context.run(lease.__exit__, None, None, None)


@asynccontextmanager
async def astopped(boundary: Boundary, name: str) -> AsyncIterator[Lease]:
    """`stopped` for async code."""
    import asyncio

    loop, context, lease = asyncio.get_running_loop(), Context(), boundary.lease(name)
    await loop.create_task(lease.__aenter__(), context=context)
    async with Clock(boundary) as clock:
        await clock.alapse()
    yield lease
    with pytest.raises(LeaseLost):
        await loop.create_task(lease.__aexit__(None, None, None), context=context)


def elsewhere(function: Callable[..., Any], *args: Any) -> Any:
    """Run it as another process would: with nothing around."""
    return Context().run(function, *args)


def closing(*boundaries: Boundary) -> ExitStack:
    stack = ExitStack()
    for one in boundaries:
        stack.callback(one.close)
    return stack
