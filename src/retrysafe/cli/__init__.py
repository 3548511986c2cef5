"""The command line: `retrysafe <verb>`, one module per verb."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import retrysafe
from retrysafe.backends.commands import PROGRAM
from retrysafe.cli.options import Parser
from retrysafe.cli.stopping import heed_as_first_process
from retrysafe.errors import Postponed, RetrysafeError

VERBS = (
    "alerts",
    "audit",
    "batch",
    "bench",
    "cdc",
    "completion",
    "conformance",
    "console",
    "demo",
    "describe",
    "doctor",
    "gateway",
    "inbox",
    "keys",
    "migrate",
    "outbox",
    "plan",
    "relay",
    "requests",
    "run",
    "runs",
    "scan",
    "status",
    "sweep",
    "topics",
)


def main(
    argv: Sequence[str] | None = None,
    *,
    program: str = PROGRAM,
    store: Any = None,
    secret: str | bytes | None = None,
) -> int:
    """Run one command line and return its exit code; 2 means that it could not be carried out.

    ``program`` is what the command line begins with where it is another program's; ``store`` and ``secret`` are the
    defaults of --store and of the boundaries' secret there.
    """
    if sys.stderr is None:  # it was closed before we began, and what is said there would go to stdout
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    if threading.current_thread() is threading.main_thread():
        heed_as_first_process()
    words = sys.argv[1:] if argv is None else argv
    parser = make_parser(program, verbs_in(words))
    parser.set_defaults(program=program, default_store=store, default_secret=secret)
    options = parser.parse_args(words)
    output = sys.stdout  # None in a process that was started with it closed
    try:
        code: int = options.run(options)
        if output is not None:
            output.flush()
        return code
    except RetrysafeError as error:
        return fail(error.detail or str(error))
    except Postponed as postponed:
        fail(f"{postponed.detail} Try again after {postponed.retry_after:.0f} s.")
        return 75
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has closed the pipe
        if output is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
        return 141


def make_parser(program: str, names: Iterable[str] = VERBS) -> Parser:
    parser = Parser(prog=program, description=(retrysafe.__doc__ or "").strip())
    parser.add_argument("--version", action="version", version=f"retrysafe {retrysafe.__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    for name in names:
        module_of(name).add_to(verbs)
    return parser


def verbs_in(words: Sequence[str]) -> Sequence[str]:
    """The verb that a command line names, or all of them if it names none: what is not needed is not imported."""
    first = next((word for word in words if not word.startswith("-")), None)
    return (first,) if first in VERBS else VERBS


def module_of(verb: str) -> ModuleType:
    """The module of a verb: ``add_to`` adds its options, and each ``run…`` carries it out and returns the exit code."""
    return import_module(f"retrysafe.cli.{verb}")


def fail(message: str) -> int:
    """Print the reason of a failure as one line on stderr, and return exit code 2."""
    print(f"retrysafe: {' '.join(message.split())}", file=sys.stderr)
    return 2
