"""Traps of transactional requests, detected and named: work on the database that does not commit with the record.

Whatever watches a database library reports here what it saw; what that means, and what is said of it, is decided in
one place, for every framework.
"""

from __future__ import annotations

from contextvars import ContextVar
from enum import Enum

from retrysafe.claims.claim import Claim
from retrysafe.errors import ConfigurationError


class Phase(Enum):
    """The progress of a transactional request."""

    WORKING = "before the response"
    SETTLING = "while the record is written"
    OVER = "after the response"


COMMITTED_OWN = (
    "The transaction of a guarded request was to be committed by the handler, before its record and response could be "
    "part of it. Nothing was committed. Leave the commit to the layer: take session.flush() if you need what the "
    "database assigns, session.begin_nested() if a part may fail."
)
USED_LATE = (
    "The session of a guarded request was used after its response had been committed, by a background task or by a "
    "dependency that ends late: nothing would ever commit that. Do the work in the handler, or give the task a session "
    "of its own and only the ids that it needs."
)


class CommitWatch:
    """One transactional request: what is done to the database around its transaction."""

    def __init__(self, claim: Claim, address: str) -> None:
        self.phase = Phase.WORKING
        self.address = address
        self.tx = claim._transaction
        self._claim = claim

    def owns(self, session: object) -> bool:
        """Tell whether a session is that of the request's own transaction."""
        return session is self.tx or session is getattr(self.tx, "sync_session", None)

    def committing_own(self) -> None:
        """The request's own transaction is about to be committed; raises `ConfigurationError` unless it is by us."""
        if self.phase is Phase.WORKING:
            raise ConfigurationError(COMMITTED_OWN)

    def beginning_own(self) -> None:
        """The request's own session begins a transaction; raises `ConfigurationError` when its own is over."""
        if self.phase is Phase.OVER:
            raise ConfigurationError(USED_LATE)

    def note_other_commit(self) -> None:
        """Another session has committed to the same database, where nothing of ours could hold it back or undo it."""
        self._claim._emit("outside_commit", when=self.phase.value)


_watch: ContextVar[CommitWatch | None] = ContextVar("retrysafe_watch", default=None)


def find_watch() -> CommitWatch | None:
    """The transactional request around the running code, also when its response is over."""
    return _watch.get()


def watch(claim: Claim, address: str) -> CommitWatch:
    """Watch over a request from here on."""
    made = CommitWatch(claim, address)
    _watch.set(made)
    return made


def forget() -> None:
    """The request around the running code has ended: a thread goes on to serve another one."""
    _watch.set(None)
