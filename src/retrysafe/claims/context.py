"""Claims around claims: which one encloses the running code, in this task or thread and this process."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from contextvars import ContextVar
from typing import Any, Protocol

from retrysafe.backends.backend import Backend
from retrysafe.errors import ConfigurationError


class Enclosing(Protocol):
    """What an inner claim needs to know of an outer one."""

    @property
    def boundary(self) -> str:
        """The name of its boundary."""
        ...

    @property
    def operation(self) -> str:
        """What it guards."""
        ...

    @property
    def tx(self) -> Any:
        """Its transaction, if it has one."""
        ...

    @property
    def _transaction(self) -> Any: ...

    @property
    def _backend(self) -> Backend: ...

    @property
    def _held_key(self) -> bytes | None: ...


_innermost: ContextVar[ClaimContext | None] = ContextVar("retrysafe_claim", default=None)
_inherited: list[Enclosing] = []
"""Claims that a forked child has left: kept, because to collect them would end the parent's transactions."""


class ClaimContext:
    """The place of one claim among those around it, while its block runs; making one makes the claim the innermost.

    It does not keep its claim alive. The running block does; and where an exception of a signal handler has come at the
    very beginning of ``__exit__``, so that the claim was never left, the claim ends with the last reference to it, and
    no later claim joins its transaction.
    """

    def __init__(self, claim: Enclosing) -> None:
        outer = _innermost.get()
        self._claim = weakref.ref(claim)
        self.outer = outer if outer is None else next((place for place, _ in _around()), None)
        self._pid = os.getpid()
        """The process in which the block of the claim runs; 0 once it has been left."""
        self._runner = None if claim._transaction is None else _runner()
        _innermost.set(self)

    def leave(self) -> bool:
        """Leave it; False in a child that was forked inside the block, which has no part in the claim, or once left."""
        if self._pid == 0:
            return False
        mine = self._pid == os.getpid()
        self._pid = 0
        _innermost.set(self.outer)
        claim = self._claim()
        if not mine and claim is not None:
            _inherited.append(claim)
        return mine

    def abandon(self) -> None:
        """Be out of the way of later claims, if an exception has come before `leave`."""
        if self.is_open():
            self._pid = 0
            if _innermost.get() is self:
                _innermost.set(self.outer)

    @property
    def has_ended(self) -> bool:
        """Whether its block has been left."""
        return self._pid == 0

    def is_open(self) -> bool:
        """Whether its block is running, in this process."""
        return self._pid == os.getpid()

    def open_claim(self) -> Enclosing | None:
        """The claim, if its block is running."""
        return self._claim() if self.is_open() else None


def is_nested() -> bool:
    """Whether there may be claims around the running code."""
    return _innermost.get() is not None


def is_inside(key: bytes) -> bool:
    """Whether a claim on this key is open around the running code."""
    return any(claim._held_key == key for _, claim in _around())


def strangers(backend: Backend) -> list[Backend]:
    """The stores of transactions around the running code of which it is not known whether they are ``backend``."""
    stores = [claim._backend for _, claim in _around() if claim._transaction is not None]
    return [store for store in stores if backend.is_same(store) is None]


def transaction_on(backend: Backend, *, asked_for: bool) -> Enclosing | None:
    """The innermost claim around the running code that has a transaction on the same store.

    Unless the transaction was ``asked_for``, it must be of the same task or thread: another one could go on when
    the transaction has ended.
    """
    for place, claim in _around():
        if claim._transaction is not None and backend.is_same(claim._backend):
            if not asked_for and place._runner != _runner():
                raise ConfigurationError(
                    f"A claim was made in another task or thread than the transaction of {claim.boundary!r} "
                    "around it, which could end first. Pass tx= and wait for the task inside the block, or make "
                    "the claim outside it."
                )
            return claim
    return None


def enclosing() -> Enclosing | None:
    """The innermost open claim; a task may have inherited one that has ended."""
    return next((claim for _, claim in _around()), None)


def on_a_loop() -> bool:
    """Whether an event loop is running in this thread."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _around() -> list[tuple[ClaimContext, Enclosing]]:
    """The open places around the running code, with their claims, innermost first."""
    found: list[tuple[ClaimContext, Enclosing]] = []
    place = _innermost.get()
    while place is not None:
        if (claim := place.open_claim()) is not None:
            found.append((place, claim))
        place = place.outer
    return found


def _runner() -> object:
    """The task, or else the thread, that runs this code."""
    return sys.modules["asyncio"].current_task() if on_a_loop() else threading.get_ident()
