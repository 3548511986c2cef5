"""The lock file of `retrysafe describe`: what keys depend on, so that a change that orphans them is told beforehand."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from retrysafe.admin.describe import scope_text, selector_text, steps_of_owner
from retrysafe.claims import key_spaces
from retrysafe.claims.decorator import Guarded
from retrysafe.entrypoint import EntryPoint
from retrysafe.errors import ConfigurationError

VERSION = 1
Lock = Mapping[str, Any]


class Drift(NamedTuple):
    """One difference from the lock file: where it is, and what becomes of the keys that live."""

    where: str
    text: str


def lock_of(
    routes: Mapping[str, str], route_steps: Mapping[str, list[str]], outboxes: Mapping[str, Iterable[str]]
) -> dict[str, Any]:
    """Describe the boundaries of this process in a form that can be compared.

    Arguments:
        routes: of the application: method and path, and "guarded" or "unguarded".
        route_steps: the names of the steps of those that have any.
        outboxes: the sources of the process's outboxes, each with the types that it declares.
    """
    entries = [one for one in key_spaces.living() if isinstance(one, EntryPoint)]
    return {
        "version": VERSION,
        "boundaries": _boundaries(sorted(entries, key=lambda entry: (entry.name, *entry.origin))),
        "routes": dict(sorted(routes.items())),
        "route_steps": dict(sorted(route_steps.items())),
        "outboxes": {source: sorted(types) for source, types in sorted(outboxes.items())},
    }


def _boundaries(entries: Iterable[EntryPoint]) -> dict[str, Any]:
    """Boundaries in the order of the code, where some have one name: those of several stores, or that share it."""
    named: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for entry in entries:
        made = _boundary(entry)
        if made not in named[entry.name]:
            named[entry.name].append(made)
    return {
        name if number == 1 else f"{name}, number {number}": made
        for name, several in named.items()
        for number, made in enumerate(several, 1)
    }


def _boundary(entry: EntryPoint) -> dict[str, Any]:
    settings = entry.settings
    return {
        "store": settings.backend.kind,
        "window": settings.clocks.window / 1e6,
        "memory": settings.clocks.memory / 1e6,
        "effects": settings.effects,
        "on_expired": settings.on_expired,
        "scope": scope_text(settings.scope),
        "secret": settings.secret is not None,
        "operations": {name: _operation(entry, name, entry.guarded.get(name)) for name in sorted(entry.owners)},
    }


def _operation(entry: EntryPoint, name: str, guarded: Guarded | None) -> dict[str, Any]:
    owner = entry.owners[name]
    found: dict[str, Any] = {"owner": owner.title}
    if guarded is not None:
        payload = guarded.payload_by
        found |= {"key": selector_text(guarded.key_by), "payload": None if payload is None else selector_text(payload)}
    if steps := steps_of_owner(entry, name):
        found["steps"] = steps
    types = getattr(owner.what, "types", None)
    return found if types is None else {**found, "types": list(types)}


def read(path: str | Path) -> Lock:
    """Read a lock file. Raises `ConfigurationError` for one that is missing, or of another version."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"--lock {path}: {error}") from error
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise ConfigurationError(
            f"--lock {path} is not a lock file of version {VERSION}: write it again without --check."
        )
    try:
        list(drift(found, found))
    except (AttributeError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"--lock {path} has been changed by hand ({type(error).__name__}: {error}): write it again without --check."
        ) from error
    return found


def write(path: str | Path, lock: Lock) -> None:
    try:
        Path(path).write_text(json.dumps(lock, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--lock {path}: {error}") from error


# ---------------------------------------------------------------- comparing

_ORPHANS = "every key that lives is orphaned: a retry runs the work again"
_CHANGED = {
    "store": f"another kind of store is asked; {_ORPHANS}",
    "scope": f"keys are looked for under another scope; {_ORPHANS}",
    "secret": f"keys are hashed in another way; {_ORPHANS}",
    "effects": "attempts that are unclear now are judged by other rules",
    "on_expired": "a retry after the window is answered otherwise",
}


def drift(locked: Lock, now: Lock) -> Iterator[Drift]:
    """Yield the changes since the lock file was written. What is new orphans nothing, and is not told."""
    for name, old in locked["boundaries"].items():
        if name not in now["boundaries"]:
            yield Drift(f"boundary {name}", f"is gone or renamed; {_ORPHANS}")
        else:
            new = now["boundaries"][name]
            yield from _settings(f"boundary {name}", old, new)
            yield from _operations(name, old["operations"], new["operations"])
    for route, policy in locked["routes"].items():
        if route not in now["routes"]:
            yield Drift(f"route {route}", "is gone or renamed: a retry of a request that was sent there is not found")
        elif policy == "guarded" and now["routes"][route] != "guarded":
            yield Drift(f"route {route}", f"was guarded and is not any more; {_ORPHANS}")
        else:
            old, new = (one.get("route_steps", {}).get(route, ()) for one in (locked, now))
            yield from _steps(f"route {route}", old, new)
    for source, types in locked["outboxes"].items():
        yield from _outbox(source, types, now["outboxes"].get(source))


def _outbox(source: str, old: Iterable[str], new: Iterable[str] | None) -> Iterator[Drift]:
    where = f"outbox {source}"
    if new is None:
        yield Drift(where, "is gone or renamed: consumers take messages that are published again for new ones")
        return
    declared = set(new)
    if old and not declared:
        yield Drift(where, "declares no types any more: one that is gone, or misspelt, is told by nothing")
        return
    for gone in sorted(set(old) - declared):
        yield Drift(where, f"type {gone} is gone or renamed: consumers that wait for it are told nothing more")


def _settings(where: str, old: Lock, new: Lock) -> Iterator[Drift]:
    for name, meaning in _CHANGED.items():
        if old[name] != new[name]:
            yield Drift(where, f"{name} was {old[name]}, is {new[name]}: {meaning}")
    for name in ("window", "memory"):
        if new[name] < old[name]:
            text = f"{name} was {old[name]:g} s, is {new[name]:g} s: a retry that comes later than that is not known"
            yield Drift(where, text)


def _steps(where: str, old: Iterable[str], new: Iterable[str]) -> Iterator[Drift]:
    for gone in (step for step in old if step not in new):
        hint = f"write was={gone!r} in its step if it has another name now"
        yield Drift(where, f"step {gone} is gone or renamed: work under way is refused at its place; {hint}")


def _operations(boundary: str, old: Lock, new: Lock) -> Iterator[Drift]:
    added = [name for name in new if name not in old]
    for name, locked in old.items():
        where = f"operation {name} of boundary {boundary}"
        if name not in new:
            hint = f" If it is {added[0]} now, give that operation={name!r}." if len(added) == 1 else ""
            yield Drift(where, f"is gone or renamed; {_ORPHANS}.{hint}")
            continue
        if locked.get("key") != new[name].get("key"):
            change = f"key was {locked.get('key')}, is {new[name].get('key')}"
            yield Drift(where, f"{change}: a retry may carry another key, and run the work again")
        if locked.get("payload") != new[name].get("payload"):
            change = f"payload was {locked.get('payload')}, is {new[name].get('payload')}"
            yield Drift(where, f"{change}: a retry of a key that lives is refused (KeyReused)")
        yield from _steps(where, locked.get("steps", ()), new[name].get("steps", ()))
        for gone in sorted(set(locked.get("types", ())) - set(new[name].get("types", ()))):
            yield Drift(where, f"events of type {gone} have no handler any more")
