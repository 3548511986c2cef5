"""Requests that an earlier process left behind, sent again with their keys: what both colours share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from retrysafe.errors import ConfigurationError
from retrysafe.http.client.errors import RequestOutcomeUnknown
from retrysafe.http.client.hosts import IDEMPOTENT, address, origin_of
from retrysafe.http.client.journal import Entry, Journal

HOLD = 120.0
"""Seconds for which a request is taken before its own client has it."""


class Resumed(NamedTuple):
    """The result of one request: its response, or the exception in its place."""

    entry: Entry
    response: Any
    error: Exception | None


def take_over(
    journal: Journal, origin: str | None, wall: Callable[[], float]
) -> Iterator[tuple[Entry, RequestOutcomeUnknown | None]]:
    """The requests that no living process is at, each held by this one, or the reason why it must not be sent.

    Every request comes once, the oldest first; only those to ``origin``, if there is one.
    """
    wanted = None if origin is None else origin_of(origin)
    for id in journal.ids():
        entry = journal.find(id)
        if entry is None or (wanted is not None and address(entry.url) != wanted):
            continue
        unknown = find_obstacle(entry, wall())
        if unknown is not None and not journal.is_held(entry, wall()):
            yield entry, unknown
        elif unknown is None and (found := journal.take(entry.id, wall(), HOLD)) is not None:
            yield found, None


def resume(
    journal: Journal, origin: str | None, wall: Callable[[], float], send: Callable[[Entry], Any]
) -> Iterator[Resumed]:
    """Send every request that `take_over` gives."""
    for entry, unknown in take_over(journal, origin, wall):
        if unknown is not None:
            yield Resumed(entry, None, unknown)
            continue
        try:
            response = send(entry)
        except Exception as error:  # noqa: BLE001 - the next one is sent all the same
            journal.let_go(entry.id)
            yield Resumed(entry, None, error)
        else:
            check_passed(journal, entry)
            yield Resumed(entry, response, None)


def find_obstacle(entry: Entry, now: float) -> RequestOutcomeUnknown | None:
    """Why a request must not be sent again: rule C3; None if it may."""
    if entry.recognised_until is not None:
        if now < entry.recognised_until:
            return None
        return RequestOutcomeUnknown(
            f"{entry}: its host promised to recognise the key until {now - entry.recognised_until:.0f} s ago."
        )
    if entry.method in IDEMPOTENT:
        return None
    return RequestOutcomeUnknown(f"{entry}: its host was not declared to honour keys.")


def check_passed(journal: Journal, entry: Entry) -> None:
    """Raise `ConfigurationError` if the client that has sent a request did so past its journal."""
    if journal.let_go(entry.id):
        raise ConfigurationError(
            "The client has no retrysafe transport with this journal, so nothing recorded the outcome of "
            f"{entry}. Give it one, and resume again: the key is the same."
        )
