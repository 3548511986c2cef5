"""The checks of a store that `retrysafe doctor` asks, and those that every store has."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from retrysafe.protocol.checks import Check, Facts, Severity
from retrysafe.protocol.procedures import count, examine
from retrysafe.protocol.records import Count, EffectiveState, Filter, counted
from retrysafe.protocol.requests import Ask, Program, ask

if TYPE_CHECKING:
    from retrysafe.backends.backend import Backend

MOST_SKEW = 1.0
"""Seconds between the store's clock and this machine's above which the difference is a finding."""
MOST_COUNTED = 1000
"""Unknown keys that are counted at most, and records that are looked at for them where they have no index."""
_UNTESTED = "retrysafe's statements for it were parsed, and no server has performed them."
_UNKNOWN = Filter(states=frozenset({EffectiveState.UNKNOWN}))


class Examination(NamedTuple):
    """The checks of one kind of store.

    checks: each judges the facts.
    facts: asks the store for them. ``findings`` is there already.
    apart: finds facts that need more than one connection of our own; called for stores that are given as a URL.
    clock: from the store to what asks for its time, in microseconds since 1970; None where it cannot be asked.
    counts_unknown: whether unknown keys are counted; not where every record that is read is billed.
    """

    checks: tuple[Check, ...]
    facts: Callable[[Backend], Program[dict[str, Any]]]
    apart: Callable[[Backend], Mapping[str, Any]] | None = None
    clock: Callable[[Any], Ask[int]] | None = None
    counts_unknown: bool = True


def no_facts(backend: Backend) -> Program[dict[str, Any]]:
    """For a kind whose checks judge the store's own findings alone."""
    yield from ()
    return {}


def gather(backend: Backend, examination: Examination, leases: list[float]) -> Program[Facts]:
    """The facts of a store. ``leases`` are those of the boundaries that use it, in seconds."""
    shown = backend.commands
    facts: dict[str, Any] = {"program": shown.program, "store": shown.store, "leases": leases, "skew": 0.0}
    facts["never_run"] = backend.store.capabilities.never_run
    schema = facts["schema"] = yield from backend.tables.schema()
    facts["findings"] = yield from examine(backend.store)
    if examination.clock is not None:
        before = time.time()
        now = yield from ask(examination.clock(backend.store))
        after = time.time()
        ahead, within = now / 1e6 - (before + after) / 2, (after - before) / 2
        facts["skew"] = max(0.0, abs(ahead) - within) * (1 if ahead >= 0 else -1)
    if schema is None or schema.version >= schema.needed:
        if examination.counts_unknown:
            facts["unknown"] = yield from count(backend.store, _UNKNOWN, MOST_COUNTED)
        facts.update((yield from examination.facts(backend)))
    return facts


def _find_outdated(facts: Facts) -> str | None:
    schema = facts["schema"]
    if schema is None or schema.version >= schema.needed:
        return None
    return f"The schema has version {schema.version}; this retrysafe needs {schema.needed}."


def _find_skew(facts: Facts) -> str | None:
    skew: float = facts["skew"]
    if abs(skew) <= MOST_SKEW:
        return None
    way = "ahead of" if skew > 0 else "behind"
    return f"The store's clock is at least {abs(skew):.1f} s {way} this machine's."


def _in_doubt(facts: Facts) -> str | None:
    unknown: Count | None = facts.get("unknown")
    if unknown is None or not unknown.records:
        return None
    number = counted(unknown.records, capped=unknown.capped)
    keys = "key is" if number == "1" else "keys are"
    effects = "its effect" if number == "1" else "their effects"
    return f"{number} {keys} unknown: {effects} may or may not have happened, and every retry is refused."


UNREACHABLE = Check(
    "store-unreachable",
    "Does the store answer, and let us in?",
    Severity.ERROR,
    "Start the store, or correct the address, user and password in store=; try  {program} status --store {store}",
    "how-to/troubleshooting.md",
    lambda facts: facts.get("unreachable"),
)
CHECKS = (
    UNREACHABLE,
    Check(
        "store-schema",
        "Is the schema as new as this version needs?",
        Severity.ERROR,
        "{program} migrate --store {store}",
        "how-to/migrate-the-schema.md",
        _find_outdated,
    ),
    Check(
        "store-clock",
        "Do the clocks of the store and of this machine agree within a second?",
        Severity.WARNING,
        "Run a time service such as chrony on both machines. Leases and windows are unharmed: they are reckoned by the "
        "store's clock alone.",
        "explanation/three-clocks.md",
        _find_skew,
    ),
    Check(
        "store-never-run",
        "Have retrysafe's tests run on this kind of store, or on a stand-in for it?",
        Severity.WARNING,
        "{program} conformance store URL  on an empty database of the same server, and tell us what it prints",
        "explanation/which-store.md",
        lambda facts: _UNTESTED if facts.get("never_run") else None,
    ),
    Check(
        "store-unknown",
        "Is the outcome of every key known?",
        Severity.WARNING,
        "{program} keys list --state unknown --store {store}  and, when you know what became of a key, "
        "{program} keys resolve --hash … --as … --store {store}",
        "how-to/settle-an-unknown-outcome.md",
        _in_doubt,
    ),
)
"""The checks that every store has."""
