"""PyMongo in both colours: performs the calls of a request, and translates what it raises."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from operator import attrgetter
from typing import Any

import pymongo
from pymongo.errors import (
    DuplicateKeyError,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
)

from retrysafe.backends.driver import arun, run
from retrysafe.backends.mongodb.requests import Call, Conversation
from retrysafe.errors import ConfigurationError, RetryTransaction, StoreMisconfigured, StoreUnavailable
from retrysafe.protocol.exception_groups import leaves

TRANSIENT = "TransientTransactionError"
"""The label of errors after which nothing of a transaction is left, and the whole of it may succeed."""
_WRITE_CONFLICT = 112
_NO_TRANSACTIONS = frozenset({20, 263})
_GOODBYE = 1.0
"""Seconds for which closing looks for a server, to end the sessions there, which end by themselves too."""
_REFUSED = {
    13: "Give the user of store= the role readWrite on its database.",
    18: "Correct the user and password in store=, and the database that has them (authSource).",
    8000: "Correct the user and password in store=.",
}
"""Codes by which MongoDB refuses a caller until it is set up otherwise, with the remedy."""


class WriteConflict(RetryTransaction, PyMongoError):
    """The database asked for the whole transaction to be run again; ``with_transaction`` of PyMongo does so by itself.

    Nothing in this transaction will be committed. Roll it back, and run it again from its beginning
    with the same key.
    """

    def has_error_label(self, label: str) -> bool:
        """True of the label by which PyMongo recognises it."""
        return label == TRANSIENT


def wants_restart(error: BaseException) -> bool:
    """Tell whether an error of the server or of ours, or one of a group, asks for the whole transaction again."""
    found = leaves(error)
    asked = any(isinstance(leaf, PyMongoError) and leaf.has_error_label(TRANSIENT) for leaf in found)
    return asked and all(isinstance(leaf, Exception) for leaf in found)


@contextmanager
def _translate(*, joined: bool) -> Iterator[None]:
    """Raise errors of ours; outside of a transaction, an upsert that met another one is answered by nothing."""
    try:
        yield
    except DuplicateKeyError as error:
        if joined:
            raise WriteConflict(str(error)) from error
    except PyMongoError as error:
        raise _error_of(error, joined=joined) from error


def _error_of(error: PyMongoError, *, joined: bool) -> Exception:
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, ServerSelectionTimeoutError | WaitQueueTimeoutError):
        return StoreUnavailable(text, unsent=True)
    if joined and error.has_error_label(TRANSIENT):
        return WriteConflict(text)
    if not isinstance(error, OperationFailure):
        return StoreUnavailable(text)
    if error.code in _REFUSED:
        return StoreMisconfigured(f"{error}. {_REFUSED[error.code]}", unsent=True)
    if joined and error.code in _NO_TRANSACTIONS:
        return ConfigurationError(
            f"tx= is on a MongoDB server without transactions ({error}). Nothing was written. Run it as a replica "
            "set, which may be of one server, or use effects='keyed' or 'external'."
        )
    return StoreUnavailable(text, transient=error.code == _WRITE_CONFLICT)


class MongodbClient(Conversation):
    """A MongoClient, which is safe to use from many threads, or a session of one."""

    def __call__(self, request: Any, /) -> Any:
        return run(self.calls(request), self._perform, patience=0.0)

    def _perform(self, asked: Call) -> Any:
        with _translate(joined=self.session is not None):
            return _read(_call(self, asked), list)

    @contextmanager
    def transaction(self) -> Iterator[MongodbClient]:
        """Lend a session; its transaction is aborted if it is still open at the end."""
        with self.collection.database.client.start_session() as session:
            yield MongodbClient(self.collection, session)

    def close(self) -> None:
        if self.own:
            with pymongo.timeout(_GOODBYE):
                self.collection.database.client.close()


class AsyncMongodbClient(Conversation):
    """An AsyncMongoClient, for one event loop, or a session of one."""

    async def __call__(self, request: Any, /) -> Any:
        return await arun(self.calls(request), self._perform, patience=0.0)

    async def _perform(self, asked: Call) -> Any:
        with _translate(joined=self.session is not None):
            answer = _call(self, asked)
            answer = await answer if hasattr(answer, "__await__") else answer  # beginning a transaction asks nothing
            read = _read(answer, lambda cursor: cursor.to_list())
            return await read if hasattr(read, "__await__") else read

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncMongodbClient]:
        async with self.collection.database.client.start_session() as session:
            yield AsyncMongodbClient(self.collection, session)

    async def aclose(self) -> None:
        if self.own:
            with pymongo.timeout(_GOODBYE):
                await self.collection.database.client.close()

    def abandon(self) -> None:
        """Nothing to hang up: what the client does in the background has ended with its loop."""


def _call(by: Conversation, asked: Call) -> Any:
    session = {} if by.session is None or not asked.joins else {"session": by.session}
    return attrgetter(asked.method)(by)(*asked.arguments, **asked.options, **session)


def _read(answer: Any, all_of: Callable[[Any], Any]) -> Any:
    """All documents of a cursor, the number of those that an update or deletion has found, or the answer itself."""
    if hasattr(answer, "alive"):
        return all_of(answer)
    return getattr(answer, "matched_count", getattr(answer, "deleted_count", answer))
