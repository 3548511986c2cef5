"""Base of the outbox and inbox operators: store, actor, observers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

from retrysafe.admin.operator import connect, user
from retrysafe.backends import registry
from retrysafe.backends.backend import Backend
from retrysafe.backends.driver import arun, run
from retrysafe.claims.observers import LoggingObserver, Observers
from retrysafe.protocol.events import Observer
from retrysafe.protocol.requests import Program

R = TypeVar("R")
PAGE = 200


class Operating:
    """Connections to a database of messages, for a person or a monitor."""

    def __init__(self, store: Any, *, actor: str | None = None, observers: Iterable[Observer] | None = None) -> None:
        self._backend = connect(store)
        self._backend.users += 1
        self._runner = None if self._backend.serves_sync else asyncio.Runner()
        self._observers = Observers((LoggingObserver(),) if observers is None else observers)
        self.actor = actor or f"{user()}@{socket.gethostname()}"

    # ------------------------------------------------------------ how

    def _do(self, program: Program[R], *, own: bool = False) -> R:
        if self._runner is not None:
            return self._runner.run(self._ado(program, own=own))
        if not own:
            return self._backend.run(program)
        with self._backend.ready_client().transaction() as opened:
            return run(program, opened.execute)

    async def _ado(self, program: Program[R], *, own: bool) -> R:
        if not own:
            return await self._backend.arun(program)
        async with (await self._backend.ready_aclient()).transaction() as opened:
            return await arun(program, opened.execute)

    def look(self, at: Callable[[Backend], Program[R]]) -> R:
        """Drive a program that reads."""
        return self._do(at(self._backend))

    def close(self) -> None:
        """Close the connections, unless something else uses them."""
        last = registry.leave(self._backend)
        if self._runner is not None:
            with self._runner:
                if last:
                    self._runner.run(self._backend.aclose())
        elif last:
            self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
