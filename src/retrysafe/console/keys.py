"""The pages of keys: the list by a filter, one key with why it is so, and what a person may do about it."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable
from operator import attrgetter
from typing import Any, get_args

from starlette.responses import Response

from retrysafe.admin import runs, selection
from retrysafe.admin.answers import json_result, response_from_form
from retrysafe.admin.describe import describe
from retrysafe.admin.operator import Operator, is_hash_prefix
from retrysafe.admin.rendering import RELEASING, result
from retrysafe.claims.notes import without_note
from retrysafe.claims.responses import is_http
from retrysafe.console.access import Right
from retrysafe.console.security import Denied
from retrysafe.console.visit import Area, ConsolePage, Visit
from retrysafe.console.why import why
from retrysafe.errors import ConfigurationError
from retrysafe.protocol import fingerprint, records
from retrysafe.protocol.procedures import PAGE, Change
from retrysafe.protocol.records import EffectiveState, Filter, Outcome, Record
from retrysafe.protocol.retry_table import possible
from retrysafe.protocol.transitions import Transition, resolution

AREA, UNKNOWN = Area("Keys", "/keys"), Area("Unknown", "/unknown")
ROWS = 50
"""Keys on a page."""
SORTED, SORTING = 5000, 1.0
"""Keys among which a page looks for those that were written last, and the seconds for which it does."""
LOOKING = 0.03
"""Seconds for which a page goes on to look, while it has found nothing."""
_NAMED = ("boundary", "operation", "scope")
_DONE = {
    "resolved": "The key is settled.",
    "released": "The key is released: the next attempt runs the work.",
    "expired": "The window of the key has ended: its next use runs the work again.",
}
_OUTCOMES = {
    Transition.RESOLVE_COMPLETED: "completed",
    Transition.RESOLVE_FAILED: "failed",
    Transition.RESOLVE_RELEASED: "released",
}


# ---------------------------------------------------------------- lists


def show_list(visit: Visit) -> Response:
    return _list(visit, AREA, selection.parse(visit.query))


def show_unknown(visit: Visit) -> Response:
    """The keys whose outcome is unknown, the oldest first where the store has an index of them."""
    wanted = selection.parse(visit.query)._replace(states=frozenset({EffectiveState.UNKNOWN}))
    return _list(visit, UNKNOWN, wanted)


def _list(visit: Visit, area: Area, wanted: Filter) -> Response:
    cursor = visit.ask("after") or None
    newest = area is AREA and visit.ask("order") == "newest"
    with visit.operator() as operator:
        try:
            page = _newest(operator, wanted) if newest else first_page(operator, wanted, cursor, ROWS)
        except ValueError:
            raise Denied(400, "No such page", "The place in the list cannot be read.") from None
        counted = operator.count(wanted)
    fields = [(name, value) for name, value in selection.fields_of(wanted) if (name, area) != ("state", UNKNOWN)]
    shown = [(name, value) for name, value in fields if area is AREA or name != "state"]
    named = {name: {getattr(record, name) for record in page.records} - {""} for name in _NAMED}
    named["boundary"] |= {boundary.name for boundary in visit.console.boundaries}
    return visit.page(
        "keys.html",
        area.title,
        area.title,
        path=area.path,
        records=page.records,
        count=counted,
        fields=dict(shown),
        chosen={state.value for state in wanted.states},
        states=selection.STATES,
        more=visit.url(area.path, [*shown, ("after", page.cursor)]) if page.cursor and not newest else None,
        first=visit.url(area.path, shown) if cursor else None,
        command=visit.commands.line("keys list", selection.fields_of(wanted)) + " --newest" * newest,
        choices={name: sorted(found) for name, found in named.items()},
        newest=newest,
        cut=newest and page.cursor is not None,
        bulk=visit.url("/keys/resolve", shown) if area is UNKNOWN else None,
    )


def _newest(operator: Operator, wanted: Filter) -> records.Page:
    """The keys of a selection that were written last, of those that a look finds; with a cursor if there are others."""
    found, cursor, enough = list[Record](), None, time.monotonic() + SORTING
    while True:
        page = operator.page(wanted, cursor, PAGE)
        found, cursor = [*found, *page.records], page.cursor
        if cursor is None or len(found) >= SORTED or time.monotonic() > enough:
            return records.Page(heapq.nlargest(ROWS, found, key=attrgetter("updated")), cursor)


def first_page(operator: Operator, wanted: Filter, cursor: str | None, rows: int) -> records.Page:
    """The next page of a selection with a record on it, if a short look finds one."""
    page = operator.page(wanted, cursor, rows)
    enough = time.monotonic() + LOOKING
    while not page.records and page.cursor is not None and time.monotonic() < enough:
        page = operator.page(wanted, page.cursor, rows)
    return page


def find(visit: Visit) -> Response:
    """Lead to the key that was typed: the key itself, or the first digits of its hash.

    A form, not a link: a key may be confidential, and addresses are logged.
    """
    text = visit.field("key")
    boundary, operation, scope = (visit.field(name) or None for name in _NAMED)
    found: list[Record] = []
    with visit.operator() as operator:
        if text:
            found = operator.locate(text, boundary=boundary, operation=operation, scope=scope)
        if not found and is_hash_prefix(text):
            found = operator.matching(text, Filter(boundary, operation, scope), limit=ROWS)
    if len(found) == 1:
        return visit.go(f"/keys/{found[0].key.hex()}")
    named = {name: visit.field(name) for name in _NAMED}
    return visit.page("found.html", AREA.title, "Find a key", records=found, named=named, typed=text)


# ---------------------------------------------------------------- one key


def show_key(visit: Visit) -> Response:
    return _key(visit, done=_DONE.get(visit.ask("done"), ""))


def reveal(visit: Visit) -> Response:
    with visit.operator() as operator:
        stored = operator.reveal(record_as_seen(visit, operator), reason=visit.field("reason"))
    return _key(visit, revealed=None if stored is None else result(stored))


def _key(visit: Visit, *, done: str = "", revealed: dict[str, Any] | None = None) -> Response:
    with visit.operator() as operator:
        record = operator.show(hash_of(visit))
        run = None if record is None else operator.show_run(record)
    if record is None or run is None:
        raise Denied(404, "No such key", "The store has no record under this hash. It may have been swept.")
    named = next((one for one in visit.console.boundaries if one.name == record.boundary), None)
    return visit.page(
        "key.html",
        UNKNOWN.title if record.reported_state is EffectiveState.UNKNOWN else AREA.title,
        f"Key {record.key.hex()[:8]}",
        record=record._replace(result=without_note(record.result)),
        http=is_http(record.operation),
        state=record.reported_state,
        why=why(record)._replace(state=runs.explain(run)),
        run=run,
        doubt=runs.doubt(run),
        boundary=None if named is None else describe(named),
        parts=list(fingerprint.names(record.fingerprint)),
        shown=visit.commands.line("keys show", [("hash", record.key.hex())]),
        steps=runs.actions(run, visit.commands),
        without_action=runs.without_action(run),
        outcomes=[_OUTCOMES[event] for event in possible(record) if event in _OUTCOMES],
        expirable=Transition.EXPIRE in possible(record),
        revealed=revealed,
        done=done,
    )


# ---------------------------------------------------------------- changes of one key


def resolve(visit: Visit) -> Response:
    outcome = outcome_of(visit)
    reason = reason_of(visit, outcome)
    with visit.operator() as operator:
        seen = record_as_seen(visit, operator)
        if resolution(outcome) not in possible(seen):
            raise change_refusal(seen)
        answer = _response_of(visit, outcome) if is_http(seen.operation) else answer_of(visit, outcome)
        try:
            change = operator.resolve(seen, outcome, result=answer, reason=reason)
        except ConfigurationError as error:
            raise Denied(400, "No result", error.detail) from error
    return _conclude(visit, change, "released" if outcome == "released" else "resolved")


def expire(visit: Visit) -> Response:
    if visit.field("confirmed") != "yes":
        raise Denied(400, "Not confirmed", "Nothing was changed: confirm that the work may run again.")
    with visit.operator() as operator:
        seen = record_as_seen(visit, operator)
        if Transition.EXPIRE not in possible(seen):
            raise change_refusal(seen)
        change = operator.expire(seen, forget=visit.field("forget") == "yes", reason=visit.field("reason"))
    return _conclude(visit, change, "expired")


def outcome_of(visit: Visit) -> Outcome:
    given = visit.field("outcome")
    for outcome in get_args(Outcome):
        if outcome == given:
            return outcome  # type: ignore[no-any-return]
    raise Denied(400, "No outcome", "Nothing was changed: choose completed, failed or released.")


def reason_of(visit: Visit, outcome: Outcome) -> str:
    """The reason that the form gives; a release takes one, because it may be wrong."""
    reason = visit.field("reason")
    if outcome == "released" and not reason:
        told = f"Nothing was changed: say how you know that the effect did not happen. {RELEASING}"
        raise Denied(400, "No reason", told)
    return reason


def answer_of(visit: Visit, outcome: Outcome) -> Any:
    """Return the answer to retries: JSON for a completed key, a message for a failed one."""
    text = visit.field("result")
    if outcome == "released":
        return None
    if outcome == "failed":
        return text or None
    try:
        return json_result(text)
    except ValueError:
        told = "Nothing was changed: a completed key needs the result that retries get, as JSON; null for nothing."
        raise Denied(400, "No result", told) from None


def _response_of(visit: Visit, outcome: Outcome) -> Any:
    """The response that retries of an HTTP request get, as the fields of the form give it."""
    if outcome == "released":
        return None
    fields = (visit.field(name) for name in ("status", "headers", "body", "content_type"))
    try:
        return response_from_form(*fields)
    except ValueError as error:
        raise Denied(400, "No response", f"Nothing was changed: {error}") from None


def hash_of(visit: Visit) -> bytes:
    try:
        found = bytes.fromhex(visit.path("digits"))
    except ValueError:
        found = b""
    if len(found) != 32:
        raise Denied(404, "No such key", "A key's hash is 64 hex digits.")
    return found


def record_as_seen(visit: Visit, operator: Any) -> Record:
    record: Record | None = operator.show(hash_of(visit))
    if record is None:
        raise Denied(404, "No such key", "Nothing was changed: the key no longer exists.")
    if f"{record.attempt}:{record.version}" != visit.field("seen"):
        raise change_refusal(record)
    return record


def change_refusal(record: Record) -> Denied:
    told = f"Nothing was changed: the key is {record.reported_state.value} by now. Load its page again."
    return Denied(409, "The key has changed", told)


def _conclude(visit: Visit, change: Change, done: str) -> Response:
    if not change.done:
        if change.record is None:
            raise Denied(409, "The key has changed", "Nothing was changed: the key no longer exists.")
        raise change_refusal(change.record)
    return visit.go(f"/keys/{visit.path('digits')}", [("done", done)])


PAGES: Iterable[ConsolePage] = (
    ConsolePage("/keys", show_list),
    ConsolePage("/unknown", show_unknown),
    ConsolePage("/keys/find", find, "POST"),
    ConsolePage("/keys/{digits}", show_key),
    ConsolePage("/keys/{digits}/reveal", reveal, "POST", Right.REVEAL),
    ConsolePage("/keys/{digits}/resolve", resolve, "POST", Right.RESOLVE),
    ConsolePage("/keys/{digits}/expire", expire, "POST", Right.EXPIRE),
)
