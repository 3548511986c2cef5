"""`retrysafe audit`: compare what happened, as a business table or a CSV file lists it, with the records.

Names effects without a record, completed records without an effect, and keys with more than one effect. Exit code 0:
they agree; 1: they differ.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

from retrysafe.admin import effect_rows
from retrysafe.admin.reconcile import Difference, Found, Reconciliation
from retrysafe.cli.opening import SECRET, add_store, open_operator
from retrysafe.cli.options import add_option, add_verb
from retrysafe.cli.progress import show_progress
from retrysafe.cli.rendering import as_json
from retrysafe.errors import ConfigurationError
from retrysafe.protocol import durations
from retrysafe.protocol.records import Filter


def add_to(verbs: Any) -> None:
    parser = add_verb(verbs, "audit", "compare a business table with the records", run, __doc__)
    add_store(parser)
    add_option(parser, "--boundary NAME", "the boundary of the keys", required=True)
    add_option(parser, "--operation NAME", "their operation (default: the boundary's name)")
    add_option(parser, "--scope NAME", "their scope (default: that of each row, or none)")
    add_option(parser, "--csv FILE", "a CSV file with a head line; - is stdin")
    add_option(parser, "--key-column NAME", "the column of the key (default: the first)")
    add_option(parser, "--scope-column NAME", "the column of the scope")
    add_option(parser, "--sql URL", "the database of --query: sqlite, postgresql or mysql")
    add_option(parser, "--query SELECT", "a query of the keys, and of their scopes as second column")
    add_option(
        parser,
        "--settled-for TIME",
        "leave out records that changed more recently: their rows may have been written since",
        "5m",
    )
    add_option(parser, "--limit N", "differences of a kind to print", 20)
    add_option(parser, "--show-keys", "print keys in full")
    add_option(parser, "--secret-env NAME", f"the variable with the boundary's secret (default: {SECRET})")


def run(options: argparse.Namespace) -> int:
    rows = _rows(options)
    settled_for = durations.micros(options.settled_for, "--settled-for")
    wanted = Filter(options.boundary, options.operation or options.boundary, options.scope)
    counts: Counter[Difference] = Counter()
    with open_operator(options) as operator, Reconciliation() as both:
        with show_progress(lambda: f"{both.effects:,} effects, {both.records:,} records"):
            both.add_effects(operator, rows, boundary=options.boundary, operation=options.operation)
            both.add_records(operator, wanted, settled_for=settled_for)
        for found in both.differences():
            counts[found.difference] += 1
            if counts[found.difference] <= options.limit:
                print(_render(found, options))
        _summarise(options, both, counts)
    return int(bool(counts))


def _rows(options: argparse.Namespace) -> Iterator[effect_rows.Row]:
    if bool(options.csv) == bool(options.sql) or bool(options.sql) != bool(options.query):
        raise ConfigurationError("Give either --csv, or --sql with --query.")
    if options.csv:
        rows = effect_rows.from_csv(options.csv, options.key_column, options.scope_column)
    else:
        rows = effect_rows.from_sql(options.sql, options.query)
    return ((key, scope if options.scope is None else options.scope) for key, scope in rows)


def _render(found: Found, options: argparse.Namespace) -> str:
    key = found.key if options.show_keys else None
    digits = found.key_hash.hex()
    if options.json:
        return as_json(
            {"difference": found.difference.name.lower(), "hash": digits, "key": key, "detail": found.detail}
        )
    return "  ".join(filter(None, (f"{found.difference.value}:", digits[:16], key, found.detail)))


def _summarise(options: argparse.Namespace, both: Reconciliation, counts: Counter[Difference]) -> None:
    if options.json:
        each = {one.name.lower(): counts[one] for one in Difference}
        print(as_json({"effects": both.effects, "records": both.records, "differences": each}))
        return
    told = ", ".join(f"{one.value}: {counts[one]:,}" for one in Difference if counts[one]) or "they agree"
    print(f"{both.effects:,} effects, {both.records:,} records; {told}", file=sys.stderr)
