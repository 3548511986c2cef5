"""The registry of backends: finds the backend of a ``store=`` (a URL, an engine, a pool, a client) and shares it.

A backend is a folder beside this module, with a `BackendSpec` that lists its URL schemes and types. Its other modules
are imported when it is chosen.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from retrysafe.backends.backend import Backend
from retrysafe.backends.spec import BackendSpec
from retrysafe.backends.urls import second_at, without_password
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.records import Layered, Sharded
from retrysafe.runtime import new_lock

if TYPE_CHECKING:
    from retrysafe.protocol.store import Cache

BACKENDS = ("memory", "sql", "redis", "dynamodb", "mongodb", "cosmos", "sharded")
"""The folders of the backends, in the order in which documentation shows their stores."""

_ALIASED = (("django.db.backends.base.base", "BaseDatabaseWrapper"), ("django.utils.connection", "ConnectionProxy"))
"""Connections of Django."""

_shared: dict[object, tuple[Backend, object]] = {}
_sharing = new_lock()


def specs() -> Iterator[BackendSpec]:
    for name in BACKENDS:
        spec: BackendSpec = importlib.import_module(f"retrysafe.backends.{name}").BACKEND
        yield spec


def stores() -> tuple[type[Any], ...]:
    """The classes of all stores, for documentation and tests."""
    return tuple(spec.load(store) for spec in specs() for store in spec.stores)


def with_transactions() -> str:
    """The products whose transactions a record can share."""
    return ", ".join(spec.title for spec in specs() if spec.transactions)


def connect(store: object, *, migrate: bool = True) -> Backend:
    """Return the backend for ``store=``; the same URL or object gives the same backend, and a backend itself.

    Opens no network connection. A SQLite file is migrated here, unless ``migrate`` is false.
    """
    try:
        return _connect(store, migrate=migrate)
    except ValueError:
        if not isinstance(store, str):
            raise
        raise ConfigurationError(
            f"store={without_password(store)!r} cannot be read as a URL: a host is NAME, NAME:PORT or [IPv6]:PORT, and "
            "other characters than letters and digits in a user or password are percent-encoded, as / by %2F."
        ) from None  # its text may have a part of the password


def _connect(store: object, *, migrate: bool) -> Backend:
    if isinstance(store, Backend):
        return store
    if _is_unshared(store):
        return _backend_of(store)
    store = _absolute(store) if isinstance(store, str) else resolve_alias(store)
    identity = store if isinstance(store, str | Layered) else id(store)
    with _sharing:
        if identity not in _shared:
            made = _backend_of(store)
            _shared[identity] = (made, store)  # keeping the object keeps its id its own
        backend = _shared[identity][0]
    if migrate and backend.migrates_itself:
        backend.tables.prepare()
        backend.migrates_itself = False
    return backend


def leave(backend: Backend) -> bool:
    """Count one user of a backend less; whether it was the last, which closes it. The next connect makes a new one."""
    backend.users -= 1
    if backend.users == 0:
        forget(backend)
    return backend.users == 0


def forget(backend: Backend) -> None:
    """Let the next connect make a new backend."""
    with _sharing:
        for identity in [identity for identity, (shared, _) in _shared.items() if shared is backend]:
            del _shared[identity]


# ---------------------------------------------------------------- URLs and objects


def resolve_alias(store: object) -> object:
    """A Django connection stands for its alias: every thread has its own."""
    for module, name in _ALIASED:
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(store, getattr(loaded, name)):
            return getattr(store, "alias", store)
    return store


def _is_unshared(store: object) -> bool:
    """Tell whether ``store`` leads to another store each time."""
    return isinstance(store, str) and "://" in store and store in _of_scheme(store).unshared


def _absolute(url: str) -> str:
    """The URL that means the same wherever the process is, so that one store is shared."""
    if "://" not in url:
        return url
    spec = _of_scheme(url)
    return str(spec.load(spec.absolute)(url)) if spec.absolute else url


def _scheme(url: str) -> str:
    return url.partition(":")[0].lower()


def _of_scheme(url: str) -> BackendSpec:
    scheme = _scheme(url)
    for spec in specs():
        if scheme in spec.schemes:
            return spec
    known = ", ".join(sorted(f"{name}://" for spec in specs() for name in spec.schemes))
    raise ConfigurationError(
        f"store={without_password(url)!r}: unknown kind of URL; known are {known}. A file is sqlite:///its-path."
    )


def _backend_of(store: object) -> Backend:
    if isinstance(store, Backend):
        return store
    if isinstance(store, Layered):
        return _layer(store)
    backend: Backend = (_of_url(store) if isinstance(store, str) else _of_object(store))(store)
    if isinstance(store, str):
        backend.refusal = second_at(store)
    return backend


def _of_url(url: str) -> Callable[..., Any]:
    """The function that makes the backend of a URL. Text without a scheme is an alias."""
    spec = _of_scheme(url) if "://" in url else next(spec for spec in specs() if spec.alias)
    function: Callable[..., Any] = spec.load(spec.schemes[_scheme(url)] if "://" in url else spec.alias)
    return function


def find_function(given: type, of: Callable[[BackendSpec], Mapping[str, str]]) -> Callable[..., Any] | None:
    """Find the function that a spec lists for a type. A type that is not imported cannot have an object."""
    for spec in specs():
        for kind, reference in of(spec).items():
            module, _, name = kind.partition(":")
            loaded = sys.modules.get(module)
            if loaded is not None and issubclass(given, getattr(loaded, name)):
                function: Callable[..., Any] = spec.load(reference)
                return function
    return None


def _of_object(store: object) -> Callable[..., Any]:
    found = find_function(store.__class__, lambda spec: spec.objects)
    if found is not None:
        return found
    if store is None:
        raise ConfigurationError("store= is None: is the environment variable or setting that it comes from set?")
    if hasattr(store, "__fspath__"):
        raise ConfigurationError("store= is a path: a file is named by a URL, store=f'sqlite:///{path}'.")
    accepted = ", ".join(spec.accepts for spec in specs() if spec.accepts)
    raise ConfigurationError(
        f"store= is a {type(store).__module__}.{type(store).__qualname__}; expected a URL, {accepted}, or a "
        "retrysafe.backends.backend.Backend of your own."
    )


# ---------------------------------------------------------------- stores that are made of others


def apart(store: object, maker: str) -> Backend:
    """A backend of its own for a part of another one. Raises `ConfigurationError` for what can be no part."""
    if isinstance(store, Layered | Sharded) or _is_unshared(store):
        raise ConfigurationError(f"{maker}: a store in it is a durable store of one layer.")
    return _backend_of(_absolute(store) if isinstance(store, str) else resolve_alias(store))


def _layer(layers: Layered) -> Backend:
    """The truth's backend with a cache in front of it, with clients of its own for both."""
    from retrysafe.backends.cache import ReadThroughCache

    fast, cache = _fast(layers)
    truth = apart(layers.truth, "layered()")
    truth.cache = ReadThroughCache(cache, layers.at_most, fast)
    return truth


def _fast(layers: Layered) -> tuple[Backend, Cache]:
    """The fast store's backend, and the cache that is kept in it."""
    fast = layers.fast
    found = None if isinstance(fast, str | Layered) else _backend_of(fast)
    for spec in specs():
        if spec.cache is None:
            continue
        if isinstance(fast, str) and _scheme(fast) in spec.schemes:
            found = spec.load(spec.cache.from_url)(fast)
        if found is not None and isinstance(found.store, tuple(map(spec.load, spec.stores))):
            return found, spec.load(spec.cache.cache)(layers.name)
    able = " or ".join(spec.name for spec in specs() if spec.cache is not None)
    given = repr(fast) if found is None else found.kind
    raise ConfigurationError(f"layered(): only {able} can be the fast store, not {given}.")
