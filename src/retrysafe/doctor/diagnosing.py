"""Runs every check that applies to stores, brokers and an application."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import partial
from typing import Any

from retrysafe.backends.backend import Backend
from retrysafe.claims import key_spaces
from retrysafe.doctor import application
from retrysafe.doctor.brokers import examine as examine_broker
from retrysafe.doctor.diagnosis import Diagnosis
from retrysafe.doctor.stores import examine as examine_store
from retrysafe.doctor.stores import name_of
from retrysafe.doctor.waivers import Waiver, apply_waivers
from retrysafe.entrypoint import EntryPoint
from retrysafe.errors import ConfigurationError
from retrysafe.http import served
from retrysafe.messaging.inbox.inbox import living as inboxes
from retrysafe.protocol import durations
from retrysafe.protocol.checks import Severity
from retrysafe.protocol.records import Duration
from retrysafe.tasks.served import find_tasks

WITHIN = 5.0
"""Seconds that each store and broker has to answer all checks."""
MOST_AT_ONCE = 8
"""Stores and brokers that are asked at a time."""
_ORDER = tuple(Severity)


def diagnose(
    *,
    stores: Iterable[Any] = (),
    brokers: Iterable[str] = (),
    topics: Iterable[str] = (),
    consumed_by: Mapping[str, Iterable[str]] = {},
    app: Any = None,
    app_name: str = "application",
    retried_for: Duration | None = None,
    request_timeout: Duration | None = None,
    drift: Iterable[str] = (),
    waivers: Iterable[Waiver] = (),
    within: Duration = WITHIN,
) -> list[Diagnosis]:
    """Find what is set up so that a promise is broken or weaker than it looks; errors first.

    Arguments:
        stores: what ``Boundary(store=…)`` takes for sync code; URLs are best.
        brokers: their URLs.
        topics: the queues, topics or streams that are looked at there.
        consumed_by: the names of the boundaries whose inboxes consume a topic; a topic that is not in it is compared
            with every inbox of the application.
        app: an application of Starlette, FastAPI, Flask or Celery, or any other object, whose module has built its
            boundaries.
            The boundaries of this process and their stores are examined with it, and the windows of its inboxes are
            compared with how long the brokers keep messages of the topics.
        app_name: what it is called in findings.
        retried_for: for how long clients or providers retry.
        request_timeout: after how long a request to the application ends.
        drift: what differs from the lock file of the application, see `retrysafe describe --lock`.
        waivers: findings that are accepted.
        within: how long each store and each broker may take, in all; one that takes longer is a finding.

    Raises `ConfigurationError` for what is no duration, and for a boundary that has no inbox. A store or broker that
    fails is a finding.
    """
    seconds = durations.seconds(within, "within")
    tasks = find_tasks(app)  # before the boundaries are looked for, which the modules of tasks build
    entries = living_entries() if app is not None else []
    named = tuple(topics)
    windows = _windows() if app is not None else {}
    consumers = _consumers(consumed_by, windows)
    found = _at_once(partial(examine_store, store, seconds, leases) for store, leases in _with_leases(stores, entries))
    found += _at_once(
        partial(examine_broker, url, named, seconds, windows, consumers) for url in dict.fromkeys(brokers)
    )
    if app is not None:
        longest, timeout = _seconds(retried_for, "retried_for"), _seconds(request_timeout, "request_timeout")
        routes = served.find_routes(app)
        found += application.examine_application(app_name, routes, tasks, entries, tuple(drift))
        for entry in entries:
            found += application.examine_boundary(entry, longest, timeout)
    found.sort(key=lambda one: (_ORDER.index(one.severity), one.id, one.subject))
    return apply_waivers(found, list(waivers), date.today())  # noqa: DTZ011 - the day of the team that has set the end


def _at_once(asked: Iterable[Callable[[], list[Diagnosis]]]) -> list[Diagnosis]:
    """All findings of these, in their order. Servers are asked side by side: several dead ones take as long as one."""
    with ThreadPoolExecutor(MOST_AT_ONCE, "retrysafe-doctor") as threads:
        return [one for found in threads.map(lambda work: work(), asked) for one in found]


def _seconds(value: Duration | None, name: str) -> float | None:
    return None if value is None else durations.seconds(value, name)


def living_entries() -> list[EntryPoint]:
    """The boundaries of this process."""
    return [one for one in key_spaces.living() if isinstance(one, EntryPoint)]


def _windows() -> dict[str, float]:
    """The windows of boundaries that have inboxes; of several with one name, on different stores, the shortest."""
    found: dict[str, float] = {}
    for inbox in inboxes():
        entry = inbox.boundary.entrypoint
        found[entry.name] = min(entry.window, found.get(entry.name, entry.window))
    return found


def _consumers(consumed_by: Mapping[str, Iterable[str]], windows: Mapping[str, float]) -> dict[str, frozenset[str]]:
    found = {topic: frozenset(names) for topic, names in consumed_by.items()}
    for topic, names in found.items():
        if unknown := names - windows.keys():
            known = ", ".join(map(repr, sorted(windows))) or "none, also without an application"
            raise ConfigurationError(
                f"Topic {topic!r} is consumed by boundary {min(unknown)!r}, which has no inbox here. Boundaries with "
                f"inboxes: {known}."
            )
    return found


def _with_leases(given: Iterable[Any], entries: list[EntryPoint]) -> Iterator[tuple[Any, list[float]]]:
    """Each store once, with the leases of the boundaries that use it."""
    used: dict[Backend, list[float]] = {}
    for entry in entries:
        used.setdefault(entry.backend, []).append(entry.settings.clocks.lease / 1e6)
    yield from used.items()
    named = {backend.address for backend in used}
    for store in given:
        if name_of(store) not in named:
            named.add(name_of(store))
            yield store, []
