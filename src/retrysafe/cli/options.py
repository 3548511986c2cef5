"""Verbs and options of the command line, each in a line."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

Run = Callable[[argparse.Namespace], int]


class Parser(argparse.ArgumentParser):
    """A parser that suggests a verb, a choice or an option for a misspelt one."""

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Any = None, namespace: Any = None
    ) -> Any:
        """Refuse unknown options where the known ones are: argparse leaves it to the program's own parser."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            meant = suggest(unknown[0].partition("=")[0], self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Print usage and message, and exit with 2."""
        if choice := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)$", message):
            message += suggest(choice[1], re.findall(r"[\w-]+", choice[2]))
        super().error(message)


def suggest(word: str, known: Iterable[str]) -> str:
    """The end of a message about a misspelt word; nothing if no known one is like it."""
    return "".join(f"; did you mean {one}?" for one in difflib.get_close_matches(word, known, 1))


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


def add_json_format(parser: argparse.ArgumentParser) -> None:
    """Add --json to a verb with --format, because the other verbs have it."""
    parser.add_argument("--json", help="the same as --format json", dest="format", action="store_const", const="json")


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
