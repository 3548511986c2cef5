"""Claims around claims: which one encloses the running code, in this task or thread and this process."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Protocol

from retrysafe import runtime
from retrysafe.backends.backend import Backend
from retrysafe.errors import ConfigurationError


class Enclosing(Protocol):
    """The interface of an outer claim to an inner one."""

    @property
    def boundary(self) -> str:
        """The name of its boundary."""
        ...

    @property
    def operation(self) -> str:
        """The operation that it guards."""
        ...

    @property
    def tx(self) -> Any:
        """Its transaction, if it has one."""
        ...

    @property
    def is_named_lease(self) -> bool:
        """True if it holds a lease for a block, and is no operation of its own."""
        ...

    @property
    def _transaction(self) -> Any: ...

    @property
    def _backend(self) -> Backend: ...

    @property
    def _held_key(self) -> bytes | None: ...


innermost: ContextVar[ClaimContext | None] = ContextVar("retrysafe_claim", default=None)
"""The context of the innermost claim; a task may have inherited that of a claim that has ended."""


class ClaimContext:
    """The place of one claim among those around it, while its block runs; making one makes the claim the innermost.

    It does not keep its claim alive: one that was never left ends with its last reference, and so does its lease.
    """

    def __init__(self, claim: Enclosing, tx: Any) -> None:
        outer = innermost.get()
        while outer is not None and outer.claim_if_open() is None:
            outer = outer.outer
        self._claim = weakref.ref(claim)
        self.outer: ClaimContext | None = outer
        self.process = runtime.pid
        """The process in which the block of the claim runs."""
        self.left = False
        self._runner = None if tx is None else _runner()
        innermost.set(self)

    def leave(self) -> bool:
        """Leave it; False in a child that was forked inside the block, which has no part in the claim, or once left."""
        if self.left:
            return False
        mine = self.process == runtime.pid
        if not mine:
            runtime.inherit(self._claim())  # to collect it would end the parent's transaction
        self.left = True
        innermost.set(self.outer)
        return mine

    def is_open(self) -> bool:
        """Tell whether its block is running, in this process."""
        return not self.left and self.process == runtime.pid

    def claim_if_open(self) -> Enclosing | None:
        """The claim, if its block is running."""
        return self._claim() if self.is_open() else None


def is_inside(key: bytes) -> bool:
    """Tell whether a claim on this key is open around the running code."""
    return any(claim._held_key == key for _, claim in _around())


def strangers(backend: Backend) -> list[Backend]:
    """The backends of transactions around the running code of which it is not known whether they are ``backend``."""
    others = [claim._backend for _, claim in _around() if claim._transaction is not None]
    return [other for other in others if backend.database.is_same(other.database) is None]


def transaction_on(backend: Backend, *, asked_for: bool) -> Enclosing | None:
    """The innermost claim around the running code that has a transaction on the same store.

    Unless the transaction was ``asked_for``, it must be of the same task or thread: another one could go on when
    the transaction has ended.
    """
    for context, claim in _around():
        if claim._transaction is not None and backend.database.is_same(claim._backend.database):
            if not asked_for and context._runner != _runner():
                raise ConfigurationError(
                    f"A claim was made in another task or thread than the transaction of {claim.boundary!r} "
                    "around it, which could end first. Pass tx= and wait for the task inside the block, or make "
                    "the claim outside it."
                )
            return claim
    return None


def enclosing() -> Enclosing | None:
    """The innermost open claim, but for leases; a task may have inherited one that has ended."""
    return next((claim for _, claim in _around() if not claim.is_named_lease), None)


def on_a_loop() -> bool:
    """Tell whether an event loop is running in this thread."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _around() -> Iterator[tuple[ClaimContext, Enclosing]]:
    """The open contexts around the running code, with their claims, innermost first."""
    context = innermost.get()
    while context is not None:
        if (claim := context.claim_if_open()) is not None:
            yield context, claim
        context = context.outer


def _runner() -> object:
    """The task, or else the thread, that runs this code."""
    return sys.modules["asyncio"].current_task() if on_a_loop() else threading.get_ident()
