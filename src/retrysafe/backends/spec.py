"""The spec of a backend, written in its folder, so that no code outside of the folder names it; the access to a store.

References such as "opening:from_url" name a module of the folder and an attribute of it. They are text, so that reading
a spec imports no client library, and no module of the backend.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from retrysafe import lazy
from retrysafe.errors import ConfigurationError

if TYPE_CHECKING:
    from asyncio import Lock

    from retrysafe.backends.identity import Place
    from retrysafe.protocol.client import AsyncClient, AsyncExecutor, AsyncListener, Client, Executor, Listener
    from retrysafe.protocol.records import ClaimRequest, Finding, QuotaRefusal, Record, Tally
    from retrysafe.protocol.requests import Ask, Program

    Heard = Callable[[bytes], None]

NOTHING: Mapping[str, str] = MappingProxyType({})


class Joining(NamedTuple):
    """Executors on a transaction that was handed to us; one of them is None where the colour is fixed.

    ``tx`` is what the handler works with, if that is not what was handed over.
    """

    execute: Executor | None
    aexecute: AsyncExecutor | None
    tx: Any = None
    place: Place | None = None
    """The database that it leads to, as far as it shows."""
    kind: str = ""
    """The kind of that database, as stores name it."""


class StoreDefaults:
    """The behaviour of a store that does no better: it counts no quota apart, and forgotten records expire natively."""

    def admit(self, request: ClaimRequest) -> Program[QuotaRefusal | None]:
        yield from ()
        return None

    def forgotten(self, limit: int) -> list[Ask[list[Record]]]:
        return []

    def remove(self, seen: Sequence[Record]) -> list[Ask[int]]:
        return []

    def tally(self) -> list[Ask[list[Tally]]]:
        return []

    def examine(self) -> list[Ask[list[Finding]]]:
        return []


class WithoutTransactions:
    """A client of a store whose transactions cannot hold the caller's data."""

    def transaction(self) -> Any:
        raise ConfigurationError("store=: this kind of store has no transactions to share.")


class OpenedOnLoop(WithoutTransactions):
    """An async client of a library, which is opened on its event loop at first use, unless it is the user's.

    It lives in an async generator, which a loop that ends by `asyncio.run` closes by itself.
    """

    _opened: Any = None
    _life: AsyncGenerator[Any, None] | None = None
    _opening: Lock | None = None

    def _living(self) -> AsyncGenerator[Any, None]:
        """Open the library's client, yield what requests are put to, and close it."""
        raise NotImplementedError

    async def _open(self) -> Any:
        self._opening = self._opening or lazy.asyncio.Lock()
        async with self._opening:
            if self._opened is None:
                life = self._living()
                self._opened = await anext(life)
                self._life = life
        return self._opened

    async def aclose(self) -> None:
        life, self._life = self._life, None
        if life is not None:
            self._opened = None
            await life.aclose()

    def abandon(self) -> None:
        """Nothing to hang up: the loop has closed the client when it ended."""
        self._opened = self._life = None


def refuse_kind(kind: str, store: str) -> None:
    """Raise `ConfigurationError` for a transaction on another kind of database than the store's; empty is any kind."""
    if store and kind != store:
        raise ConfigurationError(f"tx= is a {kind} transaction, but store= is {store}: they cannot commit together.")


def _by_sqlstate(error: BaseException) -> bool:
    from retrysafe.backends.sql.drivers.base import wants_restart

    return wants_restart(error)


class StoreAccess(NamedTuple):
    """The access to a store, from which a `Backend` is made.

    address: the store, to be shown.
    sync: makes a client for sync code; None: it serves async code only.
    asynchronous: makes a client for the running loop; None: it serves sync code only.
    heartbeat: makes the sync client of the heartbeat, if that is another one.
    aheartbeat: makes the async client of the heartbeat.
    listening: makes a listener for settled keys, which are handed to a function.
    alistening: makes one for the running loop.
    on_demand: makes a sync client for tables that are made when they are first asked for; None: `migrate` makes all.
    migrates_itself: the store is brought up to date when it is connected to.
    immediate: a request never waits: then async code performs it like sync code, and cannot be cancelled there.
    alias: the framework's name for the store, if it owns the transactions: one connection in each thread.
    migrate_with: the command that applies migrations, where it is not ours.
    async_with: what to do for async code where the store serves sync code only.
    missing: tells whether the store is not there, and would be made by using it: an operator's typing error, say.
    places: the databases that it leads to, as far as it shows; empty if it does not.
    no_transactions: why transactions of the boundary's own cannot be kept on these connections; empty where they can.
    own_connections: every client has connections that nothing else uses.
    wants_restart: tells whether an error of the database asks for the whole transaction again.
    """

    address: str
    sync: Callable[[], Client] | None = None
    asynchronous: Callable[[], AsyncClient] | None = None
    heartbeat: Callable[[], Client] | None = None
    aheartbeat: Callable[[], AsyncClient] | None = None
    listening: Callable[[Heard], Listener] | None = None
    alistening: Callable[[Heard], AsyncListener] | None = None
    on_demand: Callable[[], Client] | None = None
    migrates_itself: bool = False
    immediate: bool = False
    alias: str | None = None
    migrate_with: str | None = None
    async_with: str = "give a URL or an async engine or client"
    missing: Callable[[], bool] = lambda: False
    places: Callable[[], set[Place]] = set
    no_transactions: str = ""
    own_connections: bool = False
    wants_restart: Callable[[BaseException], bool] = _by_sqlstate


class CacheSpec(NamedTuple):
    """The way in which a backend serves as the fast store of ``layered``.

    cache: makes a `Cache` for the truth of a name.
    from_url: makes a backend that waits for its server only briefly.
    """

    cache: str
    from_url: str


class BackendSpec(NamedTuple):
    """One backend: the values of ``store=`` that select it, and the functions to import then.

    package: the folder, as an importable name.
    title: the products, as documentation and errors list them.
    stores: the classes of its stores, for documentation and tests.
    time_travel: for each store class, the function by which tests let time pass in it: see `retrysafe.testing.age`.
    schemes: of URLs, each with the function that makes a `Backend` of such a URL.
    accepts: what else ``store=`` may be, in words.
    objects: the types of those objects, as "module:name", each with the function that makes a `Backend` of one.
    transactions: the types that ``tx=`` may have, each with the function that makes a `Joining` of one, of the kind and
        of the address of the store.
    extra: the optional dependency that all of these functions need; empty where they differ, or need none.
    unshared: URLs that lead to another store each time.
    absolute: a function from a URL to the one that means the same wherever the process is; empty if all do.
    alias: the function that makes a `Backend` of text which is no URL; one backend has it.
    cache: how it serves as a fast store, if it does.
    footprints: for each kind of its stores, the function from `Sizes` to the `Footprint` of a record.
    checks: for each kind of its stores, the `Examination` of `retrysafe doctor`; reading it needs no client library.
    steps: for each kind of its stores that keeps steps, the function from the store to the requests about them.
    """

    package: str
    title: str
    stores: tuple[str, ...]
    time_travel: Mapping[str, str]
    schemes: Mapping[str, str]
    accepts: str = ""
    objects: Mapping[str, str] = NOTHING
    transactions: Mapping[str, str] = NOTHING
    extra: str = ""
    unshared: Collection[str] = ()
    absolute: str = ""
    alias: str = ""
    cache: CacheSpec | None = None
    footprints: Mapping[str, str] = NOTHING
    checks: Mapping[str, str] = NOTHING
    steps: Mapping[str, str] = NOTHING

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.package.rpartition(".")[2]

    def load(self, reference: str) -> Any:
        """Import what a reference names. Raises `ConfigurationError` when its library is missing."""
        module, _, attribute = reference.partition(":")
        return attrgetter(attribute)(library(f"{self.package}.{module}", self.extra))


def library(module: str, extra: str, user: str = "store=") -> Any:
    """Import a module that ``user`` needs, with the library of an extra.

    Raises `ConfigurationError` when that library is missing.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if not extra:
            raise
        raise ConfigurationError(
            f"{user} needs a library that is missing ({error}). Run:  pip install 'retrysafe[{extra}]'"
        ) from error
