"""``manage.py retrysafe …``: the command line of retrysafe, in the project, with the store of its settings."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from retrysafe.backends.commands import MANAGE, quoted
from retrysafe.cli import main
from retrysafe.django import project

_DJANGOS = ("--settings", "--pythonpath")
"""Options of every command of Django's, each with a value; Django has heeded them when it gets here."""


class Command(BaseCommand):
    """Runs a command line of ``retrysafe``; ``--store`` is by default the settings' store."""

    help = "Operate retrysafe's keys and messages: all commands of `retrysafe`, with the store of the settings."
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Run it as a program, and end with its exit code."""
        try:
            code = _run(_without_djangos(argv[2:]), _program(argv[0]))
        finally:
            connections.close_all()
        sys.exit(code)

    def print_help(self, prog_name: str, subcommand: str) -> None:
        """Print our own help, for ``manage.py help retrysafe``."""
        _run(["--help"], _program(prog_name))

    def add_arguments(self, parser: Any) -> None:
        """All that follows is ours, for ``call_command("retrysafe", "keys", "list")``."""
        parser.add_argument("arguments", nargs=argparse.REMAINDER)

    def handle(self, *_: Any, **options: Any) -> None:
        """Run it for ``call_command``; raises `CommandError` with the exit code, unless that is 0."""
        out: Any = self.stdout
        err: Any = self.stderr
        out.ending = err.ending = ""
        err.style_func = None
        with redirect_stdout(out), redirect_stderr(err):
            code = _run(options["arguments"], MANAGE)
        if code:
            raise CommandError(f"retrysafe ended with exit code {code}.", returncode=code)


def _run(arguments: Sequence[str], program: str) -> int:
    return main(arguments, program=program, store=project.store(), secret=project.secret())


def _program(name: str) -> str:
    """Return the beginning of the command line, as a shell takes it again."""
    if Path(name).name == "__main__.py":
        return "python -m django retrysafe"
    return f"{'python ' * name.endswith('.py')}{quoted(name)} retrysafe"


def _without_djangos(arguments: Sequence[str]) -> list[str]:
    """The arguments before ``--`` without Django's own, and all behind it."""
    ours, rest = list[str](), iter(arguments)
    for one in rest:
        if one == "--":
            return [*ours, one, *rest]
        if one in _DJANGOS:
            next(rest, None)
        elif not one.startswith(tuple(f"{name}=" for name in _DJANGOS)):
            ours.append(one)
    return ours
