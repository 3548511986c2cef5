"""Sessions of SQLAlchemy, watched while transactional requests are served."""

from __future__ import annotations

from functools import cache

from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, InvalidRequestError
from sqlalchemy.orm import Session, SessionTransaction

from retrysafe.errors import ConfigurationError
from retrysafe.http.commit_watch import find_watch


@cache
def listen() -> None:
    """Be told of what every session does, once per process; outside of such requests that costs a look-up."""
    event.listen(Session, "before_commit", _before_commit)
    event.listen(Session, "after_commit", _after_commit)
    event.listen(Session, "after_transaction_create", _after_transaction_create)


def _before_commit(session: Session) -> None:
    watch = find_watch()
    if watch is not None and not session.in_nested_transaction() and watch.owns(session):
        watch.committing_own()


def _after_commit(session: Session) -> None:
    watch = find_watch()
    if watch is None or session.in_nested_transaction() or watch.owns(session):
        return
    if _same_database(session, watch.address):
        watch.note_other_commit()


def _after_transaction_create(session: Session, transaction: SessionTransaction) -> None:
    watch = find_watch()
    if watch is not None and watch.owns(session):
        try:
            watch.beginning_own()
        except ConfigurationError:
            transaction.close()  # it has no connection yet: nothing is left behind, and the next use is refused too
            raise


def _same_database(session: Session, address: str) -> bool:
    try:
        ours, theirs = make_url(address), session.get_bind().engine.url
    except (ArgumentError, InvalidRequestError):  # spread over several databases: not to be told
        return False
    return _place(ours) == _place(theirs)


def _place(url: URL) -> tuple[str, str, int | None, str | None]:
    return url.get_backend_name(), url.host or "localhost", url.port, url.database
