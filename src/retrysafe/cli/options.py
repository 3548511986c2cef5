"""Verbs and options of the command line, each in a line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

Run = Callable[[argparse.Namespace], int]


def add_verb(verbs: Any, name: str, text: str, run: Run, description: str | None = None) -> argparse.ArgumentParser:
    """Add a verb; ``text`` is its help, and its description if that is not given."""
    parser = _add_parser(verbs, name, text, description or f"{text[0].upper()}{text[1:]}.")
    parser.set_defaults(run=run)
    return parser


def add_verbs(verbs: Any, name: str, text: str, description: str | None) -> Any:
    """Add a verb that has verbs below it, and return the parser group for those."""
    return _add_parser(verbs, name, text, description or "").add_subparsers(
        title="verbs", metavar="VERB", required=True
    )


def _add_parser(verbs: Any, name: str, text: str, description: str) -> argparse.ArgumentParser:
    """A description of several lines is the docstring of a module, and is printed as it stands there."""
    form = argparse.RawDescriptionHelpFormatter if "\n" in description else argparse.HelpFormatter
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=description, formatter_class=form)
    return parser


def add_option(parser: Any, named: str, text: str, default: Any = None, **settings: Any) -> None:
    """Add an option: "--limit N" takes a number, "--topic NAME..." may be repeated, "--json" is a flag.

    A name without hyphens is an argument. The default is told behind ``text``, unless that does so in its own words;
    options take values of the type of a number that is their default.
    """
    name, _, metavar = named.partition(" ")
    if metavar.endswith("..."):
        settings |= {"action": "append", "default": []}
    elif not metavar and "choices" not in settings:
        settings["action"] = "store_true"
    if shown := metavar.removesuffix("..."):
        settings["metavar"] = shown
    if metavar == "N" or isinstance(default, int | float):
        settings.setdefault("type", float if isinstance(default, float) else int)
    if default is not None:
        settings["default"] = default
        shown = f"{default:g}" if isinstance(default, float) else default
        text += "" if shown in ("", argparse.SUPPRESS) or "default" in text else f" (default: {shown})"
    parser.add_argument(name, help=text, **settings)
