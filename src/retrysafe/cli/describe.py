"""`retrysafe describe`: print the settings and guarantees of your boundaries, and what a retry gets in every case.

Imports your module, which may be in the current directory; opens no connection. Its applications and outboxes are
described too: each route for POST and PATCH, whether it is guarded, and each type of message. With --lock it writes a
file of every boundary, operation, window, route and type that the import has made; with --check it compares with that
file, and says which change orphans keys. Exit code: 0, 1 if --check finds a change, or 2 if the module, boundary or
file was not found.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from retrysafe.admin import lock
from retrysafe.admin.describe import describe
from retrysafe.boundary import Boundary
from retrysafe.claims import key_spaces
from retrysafe.cli import application
from retrysafe.cli.opening import import_module
from retrysafe.cli.options import add_option, add_verb
from retrysafe.cli.rendering import as_json, lines, say, table
from retrysafe.entrypoint import EntryPoint
from retrysafe.errors import ConfigurationError


def add_to(verbs: Any) -> None:
    parser = add_verb(verbs, "describe", "what your boundaries promise", run, __doc__)
    add_option(parser, "target MODULE[:BOUNDARY]", "a module, or one boundary in it: shop.payments:charges")
    add_option(parser, "--lock FILE", "write what keys depend on to FILE, for --check")
    add_option(parser, "--check", "compare with the FILE of --lock; exit 1 for a change")
    add_option(parser, "--json", "print JSON, one object per line")


def run(options: argparse.Namespace) -> int:
    if options.check and not options.lock:
        raise ConfigurationError("--check needs --lock FILE: the file to compare with.")
    if options.lock:
        return _lock(options)
    name, _, attribute = options.target.partition(":")
    module = import_module(name, f"Module {name!r} could not be imported")
    boundaries = [describe(one) for one in _boundaries(module, attribute)]
    around = [] if attribute else application.describe(vars(module).values())
    if options.json:
        say(as_json(one) for one in (*boundaries, *around))
        return 0
    texts = [*map(_as_text, boundaries), *map(lines, around)]
    for number, text in enumerate(texts):
        say([""] * (number > 0))
        say(text)
    return 0


def _lock(options: argparse.Namespace) -> int:
    name = options.target.partition(":")[0]
    module = import_module(name, f"Module {name!r} could not be imported")
    now = application.lock_file(vars(module).values())
    if not options.check:
        lock.write(options.lock, now)
        return 0
    found = list(lock.drift(lock.read(options.lock), now))
    if options.json:
        say(as_json(one._asdict()) for one in found)
    else:
        say([f"{one.where}: {one.text}" for one in found] or ["no drift"])
    return 1 if found else 0


def _boundaries(module: ModuleType, attribute: str) -> list[EntryPoint]:
    """The boundary of a name; or all of the module: those among its names, and those that it gave away unnamed."""
    if attribute:
        return [_boundary_at(module, attribute).entrypoint]
    named = {id(one.entrypoint): one.entrypoint for one in vars(module).values() if isinstance(one, Boundary)}
    built = (one for one in key_spaces.living() if isinstance(one, EntryPoint))
    found = list((named | {id(one): one for one in built if one.origin.module == module.__name__}).values())
    if not found:
        raise ConfigurationError(f"Module {module.__name__!r} defines no boundary.")
    return found


def _boundary_at(module: ModuleType, attribute: str) -> Boundary:
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Boundary):
        named = [name for name, one in vars(module).items() if isinstance(one, Boundary)]
        raise ConfigurationError(
            f"{attribute!r} is not a boundary in module {module.__name__!r}. "
            f"Its boundaries: {', '.join(named) or 'none'}. All that it makes, applications too: "
            f"retrysafe describe {module.__name__}"
        )
    return found


def _as_text(described: dict[str, Any]) -> Iterator[str]:
    operations, retries = described.pop("operations"), described.pop("retries")
    yield from lines(described)
    for one in operations:
        for part in ({**one, "events": None}, *one.get("events", ())):
            yield ""
            yield from lines(part)
    for mode, outlook in retries.items():
        yield ""
        yield f"With the record in {mode}:"
        yield from table([tuple(one.values()) for one in outlook], ("when", "record", "a retry"))
