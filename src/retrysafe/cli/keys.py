"""`retrysafe keys`: list and show the keys in a store, and settle, release or expire one.

A key is named by its text (KEY) or by its hash as logged (--hash). Only the hash is in the store, so that the text is
tried under every boundary, operation and scope that the store has, unless they are given; another secret gives another
hash. Exit code: 0 if the command was carried out; 1 if nothing was changed, because the key was not found or is in
another state; 2 if the command could not be carried out.
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections import Counter
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, get_args

from retrysafe.admin import runs, selection
from retrysafe.admin.answers import json_result
from retrysafe.admin.operator import MOST_COUNTED, UNKNOWN, Look, Operator, is_hash_prefix
from retrysafe.admin.rendering import (
    RELEASING,
    details,
    end_of_command,
    explain,
    next_steps,
    result,
    summary,
)
from retrysafe.admin.selection import STATES, read_operation
from retrysafe.backends.commands import WHY
from retrysafe.claims.codec import JSONCodec
from retrysafe.claims.notes import without_note
from retrysafe.claims.responses import Response, respond, type_of_text
from retrysafe.claims.settings import fingerprint_secrets
from retrysafe.cli.opening import (
    SECRET,
    AuditLog,
    add_audit,
    add_store,
    ask,
    commands_of,
    keyring_of,
    open_operator,
    secret_of,
)
from retrysafe.cli.options import add_option, add_verb, add_verbs
from retrysafe.cli.progress import show_progress
from retrysafe.cli.rendering import as_json, lines, plain, row, say, table
from retrysafe.errors import ConfigurationError, ResultUnreadable
from retrysafe.protocol import fingerprint, keys
from retrysafe.protocol.procedures import PAGE, Change
from retrysafe.protocol.records import Count, EffectiveState, Filter, Outcome, Record, StoredResult
from retrysafe.protocol.retry_table import possible
from retrysafe.protocol.transitions import Transition, resolution

MOST_SCANNED, MOST_NAMED = 10_000, 12
"""Records that are read to list a boundary's operations, and the most that are named."""


def add_to(verbs: Any) -> None:
    below = add_verbs(verbs, "keys", "find, show, resolve, release and expire keys", __doc__)
    _add_list(below)
    _add_show(below)
    _add_resolve(below)
    _add_release(below)
    _add_expire(below)


_LISTED = """List keys, without their results.

Leases of relays and redrives are left out, unless their boundary is named: retrysafe.relay, retrysafe.redrive.
"""


def _add_list(verbs: Any) -> None:
    parser = add_verb(verbs, "list", "list keys", run_list, _LISTED)
    add_store(parser)
    add_filter(parser)
    add_state(parser)
    add_option(parser, "--hash HEX", "only keys whose hash begins with these digits (as in the log)")
    _add_times(parser)
    add_option(parser, "--newest", "the last written first: reads all keys that the other options select")
    add_option(parser, "--count", f"only count them, among {MOST_COUNTED} keys at most")
    add_option(parser, "--limit N", "how many at most (default: 100; 0: all)", 100)


def _add_show(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "show",
        "show one key",
        run_show,
        "Show one key: its state, what a retry gets now, and what you can do. Exit code 1 also means "
        "that --payload differs.",
    )
    add_naming(parser)
    add_option(parser, "--result", "show the stored result, which may be confidential")
    add_option(
        parser,
        "--payload FILE",
        "compare with this payload (JSON, - for standard input), and name the parts that differ",
    )


def _add_resolve(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "resolve",
        "settle a key whose outcome is unknown, or all of them that a filter selects",
        run_resolve,
        "Settle a key whose outcome is unknown, after you found out where its effect would be visible. "
        "With --all, settle every unknown key that the filter selects: asks first.",
    )
    named = add_naming(parser)
    add_option(named, "--all", "every unknown key that the filter selects")
    _add_times(parser)
    add_option(parser, "--dry-run", "with --all: only print how many, and the first of them")
    add_option(parser, "--yes", "with --all, or to release: do not ask (needed where there is no terminal)")
    add_option(
        parser,
        "--as OUTCOME",
        "the outcome: completed, failed (it will never happen) or released (it did not happen: run it again)",
        dest="outcome",
        choices=get_args(Outcome),
        required=True,
    )
    add_option(
        parser,
        "--result JSON",
        "completed: what retries get, as the operation returns it (null for nothing); failed: the message",
    )
    response = parser.add_argument_group("the response to an HTTP request", "what its retries get, completed or failed")
    add_option(response, "--status N", "the status, such as 201")
    add_option(response, "--header LINE...", "a header, as 'Location: /orders/7'")
    add_option(response, "--content-type TYPE", "the type of the body, such as application/json")
    add_option(response, "--body TEXT", "the body")
    add_option(response, "--body-file FILE", "a file with the body, - for standard input")
    add_option(
        parser,
        "--encryption-keys-env NAME",
        "the environment variable with the boundary's encryption keys, if it has encryption=: "
        "without them, retries could not read the result",
    )
    add_audit(parser)


def _add_release(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "release",
        "let the next attempt run a key whose outcome is unknown",
        run_resolve,
        "Let the next attempt run a key whose outcome is unknown: you know that its effect did not happen, "
        "and that the attempt has ended. Needs --reason, and asks first: if you are wrong, the effect happens twice.",
    )
    add_naming(parser)
    add_option(parser, "--yes", "do not ask (needed where there is no terminal)")
    add_audit(parser)
    parser.set_defaults(outcome="released", result=None, status=None)


def _add_expire(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "expire",
        "end a key's window, so that its next use runs the work again",
        run_expire,
        "End the window of a settled key: its next use runs the work again. Asks first.",
    )
    add_naming(parser)
    add_option(
        parser, "--forget", "end its memory too, so that boundaries with on_expired='refuse' run it again as well"
    )
    add_option(parser, "--fast URL", "the fast store of layered(…), which forgets the key first")
    add_option(parser, "--fast-name NAME", "the name of layered(…); goes with --fast")
    add_option(parser, "--yes", "do not ask (needed where there is no terminal)")
    add_audit(parser)


def add_filter(parser: argparse.ArgumentParser) -> None:
    add_option(parser, "--boundary NAME", "the boundary")
    told = "the operation; of HTTP requests also a route, as in 'POST /orders/{id}'"
    add_option(parser, "--operation NAME", told, type=read_operation)
    add_option(parser, "--scope TEXT", "the scope; '' is the empty one")


def add_state(parser: Any) -> None:
    add_option(
        parser,
        "--state NAME...",
        "only keys in this state: running, lapsed (the next attempt takes over), unknown (also where an attempt "
        "died in doubt), completed, failed, released, expired or forgotten; may be repeated",
        choices=STATES,
    )


def _add_times(parser: argparse.ArgumentParser) -> None:
    add_option(parser, "--since TIME", "only keys last written at this time (UTC) or later")
    add_option(parser, "--until TIME", "only keys last written at this time or before")
    add_option(parser, "--older-than DURATION", "only keys last written at least this long ago: 30s, 5m, 1h, 7d")


def add_naming(parser: argparse.ArgumentParser) -> Any:
    """Add the options that name one key; return the group of those that exclude each other."""
    add_store(parser)
    named = parser.add_mutually_exclusive_group(required=True)
    add_option(named, "key KEY", "the key itself", argparse.SUPPRESS, nargs="?")
    add_option(named, "--key KEY", "the key itself, if it begins with a hyphen: --key=-K")
    add_option(named, "--hash HEX", "its hash, or the first digits of it (as in the log)")
    add_filter(parser)
    add_option(parser, "--secret-env NAME", f"the environment variable with the boundary's secret (default: {SECRET})")
    return named


# ---------------------------------------------------------------- list


def run_list(options: argparse.Namespace) -> int:
    wanted = _selection(options)
    if options.limit < 0:
        raise ConfigurationError("--limit is a number of records, or 0 for all.")
    with open_operator(options) as operator:
        if options.count:
            return _show_count(operator.count(wanted), options)
        found = operator.each(wanted)
        if options.newest:
            most = options.limit + 1 if options.limit else sys.maxsize
            found = iter(heapq.nlargest(most, found, key=attrgetter("updated")))
        count = 0
        chosen = islice(found, options.limit or None)
        while page := list(islice(chosen, PAGE)):
            if options.json:
                say(as_json(summary(record)) for record in page)
            else:
                say(table([row(record) for record in page], titled=count == 0))
            count += len(page)
        if not options.json:
            print(f"{count} {'key' if count == 1 else 'keys'}{_more(found, options.limit, count)}")
            if not count and wanted == selection.parse({}):
                print(_EMPTY, file=sys.stderr)
    return 0


def _show_count(counted: Count, options: argparse.Namespace) -> int:
    if options.json:
        print(as_json(counted._asdict()))
    else:
        print(f"{counted.records}{'+' * counted.capped} {'key' if counted.records == 1 else 'keys'}")
    return 0


def _selection(options: argparse.Namespace) -> Filter:
    """The filter that the options of `list` describe; an empty --scope is the empty scope."""
    names = ("boundary", "operation", "hash", "since", "until")
    given = {name: [value] for name in names if (value := getattr(options, name)) is not None}
    fields = {**given, "older-than": [options.older_than or ""]}
    return selection.parse({**fields, "state": getattr(options, "state", None) or ()})._replace(scope=options.scope)


def _more(found: Any, limit: int, count: int) -> str:
    return " and more: raise --limit" if limit and count == limit and next(found, None) is not None else ""


# ---------------------------------------------------------------- show


def run_show(options: argparse.Namespace) -> int:
    with open_operator(options) as operator:
        record = find_record(operator, options, changes=False)
        if record is None:
            return 1
        shown = details(record) | end_of_command(record)
        differing: tuple[str, ...] = ()
        if options.payload is not None:
            differing = _compare(record, options)
            shown["payload"] = f"differs in: {', '.join(differing)}" if differing else "is the same"
        if options.result:
            stored = without_note(record.result)
            shown["result"] = None if stored is None else result(stored)
        run = operator.show_run(record)
        commands = commands_of(options)
        if run.steps:
            shown |= {**runs.reasons(run), "in_doubt": runs.doubt(run)}
            shown["run"] = commands.line("runs show", [("hash", record.key.hex())])
        shown["next"] = runs.actions(run, commands)
        without_action = runs.without_action(run)
    if options.json:
        print(as_json(shown | ({"differing": list(differing)} if options.payload is not None else {})))
    else:
        _print(shown, without_action)
    return 1 if differing else 0


def _print(shown: dict[str, Any], without_action: str) -> None:
    steps, stored = shown.pop("next"), shown.pop("result", None)
    outputs = [(name, text) for name in ("stdout", "stderr") if (text := shown.pop(name, ""))]
    say(lines(shown))
    for name, text in outputs:
        say([f"end of {name}:", *(f"  {line}" for line in text.splitlines())])
    if stored is not None:
        body = stored.pop("text", None) or stored.pop("base64", None)
        print("result  " + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in stored.items() if value))
        if body is not None:
            say(body.split("\n"))
    if not steps:
        print(without_action)
    for step in steps:
        say([f"{step['when']}:", f"  {step['command']}"])


def _compare(record: Record, options: argparse.Namespace) -> tuple[str, ...]:
    """The names of the parts that differ between a payload and the one of the claim."""
    if not record.fingerprint:
        raise ConfigurationError("--payload: this key was claimed without a payload.")
    given = _decode(read_json(_read(options.payload, "--payload").decode(), "--payload"), "--payload")
    secrets = fingerprint_secrets(keys.check_secret(secret_of(options)), keyring_of(options))
    counted = secrets.count_as(record.fingerprint, fingerprint.of_payload(given), record.key)
    if counted is None:
        raise ConfigurationError(
            "--payload: the payload of this key is hashed with the secret= of its boundary, or with its encryption= "
            "keys: give --secret-env or --encryption-keys-env, which name the environment variable that has them."
        )
    return fingerprint.differing(record.fingerprint, counted)


# ---------------------------------------------------------------- changes


def run_resolve(options: argparse.Namespace) -> int:
    answer = _answer(options.outcome, options.result) if _response_of(options) is None else _response_of(options)
    log = AuditLog(options)
    with open_operator(options, log) as operator:
        if getattr(options, "all", False):
            return _resolve_all(operator, answer, options)
        record = find_record(operator, options)
        if record is None:
            return 1
        if resolution(options.outcome) not in possible(record):
            return _not_possible(record, options)
        run = operator.show_run(record)
        told = "" if run.goes_back else runs.doubt(run)  # of one that goes back, `resolve` refuses it
        if options.outcome == "released" and not _may_run_twice(runs.consequence(run), options):
            return report_unchanged("Nothing was changed.", options)
        if options.outcome == "completed" and told and not ask(told, "Complete the key all the same?", options):
            return report_unchanged("Nothing was changed.", options)
        change = operator.resolve(record, options.outcome, result=answer, reason=options.reason)
        return conclude(operator, change, log, options)


def _resolve_all(operator: Operator, answer: Any, options: argparse.Namespace) -> int:
    """Settle every unknown key that the filter selects, and that was unknown when it was counted."""
    wanted = _selection(options)._replace(states=UNKNOWN)
    counted, first = operator.count(wanted), list(islice(operator.each(wanted), MOST_NAMED))
    if not _all_confirmed(counted, first, options):
        return 0 if options.dry_run else 1
    present = max(record.now for record in first)
    wanted = wanted._replace(until=present if wanted.until is None else min(present, wanted.until))
    changed, cursor = 0, None
    with show_progress(lambda: f"resolved {changed:,} of {counted.records:,}{'+' * counted.capped}"):
        while True:
            batch = operator.resolve_batch(wanted, options.outcome, cursor=cursor, result=answer, reason=options.reason)
            changed, cursor = changed + batch.changed, batch.cursor
            if cursor is None:
                break
    told = {"chosen": counted.records, "capped": counted.capped, "resolved": changed}
    print(as_json(told) if options.json else f"resolved: {changed}")
    return 0 if changed else 1


def _may_run_twice(warning: str, options: argparse.Namespace) -> bool:
    """Tell whether a release that could be wrong is meant; without a reason it is refused."""
    if not options.reason.strip():
        raise ConfigurationError(f"{warning} Nothing was changed. Say with --reason how you know that it did not.")
    return ask(warning, "Release it?", options)


def _all_confirmed(counted: Count, first: list[Record], options: argparse.Namespace) -> bool:
    """Print what is selected and ask for confirmation; False for a dry run, or if nothing is selected."""
    number = f"{counted.records}{'+' * counted.capped}"
    if not options.json and first:
        say(table([row(record) for record in first]))
    if options.dry_run or not first:
        chosen = {"chosen": counted.records, "capped": counted.capped, "resolved": 0}
        print(as_json(chosen) if options.json else f"{number} selected, nothing changed")
        return False
    warning = f"{number} keys would be settled."
    if options.outcome == "released":
        return _may_run_twice(f"{warning} {RELEASING}", options)
    return ask(warning, f"Settle {number} keys as {options.outcome}?", options)


def _answer(outcome: Outcome, given: str | None) -> Any:
    """The result to store: JSON as given for a completed key, a message for a failed one."""
    if outcome == "completed":
        if given is None:
            raise ConfigurationError(
                "--as completed needs --result JSON, what retries get (null for nothing); or, for the key of an HTTP "
                "request, the --status, --header, --content-type and --body of its response."
            )
        _refuse_placeholder(given, '"TEXT"', "--result")
        stored = read_json(given, "--result")
        if '"object"' not in given:  # which only the return annotation can rebuild
            _decode(stored, "--result")
        return stored
    if outcome == "released" and given is not None:
        raise ConfigurationError("--result does not go with --as released: the next attempt makes its own.")
    return given


def _response_of(options: argparse.Namespace) -> Response | None:
    fields = ("header", "content_type", "body", "body_file")
    if options.status is None:
        given = next((name for name in fields if getattr(options, name, None) not in (None, [])), None)
        if given is None:
            return None
        raise ConfigurationError(f"--{given.replace('_', '-')} belongs to a response: give its --status too.")
    if options.result is not None or options.outcome == "released":
        other = "--as released" if options.outcome == "released" else "--result"
        raise ConfigurationError(f"--status does not go with {other}.")
    _refuse_placeholder(options.body, WHY, "--body")
    if options.body is not None and options.body_file is not None:
        raise ConfigurationError("--body and --body-file are two bodies: give one.")
    body = (options.body or "").encode() if options.body_file is None else _read(options.body_file, "--body-file")
    lines = [(name.strip(), value.strip()) for name, _, value in (one.partition(":") for one in options.header or ())]
    typed = options.content_type or any(name.lower() == "content-type" for name, _ in lines)
    kind = options.content_type if typed or options.body is None else type_of_text(body)
    return respond(options.status, body, headers=lines, content_type=kind)


def _refuse_placeholder(given: str | None, word: str, option: str) -> None:
    if given is not None and given.strip() == word:
        raise ConfigurationError(f"{option}: write what retries get in place of {word}. Nothing was changed.")


def _read(path: str, option: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{option} {path}: {error.strerror}.") from error


def read_json(text: str, option: str) -> StoredResult:
    try:
        return json_result(text)
    except ValueError as error:
        raise ConfigurationError(
            f"{option} is not JSON: {error}. Write what the operation returns, quoted for the shell: "
            "'\"text\"', '{\"order\": 1}', or null for nothing. Nothing was changed."
        ) from error


def _decode(stored: StoredResult, option: str) -> Any:
    """The value of JSON with our tags for types that JSON lacks."""
    try:
        return JSONCodec().decode(stored, None)
    except ResultUnreadable as error:
        raise ConfigurationError(f"{option}: a tag cannot be read. {error.__cause__}") from error


def run_expire(options: argparse.Namespace) -> int:
    log = AuditLog(options)
    with open_operator(options, log) as operator:
        record = find_record(operator, options)
        if record is None:
            return 1
        if Transition.EXPIRE not in possible(record):
            return _not_possible(record, options)
        if record.effective_state is EffectiveState.EXPIRED and not options.forget:
            return report_unchanged("Its window has already ended. To end its memory too, add --forget.", options)
        if not _confirm(operator.show_run(record), options):
            return report_unchanged("Nothing was changed.", options)
        change = operator.expire(record, forget=options.forget, reason=options.reason)
        return conclude(operator, change, log, options)


def _confirm(run: runs.Run, options: argparse.Namespace) -> bool:
    record, steps = run.record, ", with all its steps, under new keys" if run.steps else ""
    warning = (
        f"Key {record.key.hex()[:8]} of {record.boundary!r}, operation {record.operation!r}, is "
        f"{record.effective_state}. "
        f"After expiry its next use runs the work again{steps}."
    )
    return ask(warning, "Expire it?", options)


def conclude(operator: Operator, change: Change, log: AuditLog, options: argparse.Namespace) -> int:
    if not change.done:
        return report_unchanged(
            f"Nothing was changed: another process changed the key meanwhile. {_state(change.record)}", options
        )
    if options.json:
        print(as_json(log.last))
    else:
        print(f"{log.last['event']}: {log.last['before']} → {log.last['after']}")
        record = None if change.record is None else operator.show(change.record.key)
        run = None if record is None else operator.show_run(record)
        if log.last["after"] == EffectiveState.RELEASED:
            print("The next retry runs the work again." if run is None else runs.next_retry(run))
        if run is not None:
            for one in runs.redriving(run, commands_of(options)):
                say([f"{one['when']}:", f"  {one['command']}"])
    return 0


def _not_possible(record: Record, options: argparse.Namespace) -> int:
    steps = "; ".join(step["command"] for step in next_steps(record, commands_of(options)))
    can = f"Possible commands: {steps}" if steps else "No command applies."
    return report_unchanged(f"Nothing was changed. {_state(record)} {can}", options)


def report_unchanged(message: str, options: argparse.Namespace) -> int:
    if options.json:
        print(as_json({"done": False, "message": message}))
    print(f"retrysafe: {plain(message)}", file=sys.stderr)
    return 1


def _state(record: Record | None) -> str:
    """The state of a record, and what will change it without an operator."""
    if record is None:
        return "The key no longer exists."
    told = f"The key is {record.reported_state.value}."
    return told if record.effective_state in _PLAIN else f"{told} {explain(record)}"


_EMPTY = "The store has no records at all: is it the one that the application uses?"
_PLAIN = (EffectiveState.COMPLETED, EffectiveState.FAILED, EffectiveState.RELEASED)
"""States that need no explanation."""


# ---------------------------------------------------------------- which key


def find_record(operator: Operator, options: argparse.Namespace, *, changes: bool = True) -> Record | None:
    """The one record that the options name, or None after printing that it was not found."""
    if options.key is not None:
        return _by_key(operator, options, changes=changes)
    wanted = Filter(options.boundary, options.operation, options.scope)
    found = operator.matching(options.hash, wanted)
    if not found:
        report_unchanged(f"No record has a hash that begins with {options.hash}.", options)
        return None
    return operator.show(_only(found, f"--hash {options.hash}", options).key)


def _only(found: list[Record], named: str, options: argparse.Namespace) -> Record:
    """The record, if there is only one; raise `ConfigurationError` with the commands that show each of them."""
    if len(found) > 1:
        verb = commands_of(options)
        listed = "; ".join(
            f"{one.boundary!r}, operation {one.operation!r}, scope {one.scope!r}, {one.reported_state}: "
            + verb.line("keys show", [("hash", one.key.hex())])
            for one in found
        )
        raise ConfigurationError(f"{named} names more than one key. {listed}")
    return found[0]


def _by_key(operator: Operator, options: argparse.Namespace, *, changes: bool) -> Record | None:
    """The record of a key: as the boundary's claims name it by default, else wherever the store has it."""
    key, boundary, operation, scope = options.key, options.boundary, options.operation, options.scope
    if boundary is not None:
        key_hash = operator.hash_of(key, boundary=boundary, operation=operation, scope=scope or "")
        if (record := operator.show(key_hash)) is not None:
            return record
    look: Look = "everywhere" if changes else "until found"
    found = operator.locate(key, boundary=boundary, operation=operation, scope=scope, look=look)
    if not found and not changes and is_hash_prefix(key):
        found = operator.matching(key, Filter(boundary, operation, scope))
    if found:
        return operator.show(_only(found, "The key", options).key)
    report_unchanged(_missing(operator, options), options)
    return None


def _missing(operator: Operator, options: argparse.Namespace) -> str:
    given = [f"{name} {value!r}" for name in ("boundary", "operation", "scope") if (value := getattr(options, name))]
    where = f"under {', '.join(given)}" if given else "under any boundary, operation or scope in the store"
    told = f"No record of this key {where}. A boundary with a secret gives another hash: set {SECRET}."
    if options.boundary is not None:
        return f"{told} {_present(operator, options.boundary)}"
    return told if next(operator.each(Filter()), None) is not None else f"{told} {_EMPTY}"


def _present(operator: Operator, boundary: str) -> str:
    """Describe the operations and scopes of a boundary's records, for an error message."""
    operations: Counter[str] = Counter()
    scopes: set[str] = set()
    for record in islice(operator.each(Filter(boundary)), MOST_SCANNED):
        operations[record.operation] += 1
        scopes.add(record.scope)
    if not operations:
        return f"The store has no records of boundary {boundary!r}."
    named = ", ".join(f"{name!r} ({count})" for name, count in operations.most_common(MOST_NAMED))
    return f"Operations with records here: {named}. " + (
        f"{len(scopes)} scopes are in use." if scopes != {""} else "No scope is in use."
    )
