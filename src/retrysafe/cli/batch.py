"""`retrysafe batch`: list the last load of each part of a table, and show a run of loads.

The loads are read in a SQL target, the runs in the store of their boundary. No command resumes a run: the code is in
your application, and the same call with the same run= goes on, as under `retrysafe run`. Exit code: 0 if something was
found; 1 if the run was not; 2 if the command could not be carried out.
"""

from __future__ import annotations

import argparse
from typing import Any

from retrysafe.admin.rendering import details
from retrysafe.cli.keys import add_filter
from retrysafe.cli.opening import SECRET, add_store_verb, commands_of, open_operator, store_of
from retrysafe.cli.options import add_option, add_verbs
from retrysafe.cli.progress import show_progress
from retrysafe.cli.rendering import as_json, lines, say, table
from retrysafe.errors import ConfigurationError
from retrysafe.loads.sql import marks_of
from retrysafe.loads.targets import KINDS
from retrysafe.loads.work import in_scope
from retrysafe.messaging.operators import Operating

_HEADS = ("table", "part", "fence", "run", "rows", "version", "upto")
_SHOWN = ("key_hash", "boundary", "operation", "scope", "effective_state", "attempts", "age", "why", "retry")


def add_to(verbs: Any) -> None:
    below = add_verbs(verbs, "batch", "list the loads of tables, and show their runs", __doc__)
    parser = add_store_verb(below, "runs", "list the last load of each part of a table", run_runs)
    _add_target(parser)
    add_option(parser, "--table NAME", "only of this table")
    add_option(parser, "--limit N", "how many at most (default: 100; 0: all)", 100)
    parser = add_store_verb(below, "show", "show the parts that a run was the last to load, and its state", run_show)
    _add_target(parser)
    add_option(parser, "run_id RUN", "the run, as in load(run=…)")
    add_filter(parser)
    add_option(parser, "--secret-env NAME", f"the environment variable with the boundary's secret (default: {SECRET})")


def _add_target(parser: argparse.ArgumentParser) -> None:
    add_option(parser, "--target URL", "the target of the loads, a SQL database (default: the store)")


def run_runs(options: argparse.Namespace) -> int:
    if options.limit < 0:
        raise ConfigurationError("--limit is a number of loads, or 0 for all.")
    found = _parts(options, **({} if options.table is None else {"target": options.table}))
    if options.json:
        say(map(as_json, found))
        return 0
    _print(found)
    more = " or more: raise --limit" if len(found) == options.limit else ""
    print(f"{len(found)} {'part' if len(found) == 1 else 'parts'}{more}")
    return 0


def run_show(options: argparse.Namespace) -> int:
    options.limit = 0
    parts = _parts(options, run=in_scope(options.run_id, options.scope or ""))
    with open_operator(options) as operator, show_progress(lambda: "looking for the run"):
        located = operator.locate(
            options.run_id,
            boundary=options.boundary,
            operation=options.operation,
            scope=options.scope,
            look="until found",
        )
    records = [{name: details(record)[name] for name in _SHOWN} for record in located]
    if options.json:
        print(as_json({"run": options.run_id, "parts": parts, "records": records}))
    else:
        if parts:
            _print(parts)
        else:
            print("No part has this run as its last load.")
        for record in records:
            say(["", *lines(record), commands_of(options).line("keys show", [("hash", record["key_hash"])])])
    return 0 if parts or records else 1


def _parts(options: argparse.Namespace, **named: str) -> list[dict[str, Any]]:
    target = options.target or store_of(options)
    if target.partition(":")[0] in KINDS:
        raise ConfigurationError(f"{target} is no SQL database: only such a target lists its loads.")
    with Operating(target, observers=()) as operating, show_progress(lambda: "reading the loads"):
        found = operating.look(lambda backend: marks_of(backend, options.limit, **named))
    return [dict(zip(_HEADS, (of, part, *mark), strict=True)) for of, part, mark in found]


def _print(parts: list[dict[str, Any]]) -> None:
    say(table([["-" if cell is None else str(cell) for cell in one.values()] for one in parts], _HEADS))
