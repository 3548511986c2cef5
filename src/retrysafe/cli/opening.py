"""Options shared by the verbs that open a store: store, secret, actor and audit file."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from retrysafe.admin.audit import AuditFile
from retrysafe.admin.operator import Operator
from retrysafe.backends.commands import MANAGE, PROGRAM, STORE, WHY, Commands, naming, quoted
from retrysafe.claims.encryption import Keyring
from retrysafe.claims.settings import layered
from retrysafe.cli.options import Run, add_option, add_verb
from retrysafe.cli.rendering import plain
from retrysafe.errors import ConfigurationError

PROJECT = "DJANGO_SETTINGS_MODULE"
SECRET, AUDIT = "RETRYSAFE_SECRET", "RETRYSAFE_AUDIT"


def add_store_option(parser: argparse.ArgumentParser) -> None:
    add_option(parser, "--store URL", f"the store, as in Boundary(store=…) (default: ${STORE})")


def add_store(parser: argparse.ArgumentParser) -> None:
    add_store_option(parser)
    add_option(parser, "--json", "print JSON, one object per line")


def add_store_verb(verbs: Any, name: str, text: str, run: Run) -> argparse.ArgumentParser:
    parser = add_verb(verbs, name, text, run)
    add_store(parser)
    return parser


def add_audit(parser: argparse.ArgumentParser) -> None:
    add_reason(parser, "why, for the audit")
    add_option(parser, "--actor NAME", "the name of the operator in the audit (default: user@host)")
    add_option(parser, "--audit FILE", f"append the audit to FILE (default: ${AUDIT}, if set)")


def add_reason(parser: argparse.ArgumentParser, text: str) -> None:
    """Add --reason, which takes no placeholder of a command that was pasted."""
    add_option(parser, "--reason TEXT", text, "", type=_reason)


def _reason(text: str) -> str:
    if text.strip() == WHY:
        raise argparse.ArgumentTypeError(f"write how you know in place of {WHY}. Nothing was changed.")
    return text


def store_of(options: argparse.Namespace) -> Any:
    """The store: from the option, or where the command line is a framework's from its settings, or the environment."""
    store = options.store or getattr(options, "default_store", None) or os.environ.get(STORE)
    if options.store == "":
        raise ConfigurationError(
            f"--store is empty: set the variable that it comes from to the store's URL, as in  export {STORE}='…'"
        )
    if not store:
        raise ConfigurationError(f"--store is missing: give the store's URL, or set {STORE}.")
    if "://" not in str(store):  # an alias of Django's
        _set_up_project()
    return store


def commands_of(options: argparse.Namespace) -> Commands:
    """The commands that are shown for the store of these options: it is named as it was here."""
    program = getattr(options, "program", PROGRAM)
    if not options.store:
        return Commands(program)
    return naming(options.store, program) if "://" in options.store else Commands(program, quoted(options.store))


def open_operator(options: argparse.Namespace, audit: AuditLog | None = None) -> Operator:
    """Open the operator that the options describe. It has no observers: the audit log reports the changes."""
    actor, fast = getattr(options, "actor", None), getattr(options, "fast", None)
    name = getattr(options, "fast_name", None)
    if bool(fast) != bool(name):
        raise ConfigurationError("--fast and --fast-name go together: both as given to layered(…, name=…).")
    store = layered(fast, store_of(options), name=name) if fast and name else store_of(options)
    return Operator(
        store, actor=actor, observers=(), secret=secret_of(options), encryption=keyring_of(options), audit=audit
    )


def keyring_of(options: argparse.Namespace) -> Keyring | None:
    """Read only if an option names it: a boundary without encryption= could not read an encrypted answer."""
    named: str | None = getattr(options, "encryption_keys_env", None)
    return None if named is None else Keyring.from_env(named)


def secret_of(options: argparse.Namespace) -> str | bytes | None:
    """The secret of boundaries, from the environment variable that --secret-env names."""
    named: str | None = getattr(options, "secret_env", None)
    if named is not None and named not in os.environ:
        raise ConfigurationError(f"--secret-env {named}: the environment variable is not set.")
    return os.environ.get(named or SECRET) or getattr(options, "default_secret", None)


def ask(warning: str, question: str, options: argparse.Namespace) -> bool:
    """Ask for a confirmation that --yes has not given beforehand."""
    if options.yes:
        return True
    if not sys.stdin.isatty():
        raise ConfigurationError(f"{warning} Nothing was changed. Confirm with --yes.")
    print(plain(f"{warning} {question} [y/N] "), end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


class AuditLog:
    """Writes each entry to the audit file, if one is given, and each outcome to stderr; keeps the last entry."""

    def __init__(self, options: argparse.Namespace) -> None:
        path = options.audit or os.environ.get(AUDIT)
        self._file = None if not path else AuditFile(path)
        self._path = path
        self.last: Mapping[str, Any] = {}

    def __call__(self, entry: Mapping[str, Any], /) -> None:
        """Write one entry, to the file first: a change is made only if its intent is on disk."""
        if self._file is not None:
            try:
                self._file(entry)
            except OSError as error:
                raise ConfigurationError(self._complaint(entry, error)) from error
        if entry["audit"] == "outcome":
            print(json.dumps(entry, ensure_ascii=False), file=sys.stderr)
        self.last = entry

    def _complaint(self, entry: Mapping[str, Any], error: OSError) -> str:
        made = "Nothing was changed" if entry["audit"] == "intent" else f"The change was made ({entry.get('done')})"
        return f"--audit {self._path}: {error}. {made}."


def load_object(option: str, target: str) -> Any:
    """Import the object that ``module:attribute`` names; the working directory is searched too."""
    name, colon, attribute = target.partition(":")
    if not colon or not attribute:
        module, _, last = target.rpartition(".")
        raise ConfigurationError(f"{option} {target}: write MODULE:NAME, such as {module or name}:{last or 'handle'}.")
    found: Any = import_module(name, f"{option} {target}")
    try:
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise ConfigurationError(f"{option} {target}: {type(error).__name__}: {error}") from error
    return found


def import_module(name: str, named: str) -> ModuleType:
    """Import one of your modules from the working directory too; a project of Django is set up before.

    Raises `ConfigurationError`, which begins with ``named``.
    """
    _search_here()
    _set_up_project()
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a script that ends when it is imported, too
        kind = type(error)
        hint = f" Set {PROJECT}, or use {MANAGE}." if kind.__module__.startswith("django.") else ""
        raise ConfigurationError(f"{named}: {kind.__name__}: {error}{hint}") from error


def _search_here() -> None:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def _set_up_project() -> None:
    settings = os.environ.get(PROJECT)
    if not settings:
        return
    _search_here()
    try:
        importlib.import_module("django").setup()
    except Exception as error:
        raise ConfigurationError(
            f"{PROJECT} is {settings!r}, and Django could not be set up with it: {type(error).__name__}: {error}. "
            "Run this in the project's directory, or unset the variable if this is no project of Django."
        ) from error
