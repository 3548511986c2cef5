"""Command lines that are shown to be pasted into a shell: quoted, with their store, and never with a password.

A store whose URL cannot be shown, or is not known, is named as the environment variable that operators keep it in.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from retrysafe import lazy
from retrysafe.backends.urls import without_password

STORE = "RETRYSAFE_STORE"
"""The environment variable that the command line reads the store's URL from."""
WHY = "WHY"
"""Stands in a command for a reason, which only the operator knows."""
PROGRAM, MANAGE = "retrysafe", "python manage.py retrysafe"


class Commands(NamedTuple):
    """The beginning of the commands that are shown, and the name of their store; empty if the shell knows it."""

    program: str = PROGRAM
    store: str = ""

    def line(self, verb: str, options: Iterable[tuple[str, str]] = (), *arguments: str) -> str:
        """A command line; an option with an empty value is a flag."""
        given = [_option(name, value) for name, value in options]
        store = [f"--store {self.store}"] if self.store else []
        behind = ["--"] * any(one.startswith("-") for one in arguments)
        return " ".join([self.program, verb, *given, *store, *behind, *map(quoted, arguments)])


def naming(address: str, program: str = PROGRAM) -> Commands:
    """The commands for the store of a URL; an address that is not the whole of one is that in the environment."""
    whole = (
        "://" in address and not any(mark in address for mark in ("***", "…")) and without_password(address) == address
    )
    return Commands(program, quoted(address) if whole else f'"${STORE}"')


def of_alias(alias: str) -> Commands:
    return Commands(MANAGE, quoted(alias))


def quoted(text: str) -> str:
    """A text as one word of a shell, on one line: what cannot be printed is escaped as bash and zsh read it."""
    if text.isprintable():
        return lazy.shlex.quote(text)
    plain = (
        mark if mark.isascii() and mark.isprintable() and mark not in "'\\" else _bytes(mark.encode("utf-8", "replace"))
        for mark in text
    )
    return f"$'{''.join(plain)}'"


def _bytes(encoded: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in encoded)


def _option(name: str, value: str) -> str:
    if not value:
        return f"--{name}"
    between = "=" if value.startswith("-") else " "
    return f"--{name}{between}{quoted(value)}"
