"""The command line."""

from __future__ import annotations

import argparse

from docparts.markdown import prose, table
from retrysafe import cli


def commands() -> str:
    """The verbs of the command line with their options."""
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers()
    for verb in cli.VERBS:
        cli.module_of(verb).add_to(verbs)
    return "\n".join(_verb(name, verb) for name, verb in verbs.choices.items())


def _verb(name: str, verb: argparse.ArgumentParser, level: str = "##") -> str:
    below: dict[str, argparse.ArgumentParser] = {}
    rows = []
    for action in verb._actions:
        if isinstance(action, argparse._SubParsersAction):
            below = dict(action.choices)
        elif action.dest != "help":
            option = " ".join([*action.option_strings[:1], *([str(action.metavar)] if action.metavar else [])])
            required = action.required and action.nargs != "..."  # of those Pythons differ
            rows.append((f"`{option}`", (action.help or "") + (" (required)" if required else "")))
    options = table(("option", "meaning"), rows) if rows else ""
    parts = [f"{level} `retrysafe {name}`\n\n{prose(verb.description)}\n{options}"]
    return "\n".join([*parts, *(_verb(f"{name} {inner}", one, f"{level}#") for inner, one in below.items())])
