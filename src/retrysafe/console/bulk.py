"""The pages of operations: a preview of what a filter selects, the confirmation, and how far an operation has come."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from functools import partial
from typing import Any

from starlette.responses import Response

from retrysafe.admin import selection
from retrysafe.admin.answers import json_result, response_of
from retrysafe.admin.operator import UNKNOWN, Batch
from retrysafe.claims.responses import is_http
from retrysafe.console.access import Right
from retrysafe.console.keys import answer_of, first_page, outcome_of, reason_of
from retrysafe.console.messages import INBOX, OUTBOX, LetterSide, count_letters, fields_of, filter_from
from retrysafe.console.operations import Operation, OperationState, Plan
from retrysafe.console.security import Denied
from retrysafe.console.visit import Area, ConsolePage, ConsoleState, Visit
from retrysafe.messaging.inbox.operator import InboxOperator
from retrysafe.messaging.relay.operator import OutboxOperator
from retrysafe.protocol.messages import DeadLetter

AREA = Area("Operations", "/operations")
SAMPLE = 10
"""The number of selected records that a preview shows."""
RIGHTS = {"keys resolve": Right.RESOLVE, "outbox redrive": Right.REDRIVE, "inbox redrive": Right.REDRIVE}
"""The right that each verb takes."""
_OF_ALL = ("state", "until")
"""Fields that every plan to settle keys has: it is about unknown keys, and about those that were there."""


# ---------------------------------------------------------------- previews


def preview_keys(visit: Visit) -> Response:
    wanted = selection.parse(visit.query)._replace(states=UNKNOWN)
    with visit.operator() as operator:
        counted, page = operator.count(wanted), first_page(operator, wanted, None, SAMPLE)
        # a store without an index of unknown keys may find none on the first page, and have some behind it
        dated = page.records or operator.sample(1).records
    until = max((record.now for record in dated), default=0)
    wanted = wanted._replace(until=until if wanted.until is None else min(until, wanted.until))
    fields = list(selection.fields_of(wanted))
    plan = {"verb": "keys resolve", "fields": fields, "count": counted.records, "capped": counted.capped}
    chosen = [one for one in fields if one[0] != "state"]
    command = visit.commands.line("keys resolve", [("all", ""), *chosen, ("as", "OUTCOME")])
    return _preview(visit, plan, command, records=page.records, groups=None, letters=None)


def preview_letters(side: LetterSide, visit: Visit) -> Response:
    chosen = filter_from(visit.query, side)
    with visit.outbox() if side is OUTBOX else visit.inbox() as letters:
        counted = count_letters(letters, chosen)
        found = letters.page(chosen, limit=SAMPLE)
        page: list[DeadLetter] = [one if isinstance(one, DeadLetter) else one.letter for one in found]
    fields, groups = list(fields_of(chosen)), counted.groups
    plan = {"fields": fields, "count": counted.total, "capped": counted.capped and bool(page)}
    plan |= {"verb": f"{side.verb.split()[0]} redrive", "until": max((letter.now for letter in page), default=0)}
    command = visit.commands.line(f"{side.verb} redrive", fields or [("all", "")])
    return _preview(visit, plan, command, records=None, groups=list(groups.items())[:SAMPLE], letters=page)


def _preview(visit: Visit, plan: Plan, command: str, **shown: Any) -> Response:
    plan["id"] = uuid.uuid4().hex
    signed = visit.console.forms.sign(plan, visit.principal.name)
    title = "Settle unknown keys" if plan["verb"] == "keys resolve" else "Redrive dead letters"
    shown |= {"plan": plan, "signed": signed, "command": command, "sample_size": SAMPLE, "http": _is_http(plan)}
    return visit.page("preview.html", AREA.title, title, **shown)


# ---------------------------------------------------------------- operations


def start(visit: Visit) -> Response:
    plan = visit.console.forms.verify(visit.field("plan"), visit.principal.name)
    visit.require(RIGHTS[plan["verb"]])
    if not plan["count"] and not plan["capped"]:
        raise Denied(400, "Nothing is selected", "Nothing was changed: the filter selects nothing.")
    if visit.field("confirmed") != "yes":
        raise Denied(400, "Not confirmed", "Nothing was changed: confirm the number that is shown.")
    if plan["verb"] == "keys resolve":
        plan["outcome"] = outcome_of(visit)
        reason_of(visit, plan["outcome"])
        plan["result"] = visit.field("result")
        if not _is_http(plan):
            answer_of(visit, plan["outcome"])
        elif plan["outcome"] != "released":
            try:
                response_of(plan["result"])
            except ValueError as error:
                raise Denied(400, "No response", f"Nothing was changed: {error}") from None
    plan |= {"by": visit.principal.name, "reason": visit.field("reason")}
    with visit.operator() as operator:
        operator.note("operation_started", {name: plan[name] for name in ("verb", "fields", "count", "reason")})
    visit.console.operations.start(plan)
    return visit.go(f"/operations/{plan['id']}")


def show_list(visit: Visit) -> Response:
    found = visit.console.operations.recent()
    return visit.page("operations.html", AREA.title, AREA.title, operations=found, describe=describe)


def show_one(visit: Visit) -> Response:
    found = _find(visit)
    return visit.page(
        "operation.html",
        AREA.title,
        "Operation",
        operation=found,
        described=describe(found),
        running=found.state in (OperationState.WAITING, OperationState.RUNNING),
        resumable=found.state in (OperationState.INTERRUPTED, OperationState.WAITING),
        allowed=visit.principal.may(RIGHTS[found.plan["verb"]]),
    )


def cancel(visit: Visit) -> Response:
    found = _find(visit)
    visit.require(RIGHTS[found.plan["verb"]])
    visit.console.operations.cancel(found.plan, visit.principal.name)
    return visit.go(f"/operations/{visit.path('number')}")


def resume(visit: Visit) -> Response:
    found = _find(visit)
    visit.require(RIGHTS[found.plan["verb"]])
    visit.console.operations.resume(found.plan)
    return visit.go(f"/operations/{visit.path('number')}")


def _find(visit: Visit) -> Operation:
    found = visit.console.operations.find(visit.path("number"))
    if found is None:
        raise Denied(404, "No such operation", "Operations are kept for a week.")
    return found


def describe(operation: Operation) -> str:
    plan = operation.plan
    told = (f"{name} {value}" for name, value in plan["fields"] if name not in _OF_ALL)
    chosen = ", ".join(told) or "all"
    if plan["verb"] == "keys resolve":
        return f"Settle unknown keys as {plan['outcome']}: {chosen}"
    return f"Redrive dead letters of the {plan['verb'].split()[0]}: {chosen}"


# ---------------------------------------------------------------- one batch


def step(console: ConsoleState, plan: Plan, cursor: str | None) -> Batch:
    """Carry out one batch of a plan, in the name of who gave it."""
    reason = f"{plan['reason']} (operation {plan['id']})".strip()
    fields: dict[str, list[str]] = {}
    for name, value in plan["fields"]:
        fields.setdefault(name, []).append(value)
    with console.operator(plan["by"]) as operator:
        if plan["verb"] == "keys resolve":
            wanted, result = selection.parse(fields), _result(plan)
            return operator.resolve_batch(wanted, plan["outcome"], cursor=cursor, result=result, reason=reason)
        side = OUTBOX if plan["verb"] == "outbox redrive" else INBOX
        operator.note("redriven", {"side": side.verb.split()[0], "chosen": fields, "after": cursor, "reason": reason})
    kind = OutboxOperator if side is OUTBOX else InboxOperator
    with kind(console.store, actor=plan["by"], observers=console.observers) as letters:
        return letters.redrive_batch(filter_from(fields, side), until=plan["until"], cursor=cursor, reason=reason)


def _is_http(plan: Plan) -> bool:
    """Tell whether a plan is about keys of HTTP requests alone."""
    return any(is_http(value) for name, value in plan["fields"] if name == "operation")


def _result(plan: Plan) -> Any:
    if _is_http(plan):
        return None if plan["outcome"] == "released" else response_of(plan["result"])
    return json_result(plan["result"]) if plan["outcome"] == "completed" else plan["result"] or None


MESSAGE_PAGES: tuple[ConsolePage, ...] = (
    ConsolePage("/messages/dead/redrive", partial(preview_letters, OUTBOX), right=Right.REDRIVE),
    ConsolePage("/messages/inbox/redrive", partial(preview_letters, INBOX), right=Right.REDRIVE),
)
KEY_PAGES: tuple[ConsolePage, ...] = (ConsolePage("/keys/resolve", preview_keys, right=Right.RESOLVE),)
PAGES: Iterable[ConsolePage] = (
    ConsolePage("/operations", show_list),
    ConsolePage("/operations", start, "POST"),
    ConsolePage("/operations/{number}", show_one),
    ConsolePage("/operations/{number}/cancel", cancel, "POST"),
    ConsolePage("/operations/{number}/resume", resume, "POST"),
)
