"""From what users call a store (a URL, an engine, a pool, a client) to a Store and its executors.

The only package that names concrete stores and executors; their libraries are imported when chosen.
"""

from __future__ import annotations

import os

from retrysafe.backends.backend import Backend
from retrysafe.backends.joining import Joining, aliased, join
from retrysafe.backends.objects import from_object
from retrysafe.backends.urls import fast, from_url, memory
from retrysafe.errors import ConfigurationError
from retrysafe.locks import ProcessLock
from retrysafe.protocol.records import Layered

__all__ = ["Joining", "connect", "forget", "join", "leave"]

_shared: dict[object, tuple[Backend, object]] = {}
_sharing = ProcessLock()


def connect(store: object, *, migrate: bool = True) -> Backend:
    """Return the backend for ``store=``; the same URL or object gives the same backend, and a backend itself.

    Opens no network connection. A SQLite file is migrated here, unless ``migrate`` is false.
    """
    if isinstance(store, Backend):
        return store
    if store == "memory://":
        return memory("memory://")
    store = _anchored(store) if isinstance(store, str) else aliased(store)
    identity = store if isinstance(store, str | Layered) else id(store)
    with _sharing.mine:
        if identity not in _shared:
            made = _backend_of(store)
            _shared[identity] = (made, store)  # keeping the object keeps its id its own
        backend = _shared[identity][0]
    if backend.migrates_itself and migrate:
        backend.migrate()
        backend.migrates_itself = False
    return backend


def _anchored(url: str) -> str:
    """A SQLite URL with an absolute path: it must not follow the working directory to another file."""
    prefix, path = url[: len("sqlite:///")], url[len("sqlite:///") :]
    if prefix != "sqlite:///" or path.startswith(("/", ":memory:")) or not path:
        return url
    return prefix + os.path.abspath(path)  # noqa: PTH100 - pathlib would double the time to import


def leave(backend: Backend) -> bool:
    """Let one user of a backend go; whether it was the last, who closes it. The next connect makes a new one then."""
    backend.users -= 1
    if backend.users == 0:
        forget(backend)
    return backend.users == 0


def forget(backend: Backend) -> None:
    """Let the next connect make a new backend."""
    with _sharing.mine:
        for identity in [identity for identity, (shared, _) in _shared.items() if shared is backend]:
            del _shared[identity]


def _backend_of(store: object) -> Backend:
    """The backend for a store, not shared with others."""
    if isinstance(store, Layered):
        return _layered(store)
    return from_url(store) if isinstance(store, str) else from_object(store)


def _layered(layers: Layered) -> Backend:
    """The truth's backend with a cache in front of it, with clients of its own for both."""
    from retrysafe.backends.cache import ReadThroughCache
    from retrysafe.backends.redis.cache import RedisCache

    near = fast(layers.fast) if isinstance(layers.fast, str) else from_object(layers.fast)
    if near.kind != "redis":
        raise ConfigurationError(f"layered(): the fast store is Redis, not {near.kind}.")
    if isinstance(layers.truth, Layered) or layers.truth == "memory://":
        raise ConfigurationError("layered(): the truth is a durable store of one layer.")
    truth = _backend_of(_anchored(layers.truth) if isinstance(layers.truth, str) else layers.truth)
    truth.near = ReadThroughCache(RedisCache(layers.name), layers.at_most, near)
    return truth
