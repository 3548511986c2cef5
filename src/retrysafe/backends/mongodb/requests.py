"""The requests to MongoDB that its store builds, and the calls of PyMongo that each of them takes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from retrysafe.errors import ConfigurationError, StoreUnavailable
from retrysafe.protocol.backoff import Backoff
from retrysafe.protocol.requests import Ask, Program

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_PAUSES = Backoff(base=0.002, cap=0.1)
_ROUNDS = 10


class Call(NamedTuple):
    """One call of PyMongo: a method of the executor's collection or session, or of what is reached from it.

    joins: it is a part of the transaction, if there is one.
    """

    method: str
    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] = _NOTHING
    joins: bool = True


class Claim(NamedTuple):
    """The first claim of a key.

    upsert: writes the record of an ``attempt``, or leaves the one that is there as it is, and answers with it.
    find: reads a record that is there, with the server's time.
    """

    attempt: str
    upsert: Call
    find: Call


class Control(NamedTuple):
    """One step of a transaction: "begin", "savepoint", "rollback_to_savepoint", "commit" or "rollback"."""

    step: str


HELLO = Call("collection.database.command", ("hello",), joins=False)
_BEGIN = Call("session.start_transaction", joins=False)
_COMMIT = Call("session.commit_transaction", joins=False)
_ABORT = Call("session.abort_transaction", joins=False)


class Conversation:
    """The calls that requests take on a collection, in a session's transaction if there is one.

    own: its client is not the user's, who closes that.
    """

    def __init__(self, collection: Any, session: Any = None, *, own: bool = False) -> None:
        self.collection = collection
        self.session = self.handle = session
        self.own = own
        self._claimed: Any = None
        """The record that was claimed in the transaction."""

    @property
    def execute(self) -> Any:
        """The executor in its transaction: itself."""
        return self

    @property
    def _has_ended(self) -> bool:
        return self.session is not None and not self.session.in_transaction

    def calls(self, request: Call | Claim | Control) -> Program[Any]:
        """Ask for each call, or for a pause of some seconds, and return the answer of the last."""
        if isinstance(request, Control):
            return (yield from self._control(request.step))
        if isinstance(request, Claim):
            return (yield from self._claim(request))
        if request.joins and self._has_ended:
            return None  # nothing of it can be settled any more
        answer = yield _ask(request)
        if request.method == "collection.find_one_and_update" and answer is not None:
            self._claimed = answer
        return answer

    def _claim(self, request: Claim) -> Program[Any]:
        """Of two upserts that meet, one may be refused before it can read what the other has written: look again."""
        if self._has_ended:
            raise ConfigurationError(
                "tx= is a session without an open transaction, so the claim and the work could not commit together. "
                "Nothing was run. Begin with session.start_transaction() or session.with_transaction(…)."
            )
        for round_ in range(_ROUNDS):
            found = yield _ask(request.upsert)
            if found is not None and found["attempt"] == request.attempt:
                self._claimed = found
                return found
            there = found and (yield _ask(request.find))
            if there:
                return there[0]
            yield _ask(_PAUSES.delay(round_, 0.5))
        return None

    def _control(self, step: str) -> Program[None]:
        if step == "begin":
            yield _ask(_BEGIN)
        elif step == "commit":
            try:
                yield _ask(_COMMIT)
            except StoreUnavailable:  # the first one may have been performed, and a second is answered like it
                yield _ask(_COMMIT)
        elif step != "savepoint" and not self._has_ended:
            yield _ask(_ABORT)
            if step == "rollback_to_savepoint":  # there is none, so that the claim is written anew
                yield _ask(_BEGIN)
                before = {"_id": self._claimed["_id"], "version": self._claimed["version"] - 1}
                yield _ask(Call("collection.replace_one", (before, self._claimed), {"upsert": True}))


def _ask(request: Call | float) -> Ask[Any]:
    return Ask(request, lambda answer: answer)
