"""The requests to MongoDB that its store builds, and the calls of PyMongo that each of them takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from retrysafe.errors import ConfigurationError, StoreUnavailable
from retrysafe.protocol.requests import Ask, Program, as_it_is


class Call(NamedTuple):
    """One call of PyMongo: a method of the client's collection or session, or of what is reached from it.

    joins: it is a part of the transaction, if there is one.
    follow: the call that its answer asks for, if any; that call's answer is then the answer.
    """

    method: str
    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] = MappingProxyType({})
    joins: bool = True
    follow: Callable[[Any], Call | None] = lambda _: None


class Control(NamedTuple):
    """One step of a transaction: "begin", "savepoint", "rollback_to_savepoint", "commit" or "rollback"."""

    step: str


CHANGE = "collection.find_one_and_update"
HELLO = Call("collection.database.command", ("hello",), joins=False)
_BEGIN = Call("session.start_transaction", joins=False)
_COMMIT = Call("session.commit_transaction", joins=False)
_ABORT = Call("session.abort_transaction", joins=False)


class Conversation:
    """The calls that requests take on a collection, in a session's transaction if there is one: an `OpenTransaction`.

    own: its client is not the user's, who closes that.
    """

    def __init__(self, collection: Any, session: Any = None, *, own: bool = False) -> None:
        self.collection = collection
        self.session = self.handle = session
        self.execute: Any = self
        self.own = own
        self._claimed: Any = None
        """The record that was claimed in the transaction."""

    @property
    def _has_ended(self) -> bool:
        return self.session is not None and not self.session.in_transaction

    def calls(self, request: Call | Control) -> Program[Any]:
        """Ask for each call, and return the answer of the last."""
        if isinstance(request, Control):
            return (yield from self._control(request.step))
        if self._has_ended and "upsert" in request.options:
            raise ConfigurationError(
                "tx= is a session without an open transaction, so the claim and the work could not commit together. "
                "Nothing was run. Begin with session.start_transaction() or session.with_transaction(…)."
            )
        if self._has_ended and request.joins:
            return None  # nothing of it can be settled any more
        answer = yield Ask(request, as_it_is)
        if request.joins and request.method == CHANGE:
            self._claimed = answer
        following = request.follow(answer)
        if following is None:
            return answer
        found = yield Ask(following._replace(joins=request.joins), as_it_is)
        if not found:
            raise StoreUnavailable("Another first claim of the key came in between.", unsent=True, transient=True)
        return found

    def _control(self, step: str) -> Program[None]:
        if step == "begin":
            yield Ask(_BEGIN, as_it_is)
        elif step == "commit":
            try:
                yield Ask(_COMMIT, as_it_is)
            except StoreUnavailable:  # the first one may have been performed, and a second is answered like it
                yield Ask(_COMMIT, as_it_is)
        elif step != "savepoint" and not self._has_ended:
            yield Ask(_ABORT, as_it_is)
            if step == "rollback_to_savepoint":  # there is none, so that the claim is written anew
                yield Ask(_BEGIN, as_it_is)
                before = {"_id": self._claimed["_id"], "version": self._claimed["version"] - 1}
                yield Ask(Call("collection.replace_one", (before, self._claimed), {"upsert": True}), as_it_is)
