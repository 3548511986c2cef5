"""`retrysafe requests`: list, show, resume and discard the requests in a client's journal that have no answer yet.

Their process died, or their outcome is unknown. A request is named by its key as the log shows it: up to eight digits
of a hash. Exit code: 0 if the command was carried out; 1 if a request was not found, got no answer, or stays in the
journal; 2 if the command could not be carried out.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from retrysafe.admin.rendering import duration, instant
from retrysafe.backends.spec import library
from retrysafe.cli.opening import load_object
from retrysafe.cli.options import add_option, add_verb, add_verbs
from retrysafe.cli.rendering import as_json, lines, say, table
from retrysafe.errors import ConfigurationError
from retrysafe.http.client.hosts import hide_query
from retrysafe.http.client.journal import Entry, Journal
from retrysafe.http.client.resuming import Resumed, find_obstacle

JOURNAL = "RETRYSAFE_JOURNAL"
HEAD = ("key", "method", "url", "age", "sent", "last", "state")


def add_to(verbs: Any) -> None:
    below = add_verbs(verbs, "requests", "a client's requests that have no answer yet", __doc__)
    listing = add_verb(below, "list", "list the requests in the journal", run_list)
    showing = add_verb(below, "show", "show one request, without its body", run_show)
    resuming = add_verb(
        below, "resume", "send requests that no running process holds again, with the same keys", run_resume
    )
    discarding = add_verb(
        below, "discard", "remove a request, after you found out whether it had its effect", run_discard
    )
    for one in (showing, discarding):
        add_option(one, "name KEY", "the key as it is listed")
    add_option(
        resuming,
        "--client MODULE:NAME",
        "your httpx client or requests session with a transport of retrysafe and this journal, or a function "
        "that makes it; it adds its credentials",
        required=True,
    )
    add_option(
        resuming, "--origin URL", "only requests to this host (default: that of an httpx client's base_url, or all)"
    )
    for one in (listing, showing, resuming, discarding):
        add_option(one, "--journal FILE", f"the journal (default: ${JOURNAL})", type=Path)
        add_option(one, "--scope TEXT", "the scope, as in Journal(scope=…)", "")
        add_option(one, "--json", "print JSON, one object per line")


def run_list(options: argparse.Namespace) -> int:
    with closing(_journal(options)) as journal:
        found = [_summary(journal, entry) for entry in journal.pending()]
    if options.json:
        say(map(as_json, found))
    elif found:
        rows = [[str(duration(one[name]) if name == "age" else one[name]) for name in HEAD] for one in found]
        say(table(rows, HEAD))
    else:
        print("no requests")
    return 0


def run_show(options: argparse.Namespace) -> int:
    with closing(_journal(options)) as journal:
        entry = _entry_by_name(journal, options.name)
        if entry is None:
            return _not_found(options.name)
        shown = {
            **_summary(journal, entry),
            "url": entry.url,
            "created": instant(round(entry.created * 1e6)),
            "recognised_until": entry.recognised_until and instant(round(entry.recognised_until * 1e6)),
            "headers": [f"{name}: {value}" for name, value in entry.headers],
            "body_bytes": len(entry.body),
        }
    say([as_json(shown)] if options.json else lines(shown))
    return 0


def run_resume(options: argparse.Namespace) -> int:
    with closing(_journal(options)) as journal:
        done: list[bool] = []

        def tell(one: Resumed) -> None:
            stays = journal.find(one.entry.id) is not None
            done.append(one.error is None and not stays)
            outcome = {**_outcome(one), "in_journal": stays}
            told = {"key": one.entry.name, "method": one.entry.method, "url": hide_query(one.entry.url), **outcome}
            text = [str(value) for value in list(told.values())[:-1]] + ["stays in the journal"] * stays
            print(as_json(told) if options.json else "  ".join(text), flush=True)

        _resume(_client(options.client), journal, options.origin, tell)
    if not done and not options.json:
        print("nothing to resume")
    return 0 if all(done) else 1


def run_discard(options: argparse.Namespace) -> int:
    with closing(_journal(options)) as journal:
        entry = _entry_by_name(journal, options.name)
        if entry is None:
            return _not_found(options.name)
        if journal.is_held(entry, time.time()):
            raise ConfigurationError(f"{entry.name}: a running process holds this request. Nothing was removed.")
        journal.discard(entry.id)
    told = {"key": entry.name, "discarded": True}
    print(as_json(told) if options.json else f"discarded {entry}")
    return 0


def _journal(options: argparse.Namespace) -> Journal:
    given = options.journal or os.environ.get(JOURNAL)
    if not given:
        raise ConfigurationError(f"--journal is missing: give the journal's file, or set {JOURNAL}.")
    if not Path(given).exists():
        raise ConfigurationError(f"--journal {given}: the file does not exist.")
    return Journal(given, scope=options.scope)


def _entry_by_name(journal: Journal, name: str) -> Entry | None:
    found = [entry for entry in journal.pending() if entry.id.hex().startswith(name.lower()) and name]
    if len(found) > 1:
        raise ConfigurationError(f"{name!r} is the beginning of {len(found)} keys: give more digits of it.")
    return found[0] if found else None


def _not_found(name: str) -> int:
    print(f"retrysafe: no request in the journal has the key {name}", file=sys.stderr)
    return 1


def _summary(journal: Journal, entry: Entry) -> dict[str, Any]:
    now = time.time()
    return {
        "key": entry.name,
        "method": entry.method,
        "url": hide_query(entry.url),
        "age": now - entry.created,
        "sent": entry.attempts or "?",
        "last": entry.last or "-",
        "state": _state(journal, entry, now),
    }


def _state(journal: Journal, entry: Entry, now: float) -> str:
    if journal.is_held(entry, now):
        return "under way"
    return "unknown" if find_obstacle(entry, now) else "resumable"


def _client(target: str) -> Any:
    found = load_object("--client", target)
    return found() if callable(found) else found


def _resume(client: Any, journal: Journal, origin: str | None, tell: Callable[[Resumed], None]) -> None:
    """Resume with the client's own library, httpx or requests, and report each outcome as it arrives."""
    kinds = {
        type(client).__module__.partition(".")[0],
        *(base.__module__.partition(".")[0] for base in type(client).__mro__),
    }
    kind = next((kind for kind in ("httpx", "requests") if kind in kinds), None)
    if kind is None:
        raise ConfigurationError(f"--client gave {client!r}, which is neither an httpx client nor a requests session.")
    module = library(f"retrysafe.http.client.{kind}", kind, "--client")
    if hasattr(client, "aclose"):
        asyncio.run(_tell_each(client, module.aresume(client, journal, origin=origin), tell))
        return
    with closing(client):
        for one in module.resume(client, journal, origin=origin):
            tell(one)


async def _tell_each(client: Any, outcomes: AsyncIterator[Resumed], tell: Callable[[Resumed], None]) -> None:
    async with client:
        async for one in outcomes:
            tell(one)


def _outcome(resumed: Resumed) -> dict[str, Any]:
    if resumed.error is not None:
        said = next(iter(str(resumed.error).splitlines()), "")
        return {"error": f"{type(resumed.error).__name__}: {said}" if said else type(resumed.error).__name__}
    return {"status": resumed.response.status_code}
