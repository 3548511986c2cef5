"""What a boundary promises, in words: its four answers, and what a retry of each operation gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from retrysafe.boundary import Boundary
from retrysafe.claims.decorator import Guarded
from retrysafe.claims.settings import BoundarySettings
from retrysafe.protocol.decisions import Decision
from retrysafe.protocol.outcomes import ModeKind
from retrysafe.protocol.records import Reject
from retrysafe.protocol.retry_table import ANSWERS, WITHHELD, Prospect, prospects

GROUNDS: dict[str, tuple[ModeKind, ...]] = {
    "transactional": (ModeKind.OWN, ModeKind.JOINED),
    "keyed": (ModeKind.KEYED,),
    "external": (ModeKind.EXTERNAL,),
}
_COVERS = {
    "transactional": "what commits in the record's own transaction",
    "keyed": "calls that carry key_for(…) to somebody who recognises it",
    "external": "effects that nobody can recognise: doubt ends as unknown",
}
_MISSING = {"error": "is refused (InvalidKey)", "pass": "runs unguarded"}


def describe(boundary: Boundary) -> dict[str, Any]:
    """A boundary's answers, its operations, and what a retry gets on each ground that its records can stand on."""
    terms = boundary._settings
    return {
        "boundary": terms.name,
        "state": _state(terms),
        "window": _window(terms),
        "concurrency": _concurrency(terms),
        "effects": f"{terms.effects}: {_COVERS[terms.effects]}",
        "scope": _scope(terms.scope),
        "secret": "set" if terms.secret else "not set",
        "quota": _quota(terms),
        "encryption": _encryption(terms),
        "shared": "with others of its name"
        if boundary.entrypoint.shared
        else "no: another of its name is refused in one process",
        "operations": [_owned(boundary, name) for name in sorted(boundary.entrypoint.owners)],
        "retries": {ground.value: outlook(terms, ground) for ground in GROUNDS[terms.effects]},
    }


def _owned(boundary: Boundary, name: str) -> dict[str, str]:
    """Who claims keys under an operation, and which."""
    owner, guarded = boundary.entrypoint.owners[name], boundary._guarded.get(name)
    told = {"entry point": owner.title} if guarded is None else operation(guarded)
    return {"operation": name, **told, **({"shared": "with others that say so"} if owner.shared else {})}


def operation(guarded: Guarded) -> dict[str, str]:
    """How a guarded function is named, and finds its key and its payload."""
    return {
        "named": "by operation=" if guarded.named else "by module and name: keys are new when either changes",
        "function": f"{guarded.function.__module__}.{getattr(guarded.function, '__qualname__', '(callable)')}",
        "key": _selected(guarded.key_by),
        "payload": "not checked" if guarded.payload_by is None else _selected(guarded.payload_by),
    }


def outlook(terms: BoundarySettings, ground: ModeKind) -> list[dict[str, str]]:
    """What a retry gets in every situation, read off the tables that decide it."""
    found = [
        {"when": one.situation, "record": one.standing.value, "retry": _answer(one, terms)}
        for one in prospects(ground, terms.on_expired)
    ]
    return [*found, {"when": "the key is missing", "record": "absent", "retry": _MISSING[terms.on_missing]}]


def _answer(prospect: Prospect, terms: BoundarySettings) -> str:
    decision = prospect.decision
    if decision is Decision.REPLAY and prospect.withheld:
        return WITHHELD
    if decision is Decision.DOUBT and terms.probe is not None:
        return f"asks probe={_selected(terms.probe)}; if that cannot tell, it {ANSWERS[decision]}"
    if decision is Decision.BUSY and not isinstance(terms.concurrency, Reject):
        return f"waits up to {terms.concurrency.seconds:g} s for its result, then {ANSWERS[decision]}"
    return ANSWERS[decision]


def _state(terms: BoundarySettings) -> str:
    able = terms.backend.store.capabilities
    fast = "; what is settled is answered from a fast store in front of it" if terms.backend.near is not None else ""
    return f"{terms.backend.address} ({able.name}; survives: {able.durability}){fast}"


def _window(terms: BoundarySettings) -> str:
    window, memory, lease = (micros / 1e6 for micros in (terms.clocks.window, terms.clocks.memory, terms.clocks.lease))
    return f"{window:g} s, memory {memory:g} s, lease {lease:g} s, on_expired={terms.on_expired!r}"


def _concurrency(terms: BoundarySettings) -> str:
    if isinstance(terms.concurrency, Reject):
        return "reject(): a simultaneous duplicate is told at once"
    return f"wait({terms.concurrency.seconds:g}): a simultaneous duplicate waits for the first one's result"


def _quota(terms: BoundarySettings) -> str:
    if terms.quota is None:
        return "none: a scope may claim any number of keys"
    rate, outstanding = terms.quota.rate, terms.quota.outstanding
    limits = [] if rate is None else [f"{rate} new keys in {terms.quota.period / 1e6:g} s"]
    limits += [] if outstanding is None else [f"{outstanding} keys kept at once"]
    return f"each scope: {', '.join(limits)}; kept {terms.backend.store.capabilities.quotas}"


def _encryption(terms: BoundarySettings) -> str:
    if terms.encryption is None:
        return "none: results are stored as they are"
    older = ", ".join(terms.encryption.ids[1:])
    return f"XAES-256-GCM with the key {terms.encryption.current}" + (f"; {older} can be read too" if older else "")


def _scope(scope: str | Callable[[], str] | None) -> str:
    if scope is None:
        return "none, unless claim(scope=) gives one"
    return repr(scope) if isinstance(scope, str) else f"what {_selected(scope)}() returns"


def _selected(given: Any) -> str:
    return given if isinstance(given, str) else str(getattr(given, "__qualname__", type(given).__qualname__))
