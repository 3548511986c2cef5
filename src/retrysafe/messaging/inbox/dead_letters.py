"""Where the attempts at messages and the dead letters are kept, asked in either colour."""

from __future__ import annotations

from typing import Any, TypeVar

from retrysafe.backends.backend import Backend
from retrysafe.backends.driver import arun, run
from retrysafe.backends.sql.inbox import SqlInbox
from retrysafe.backends.sql.store import SqlStore
from retrysafe.entrypoint import in_thread
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.asks import Steps

R = TypeVar("R")


class Asking:
    """Asks a database in either colour."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def run(self, steps: Steps[R]) -> R:
        """Drive a program on a connection of ours."""
        client: Any = self.backend.client()
        self.backend.check(client)
        return run(steps, client)

    async def arun(self, steps: Steps[R]) -> R:
        """`run` for async code; in a thread, where the database serves sync code only."""
        if not self.backend.serves_async:
            return await in_thread(lambda: self.run(steps))
        client = self.backend.aclient()
        await self.backend.acheck(client)
        return await arun(steps, client)


class Letters(Asking):
    """The inbox's own tables, in a database."""

    def __init__(self, backend: Backend) -> None:
        if not isinstance(backend.store, SqlStore):
            raise ConfigurationError(
                f"A {backend.kind} store has no place for attempts and dead letters: give dead_letter_store=, a "
                "database (SQLite, PostgreSQL, MySQL or MariaDB) for them."
            )
        super().__init__(backend)
        self.inbox = SqlInbox(backend.store)
