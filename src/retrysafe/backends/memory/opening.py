"""Backends on memory."""

from __future__ import annotations

from retrysafe.backends.backend import Backend
from retrysafe.backends.memory.store import AsyncMemoryClient, MemoryClient, MemoryStore
from retrysafe.backends.spec import StoreAccess


def from_url(url: str) -> Backend:
    client = MemoryClient()
    return Backend(
        MemoryStore(),
        StoreAccess(url, sync=lambda: client, asynchronous=lambda: AsyncMemoryClient(client), immediate=True),
    )
