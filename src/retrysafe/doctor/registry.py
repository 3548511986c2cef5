"""Every check there is, by what it looks at."""

from __future__ import annotations

from collections.abc import Iterator

from retrysafe.backends import registry as backends
from retrysafe.doctor import application
from retrysafe.doctor.stores import OF_EVERY_STORE
from retrysafe.messaging.brokers import checks as broker_checks
from retrysafe.messaging.brokers import registry as brokers
from retrysafe.protocol.checks import Check


def groups() -> Iterator[tuple[str, tuple[Check, ...]]]:
    """A title for each group of checks, with its checks; those that a broker shares with a store are with the store."""
    seen: set[str] = set()
    yield from OF_EVERY_STORE
    for spec in backends.specs():
        for kind, reference in spec.checks.items():
            found = spec.load(reference).checks
            seen.update(check.id for check in found)
            if found:
                yield f"Store: {kind}", found
    yield "Every broker", (broker_checks.UNREACHABLE, broker_checks.WINDOW)
    for broker in brokers.specs():
        if broker.checks:
            found = tuple(check for check in broker.load(broker.checks).checks if check.id not in seen)
            if found:
                yield f"Broker: {broker.title}", found
    yield "Boundaries", application.BOUNDARY_CHECKS
    yield "Application", application.APPLICATION_CHECKS


def every() -> dict[str, Check]:
    """Every check by its id."""
    return {check.id: check for _, found in groups() for check in found}
