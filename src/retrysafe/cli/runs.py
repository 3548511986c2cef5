"""`retrysafe runs`: list and show work that is done in steps, give a run up, and settle a step in doubt.

A key is named as for `retrysafe keys`. Exit code: 0 if the command was carried out; 1 if nothing was changed, because
the key was not found or is in another state; 2 if the command could not be carried out.
"""

from __future__ import annotations

import argparse
from typing import Any, get_args

from retrysafe.admin import runs, selection
from retrysafe.admin.operator import Operator
from retrysafe.cli.keys import add_filter, add_naming, add_state, conclude, find_record, read_json, report_unchanged
from retrysafe.cli.opening import AuditLog, add_audit, add_store, commands_of, open_operator
from retrysafe.cli.options import add_option, add_verb, add_verbs
from retrysafe.cli.rendering import HEAD, as_json, lines, row, say, table
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.steps import At


def add_to(verbs: Any) -> None:
    below = add_verbs(verbs, "runs", "list, show and give up work that is done in steps", __doc__)
    parser = add_verb(below, "list", "list runs", run_list, "List keys that have steps, the latest first.")
    add_store(parser)
    add_filter(parser)
    chosen = parser.add_mutually_exclusive_group()
    add_state(chosen)
    add_option(chosen, "--stranded", "only those that would go on, and are not asked for any more")
    add_option(
        parser,
        "--older-than DURATION",
        "only those that no attempt was made at for so long (default with --stranded: 1h)",
    )
    add_option(parser, "--limit N", "how many at most", 100)

    parser = add_verb(
        below, "show", "show one run", run_show, "Show one run: the step in doubt, its steps, and what you can do."
    )
    add_naming(parser)

    parser = add_verb(
        below,
        "cancel",
        "give a run up: its next attempt undoes what was done",
        run_cancel,
        "Give a run up. Its next attempt calls the compensations (undo=) of its steps, and fails with the "
        "reason; retries get that failure. An attempt that is at work is not stopped, and may complete.",
    )
    add_naming(parser)
    _add_encryption(parser)
    add_audit(parser)

    parser = add_verb(
        below,
        "resolve",
        "settle a step in doubt, and let the next attempt go on",
        run_resolve,
        "Settle a step in doubt, after you found out where its effect would be visible. If the key is "
        "unknown, it is released, so that the next attempt goes on.",
    )
    add_naming(parser)
    add_option(parser, "--step NAME", "the step, as `retrysafe runs show` names it", required=True)
    add_option(parser, "--each TEXT", "its index, where it is done for each of many", "")
    add_option(
        parser,
        "--as",
        "done (it happened), not-done (it did not: the next attempt does it), or undone (you have undone it)",
        dest="outcome",
        choices=get_args(runs.StepOutcome),
        required=True,
    )
    add_option(parser, "--result JSON", "done: what the step returns (null for nothing)")
    _add_encryption(parser)
    add_audit(parser)


def _add_encryption(parser: argparse.ArgumentParser) -> None:
    add_option(
        parser,
        "--encryption-keys-env NAME",
        "the environment variable with the boundary's encryption keys, if it has encryption=",
    )


def run_list(options: argparse.Namespace) -> int:
    if options.limit < 1:
        raise ConfigurationError("--limit is a number of runs, 1 or more.")
    wanted = runs.UNASKED if options.stranded else selection.parse({"state": options.state or ()})
    if options.older_than is not None:
        wanted = wanted._replace(older_than=selection.parse({"older-than": [options.older_than]}).older_than)
    wanted = wanted._replace(boundary=options.boundary, operation=options.operation, scope=options.scope)
    with open_operator(options) as operator:
        found = operator.find_runs(wanted, limit=options.limit).runs
    if options.json:
        say(as_json(runs.entry(one)) for one in found)
        return 0
    say(table([(*row(one.record), runs.describe(one.last)) for one in found], (*HEAD, "last step")))
    more = " or more: raise --limit" if len(found) == options.limit else ""
    print(f"{len(found)} {'run' if len(found) == 1 else 'runs'}{more}")
    return 0


def run_show(options: argparse.Namespace) -> int:
    with open_operator(options) as operator:
        run = _the_run(operator, options, changes=False)
    if run is None:
        return 1
    shown, actions = runs.as_json(run), runs.actions(run, commands_of(options))
    if options.json:
        print(as_json(shown | {"next": actions}))
        return 0
    if shown["in_doubt"]:
        say([f"!! {shown['in_doubt']}", ""])
    names = ("key_hash", "boundary", "operation", "scope", "effective_state", "attempts", "age", "why", "retry")
    say(lines({name: shown[name] for name in names}))
    say([""])
    steps = [(one["at"], one["step"], one["each"], one["text"]) for one in shown["steps"]]
    say(table(steps, ("written", "step", "each", "")))
    if not actions:
        print(runs.without_action(run))
    for one in actions:
        say([f"{one['when']}:", f"  {one['command']}"])
    return 0


def run_cancel(options: argparse.Namespace) -> int:
    log = AuditLog(options)
    with open_operator(options, log) as operator:
        run = _the_run(operator, options)
        if run is None:
            return 1
        if run.obstacle:
            return report_unchanged(f"Nothing was changed. {run.obstacle}", options)
        return conclude(operator, operator.cancel_run(run, reason=options.reason), log, options)


def run_resolve(options: argparse.Namespace) -> int:
    if (options.outcome == "done") is (options.result is None):
        raise ConfigurationError("--as done needs --result JSON, what the step returns (null for nothing); only it.")
    result = None if options.result is None else read_json(options.result, "--result")
    log = AuditLog(options)
    with open_operator(options, log) as operator:
        run = _the_run(operator, options)
        if run is None:
            return 1
        at = At(options.step, options.each)
        change = operator.resolve_step(run, at, options.outcome, result=result, reason=options.reason)
        return conclude(operator, change, log, options)


def _the_run(operator: Operator, options: argparse.Namespace, *, changes: bool = True) -> runs.Run | None:
    record = find_record(operator, options, changes=changes)
    if record is None:
        return None
    run = operator.show_run(record)
    if run.steps:
        return run
    shown = commands_of(options).line("keys show", [("hash", record.key.hex())])
    report_unchanged(f"The key has no steps, and is {record.reported_state}: {shown}", options)
    return None
