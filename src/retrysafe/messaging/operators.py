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
from retrysafe.backends.driver import arun, arun_transaction, run, run_transaction
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

    def _do(self, program: Program[R]) -> R:
        if self._runner is None:
            return self._backend.run(program)
        return self._runner.run(self._backend.arun(program))

    def _transact(self, program: Callable[[], Program[R]]) -> R:
        """Drive a program in a transaction of its own, again from its beginning while the database asks for that."""
        if self._runner is not None:
            return self._runner.run(arun_transaction(lambda: self._atransact(program())))

        def transact() -> R:
            with self._backend.ready_client().transaction() as opened:
                return run(program(), opened.execute)

        return run_transaction(transact)

    async def _atransact(self, program: Program[R]) -> R:
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
