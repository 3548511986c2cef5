"""Describe a boundary in words: its settings and guarantees, and what a retry of each operation gets."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from retrysafe.boundary import Boundary
from retrysafe.claims.declaration import declaration_of
from retrysafe.claims.decorator import Guarded
from retrysafe.claims.settings import BoundarySettings
from retrysafe.entrypoint import EntryPoint
from retrysafe.protocol.decisions import Decision
from retrysafe.protocol.outcomes import ModeKind
from retrysafe.protocol.records import Reject
from retrysafe.protocol.retry_table import ANSWERS, WITHHELD, Prospect, prospects

MODES: dict[str, tuple[ModeKind, ...]] = {
    "transactional": (ModeKind.OWN, ModeKind.JOINED),
    "keyed": (ModeKind.KEYED,),
    "external": (ModeKind.EXTERNAL,),
}
_COVERS = {
    "transactional": "what commits in the record's own transaction",
    "keyed": "calls that carry key_for(…) to a receiver that recognises it",
    "external": "effects without a derived key: an unclear outcome becomes unknown",
}
_STEPS = frozenset({"step", "sleep", "asleep", "wait_for", "await_for"})
_MISSING = {"error": "is refused (InvalidKey)", "pass": "runs unguarded"}


def describe(boundary: Boundary | EntryPoint) -> dict[str, Any]:
    """A boundary's settings, its operations, and what a retry gets in each claim mode."""
    entry = boundary.entrypoint if isinstance(boundary, Boundary) else boundary
    settings = entry.settings
    return {
        **four_answers(settings),
        "scope": scope_text(settings.scope),
        "secret": "set" if settings.secret else "not set",
        "quota": _quota(settings),
        "encryption": _encryption(settings),
        "shared": "with others of its name"
        if entry.shared
        else "no: a second boundary of this name is refused in one process",
        "operations": [_by_owner(entry, name) for name in sorted(entry.owners)],
        "retries": {mode.value: outlook(settings, mode) for mode in MODES[settings.effects]},
    }


def four_answers(settings: BoundarySettings) -> dict[str, str]:
    """The name of a boundary, with its state, window, concurrency and effects."""
    return {
        "boundary": settings.name,
        "state": _state(settings),
        "window": _window(settings),
        "concurrency": _concurrency(settings),
        "effects": f"{settings.effects}: {_COVERS[settings.effects]}",
    }


def _by_owner(entry: EntryPoint, name: str) -> dict[str, Any]:
    """The function or entry point that claims keys under an operation."""
    owner, guarded = entry.owners[name], entry.guarded.get(name)
    told = {"entry point": owner.title, "key": owner.key} if guarded is None else operation(guarded)
    names = steps_of_owner(entry, name)
    handlers: Mapping[str, object] = getattr(owner.what, "handlers", None) or {}
    return {
        "operation": name,
        **purpose_of(owner.what),
        **told,
        **({"steps": ", ".join(names)} if names else {}),
        **({"shared": "with others that set shared=True"} if owner.shared else {}),
        **({"events": [{"event": kind, **purpose_of(handlers[kind])} for kind in handlers]} if handlers else {}),
    }


def describe_route(route: str, policy: str, handler: object) -> dict[str, str]:
    names = steps_of(handler)
    return {"route": route, "policy": policy, **({"steps": ", ".join(names)} if names else {}), **purpose_of(handler)}


def purpose_of(what: object) -> dict[str, str]:
    """Return the team's declaration of an operation; of a function without one, the first line of its docstring."""
    found = declaration_of(what)
    said = {"sentence": found.sentence, "safety": found.safety or "", "side effects": ", ".join(found.side_effects)}
    return {title: text for title, text in said.items() if text}


def operation(guarded: Guarded) -> dict[str, str]:
    """The name of a guarded function's operation, and where its key and payload come from."""
    return {
        "named": "by operation="
        if guarded.is_operation_given
        else "by module and name: keys are new when either changes",
        "function": f"{guarded.function.__module__}.{getattr(guarded.function, '__qualname__', '(callable)')}",
        "key": selector_text(guarded.key_by),
        "payload": "not checked" if guarded.payload_by is None else selector_text(guarded.payload_by),
    }


def steps_of_owner(entry: EntryPoint, name: str) -> list[str]:
    """The names of steps of the function, the handler or the handlers behind an operation."""
    owner, guarded = entry.owners[name].what, entry.guarded.get(name)
    handlers = getattr(owner, "handlers", None) or {"": owner if guarded is None else guarded.function}
    return list(dict.fromkeys(step for one in handlers.values() for step in steps_of(one)))


def steps_of(function: Any) -> list[str]:
    """The names of steps that a function's own source asks for as literals, old ones (``was=``) among them.

    A step of a function that it calls, or whose name is computed, is not seen.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return []
    calls = (one for one in ast.walk(tree) if isinstance(one, ast.Call) and _name_function(one) in _STEPS)
    given = (
        node for one in calls for node in (*one.args[:1], *(word.value for word in one.keywords if word.arg == "was"))
    )
    names = (one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str))
    return list(dict.fromkeys(names))


def _name_function(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def outlook(settings: BoundarySettings, mode: ModeKind) -> list[dict[str, str]]:
    """List the answer to a retry in every situation, from the retry table."""
    found = [
        {"when": one.situation, "record": one.standing.value, "retry": _answer(one, settings)}
        for one in prospects(mode, settings.on_expired)
    ]
    return [*found, {"when": "the key is missing", "record": "absent", "retry": _MISSING[settings.on_missing]}]


def _answer(prospect: Prospect, settings: BoundarySettings) -> str:
    decision = prospect.decision
    if decision is Decision.REPLAY and prospect.withheld:
        return WITHHELD
    if decision is Decision.DOUBT and settings.probe is not None:
        return f"asks probe={selector_text(settings.probe)}; if the probe does not know, it {ANSWERS[decision]}"
    if decision is Decision.BUSY and not isinstance(settings.concurrency, Reject):
        return f"waits up to {settings.concurrency.seconds:g} s for its result, then {ANSWERS[decision]}"
    return ANSWERS[decision]


def _state(settings: BoundarySettings) -> str:
    able = settings.backend.store.capabilities
    fast = (
        "; replays of settled keys come from a fast store in front of it" if settings.backend.cache is not None else ""
    )
    tested = f"; tested on {able.tested_on}" if able.tested_on else ""
    return f"{settings.backend.address} ({able.name}; survives: {able.durability}{tested}){fast}"


def _window(settings: BoundarySettings) -> str:
    window, memory, lease = (
        micros / 1e6 for micros in (settings.clocks.window, settings.clocks.memory, settings.clocks.lease)
    )
    return f"{window:g} s, memory {memory:g} s, lease {lease:g} s, on_expired={settings.on_expired!r}"


def _concurrency(settings: BoundarySettings) -> str:
    if isinstance(settings.concurrency, Reject):
        return "reject(): a simultaneous duplicate gets InProgress immediately"
    return f"wait({settings.concurrency.seconds:g}): a simultaneous duplicate waits for the first one's result"


def _quota(settings: BoundarySettings) -> str:
    if settings.quota is None:
        return "none: a scope may claim any number of keys"
    rate, outstanding = settings.quota.rate, settings.quota.outstanding
    limits = [] if rate is None else [f"{rate} new keys in {settings.quota.period / 1e6:g} s"]
    limits += [] if outstanding is None else [f"{outstanding} keys kept"]
    return f"each scope: {', '.join(limits)}; kept {settings.backend.store.capabilities.quotas}"


def _encryption(settings: BoundarySettings) -> str:
    if settings.encryption is None:
        return "none: results are stored as they are"
    older = ", ".join(settings.encryption.ids[1:])
    return f"XAES-256-GCM with the key {settings.encryption.current}" + (f"; {older} can be read too" if older else "")


def scope_text(scope: str | Callable[[], str] | None) -> str:
    if scope is None:
        return "none, unless claim(scope=) gives one"
    return repr(scope) if isinstance(scope, str) else f"what {selector_text(scope)}() returns"


def selector_text(given: Any) -> str:
    """A selector in words: its path, or the name of its function."""
    return given if isinstance(given, str) else str(getattr(given, "__qualname__", type(given).__qualname__))
