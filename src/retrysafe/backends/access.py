"""The access to a store: the functions that make its clients, and the peculiarities of its connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from retrysafe.backends.identity import Place
    from retrysafe.protocol.client import AsyncClient, AsyncListener, Client, Listener

    Heard = Callable[[bytes], None]


class StoreAccess(NamedTuple):
    """The access to a store, from which a `Backend` is made.

    address: the store, to be shown.
    sync: makes a client for sync code; None: it serves async code only.
    asynchronous: makes a client for the running loop; None: it serves sync code only.
    pulse: makes the sync client of the heartbeat, if that is another one.
    apulse: makes the async client of the heartbeat.
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
    """

    address: str
    sync: Callable[[], Client] | None = None
    asynchronous: Callable[[], AsyncClient] | None = None
    pulse: Callable[[], Client] | None = None
    apulse: Callable[[], AsyncClient] | None = None
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
