"""The pages of runs: the list, and one run with its steps, and the form that gives it up."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.responses import Response

from retrysafe.admin import runs, selection
from retrysafe.admin.operator import ANY
from retrysafe.console.access import Right
from retrysafe.console.keys import change_refusal, hash_of, record_as_seen
from retrysafe.console.security import Denied
from retrysafe.console.visit import Area, ConsolePage, Visit

AREA = Area("Runs", "/runs")
ROWS = 50
"""Runs on the page."""


def show_list(visit: Visit) -> Response:
    stranded, boundary = bool(visit.ask("stranded")), visit.ask("boundary")
    wanted = (runs.UNASKED if stranded else ANY)._replace(boundary=boundary or None)
    if visit.ask("older-than"):
        wanted = wanted._replace(older_than=selection.parse({"older-than": [visit.ask("older-than")]}).older_than)
    with visit.operator() as operator:
        found = operator.find_runs(wanted, limit=ROWS, pages=runs.MOST_PAGES)
    given = {"boundary": boundary, "older-than": visit.ask("older-than")}
    options = [*([("stranded", "")] if stranded else []), *((name, text) for name, text in given.items() if text)]
    command = visit.commands.line("runs list", options)
    described = [(one.record, runs.describe(one.last)) for one in found.runs]
    more = found.capped or len(described) == ROWS
    return visit.page(
        "runs.html", AREA.title, AREA.title, runs=described, more=more, fields=given, stranded=stranded, command=command
    )


def show_one(visit: Visit) -> Response:
    """One run: the step in doubt on top, its steps, and what can be done."""
    with visit.operator() as operator:
        record = operator.show(hash_of(visit))
        run = None if record is None else operator.show_run(record)
    if record is None or run is None or not run.steps:
        raise Denied(404, "No such run", "The store has no steps of this key. They may have been swept with it.")
    return visit.page(
        "run.html",
        AREA.title,
        f"Run {record.key.hex()[:8]}",
        run=run,
        record=record,
        doubt=runs.doubt(run),
        why=runs.explain(run),
        steps=runs.timeline(run),
        actions=runs.actions(run, visit.commands),
        without_action=runs.without_action(run),
        done=bool(visit.ask("done")),
    )


def cancel(visit: Visit) -> Response:
    if visit.field("confirmed") != "yes" or not visit.field("reason"):
        raise Denied(400, "Not confirmed", "Nothing was changed: confirm that the run is to be undone, and say why.")
    with visit.operator() as operator:
        run = operator.show_run(record_as_seen(visit, operator))
        change = operator.cancel_run(run, reason=visit.field("reason"))
    if not change.done:
        raise change_refusal(change.record or run.record)
    return visit.go(f"/runs/{visit.path('digits')}", [("done", "cancelled")])


PAGES: Iterable[ConsolePage] = (
    ConsolePage("/runs", show_list),
    ConsolePage("/runs/{digits}", show_one),
    ConsolePage("/runs/{digits}/cancel", cancel, "POST", Right.RESOLVE),
)
