"""The checks of an application: its boundaries, and the routes and tasks that it serves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from retrysafe.claims import key_spaces
from retrysafe.claims.settings import BoundarySettings
from retrysafe.doctor.diagnosis import Diagnosis, judge
from retrysafe.entrypoint import EntryPoint
from retrysafe.http.policy import ServedRoute
from retrysafe.protocol.checks import Check, Facts, Severity
from retrysafe.protocol.records import Wait
from retrysafe.tasks.served import ServedTask

_WINDOWS = "how-to/windows-and-key-memory.md"
_TASKS = "how-to/celery.md"
_PROVIDERS = "how-to/call-an-external-api.md"
SHORT_LEASE = 5.0
"""Seconds; a pause of a garbage collector or a virtual machine may be as long as a shorter lease."""


def _short_window(facts: Facts) -> str | None:
    longest, settings = facts["retried_for"], _settings(facts)
    window = settings.clocks.window / 1e6
    if longest is None or window >= longest or settings.on_expired != "new":
        return None  # work refused after its window is not run again: see boundary-memory
    return f"window= is {window:g} s, and clients retry for {longest:g} s: a late retry runs the work again."


def _forgetful(facts: Facts) -> str | None:
    longest, settings = facts["retried_for"], _settings(facts)
    memory = settings.clocks.memory / 1e6
    if longest is None or settings.on_expired == "new" or memory >= longest:
        return None
    return f"on_expired= refuses late retries only for memory= {memory:g} s, and clients retry for {longest:g} s."


def _short_lease(facts: Facts) -> str | None:
    settings = _settings(facts)
    lease = settings.clocks.lease / 1e6
    if lease >= SHORT_LEASE or settings.effects == "transactional":
        return None
    return f"lease= is {lease:g} s: a pause of the process that is longer lets a second attempt begin."


def _long_wait(facts: Facts) -> str | None:
    settings, timeout = _settings(facts), facts["request_timeout"]
    if timeout is None or not isinstance(settings.concurrency, Wait) or settings.concurrency.seconds < timeout:
        return None
    return f"A duplicate waits for {settings.concurrency.seconds:g} s, and requests end after {timeout:g} s."


def _no_probe(facts: Facts) -> str | None:
    settings = _settings(facts)
    if settings.effects != "external" or settings.probe is not None:
        return None
    return "effects='external' without probe=: each unclear outcome waits for a person."


def _forgetful_provider(facts: Facts) -> str | None:
    settings = _settings(facts)
    retried = min(settings.clocks.window / 1e6, facts["retried_for"] or math.inf)
    return " ".join(told for one in settings.providers if (told := one.forgets_within(retried))) or None


def _lasting_provider(facts: Facts) -> str | None:
    after: float = facts["forgets_after"]
    return " ".join(told for one in _settings(facts).providers if (told := one.outlasts(after))) or None


def _default_names(facts: Facts) -> str | None:
    found: list[str] = facts["unnamed"]
    return f"Named by their functions: {', '.join(found)}." if found else None


def _operations_without_name(entry: EntryPoint) -> list[str]:
    return [
        name
        for name, owner in entry.owners.items()
        if name == f"{key_spaces.module_of(owner.what)}.{getattr(owner.what, '__qualname__', None)}"
    ]


def _settings(facts: Facts) -> BoundarySettings:
    settings: BoundarySettings = facts["settings"]
    return settings


BOUNDARY_CHECKS = (
    Check(
        "boundary-window",
        "Is a retry recognised for as long as clients retry?",
        Severity.ERROR,
        "window={retried_for} in Boundary({name!r}, …), or longer",
        _WINDOWS,
        _short_window,
    ),
    Check(
        "boundary-memory",
        "Is a late retry refused for as long as clients retry?",
        Severity.ERROR,
        "memory={retried_for} in Boundary({name!r}, …), or longer",
        _WINDOWS,
        _forgetful,
    ),
    Check(
        "boundary-lease",
        "Is a lease longer than a pause of the process?",
        Severity.WARNING,
        'lease="30s" in Boundary({name!r}, …)',
        "explanation/three-clocks.md",
        _short_lease,
    ),
    Check(
        "boundary-wait",
        "Does a waiting duplicate get its answer before its request times out?",
        Severity.WARNING,
        "concurrency=wait(…) shorter than {request_timeout} s, or reject(), in Boundary({name!r}, …)",
        "how-to/wait-for-duplicates.md",
        _long_wait,
    ),
    Check(
        "boundary-unknown",
        "Can unclear outcomes be settled without a person?",
        Severity.NOTE,
        "probe= in Boundary({name!r}, …), or effects='keyed' if the receiver recognises key_for(…)",
        "how-to/settle-an-unknown-outcome.md",
        _no_probe,
    ),
    Check(
        "boundary-provider-forgets",
        "Does each provider recognise a key for as long as the boundary a retry?",
        Severity.WARNING,
        "window={provider_memory} in Boundary({name!r}, …), or shorter; or a probe= that asks the provider",
        _PROVIDERS,
        _forgetful_provider,
    ),
    Check(
        "boundary-provider-outlasts",
        "Does the boundary remember a key for as long as each provider?",
        Severity.NOTE,
        "A new key for new work; or on_expired='refuse' and a longer memory= in Boundary({name!r}, …)",
        _PROVIDERS,
        _lasting_provider,
    ),
    Check(
        "boundary-unnamed-operation",
        "Do keys survive that a function is renamed?",
        Severity.NOTE,
        "operation='…' in @once(…); the name that it has now keeps the keys that are there",
        "how-to/guard-a-function.md",
        _default_names,
    ),
)


def _routes_without_guard(facts: Facts) -> str | None:
    routes: list[str] = facts["unguarded"]
    return f"Nothing guards {', '.join(routes)}." if routes else None


def _tasks_without_guard(facts: Facts) -> str | None:
    names = ", ".join(one.name for one in facts["tasks"] if not one.guarded)
    return f"Nothing guards {names}: each delivery of such a task runs it." if names else None


def _tasks_at_risk(facts: Facts) -> str | None:
    names = ", ".join(one.name for one in facts["tasks"] if one.guarded and one.lost)
    return f"Acknowledged before they have run, and lost if their worker dies: {names}." if names else None


def _late(facts: Facts) -> str | None:
    routes: Mapping[str, tuple[str, ...]] = facts["late"]
    if not routes:
        return None
    told = "; ".join(f"{route}: {', '.join(names)}" for route, names in routes.items())
    return (
        "Dependencies with yield, and hooks of before_send, end after the response of a guarded route was recorded. If "
        f"their commit fails then, nothing is stored, and a retry is answered as if it were: {told}."
    )


APPLICATION_CHECKS = (
    Check(
        "application-route",
        "Has every route for POST and PATCH a policy?",
        Severity.WARNING,
        'Guard the application, and say routes={{"POST /…": "off"}} or @policy("off") for a route that needs none',
        "reference/http-integrations.md",
        _routes_without_guard,
    ),
    Check(
        "application-task",
        "Is every task of a queue guarded?",
        Severity.NOTE,
        "@once(boundary, key='…') next to the function, unless it does no harm to run the task twice",
        _TASKS,
        _tasks_without_guard,
    ),
    Check(
        "application-lost-task",
        "Does a guarded task come again if its worker dies?",
        Severity.WARNING,
        "@app.task(acks_late=True, reject_on_worker_lost=True)",
        _TASKS,
        _tasks_at_risk,
    ),
    Check(
        "application-late-dependency",
        "Do dependencies of guarded routes end before the response is recorded?",
        Severity.WARNING,
        'Depends(…, scope="function"), or the session of the claim: Depends(idempotency.session)',
        "how-to/http-fastapi.md",
        _late,
    ),
    Check(
        "application-drift",
        "Are boundaries and operations as the lock file says?",
        Severity.ERROR,
        "Undo the change, or deploy it when no key lives, and write the lock again:  retrysafe describe … --lock FILE",
        "how-to/describe-and-lock.md",
        lambda facts: " ".join(facts["drift"]) or None,
    ),
    Check(
        "application-boundaries",
        "Does the application have a boundary?",
        Severity.WARNING,
        "Import the modules that build boundaries from the application's module, or from the project's URLs.",
        "explanation/boundaries.md",
        lambda facts: None if facts["boundaries"] else "Importing it has built no boundary.",
    ),
)


def examine_boundary(entry: EntryPoint, retried_for: float | None, request_timeout: float | None) -> list[Diagnosis]:
    """Diagnose a boundary, for clients that retry for so many seconds."""
    facts: dict[str, Any] = {"settings": entry.settings, "name": entry.name, "retried_for": retried_for}
    kept = [one.kept for one in entry.settings.providers if one.kept is not None]
    facts |= {"forgets_after": entry.forgets_after, "provider_memory": f"{min(kept, default=0):g}"}
    facts |= {"unnamed": _operations_without_name(entry), "request_timeout": request_timeout}
    return judge(BOUNDARY_CHECKS, facts, f"boundary {entry.name}")


def examine_application(
    title: str,
    routes: Iterable[ServedRoute],
    tasks: Iterable[ServedTask],
    boundaries: Iterable[object],
    drift: tuple[str, ...],
) -> list[Diagnosis]:
    """Diagnose an application as a whole."""
    routes = list(routes)
    facts = {
        "unguarded": [one.route for one in routes if one.policy == "unguarded"],
        "late": {one.route: one.late for one in routes if one.policy == "guarded" and one.late},
        "tasks": list(tasks),
        "boundaries": list(boundaries),
        "drift": drift,
    }
    return judge(APPLICATION_CHECKS, facts, title)
