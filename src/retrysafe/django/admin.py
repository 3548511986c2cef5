"""Keys in Django's admin: to be looked at, and changed only by the verbs of operators, each with a right of its own.

The pages never write a record: each verb is carried out by an `Operator`, under the conditions of the state machine,
audited as the settings say and in the history of Django's admin.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db import connections, transaction
from django.db.models import Q, QuerySet
from django.template.response import TemplateResponse

from retrysafe.admin.answers import json_result, response_of
from retrysafe.admin.operator import Operator, is_hash_prefix
from retrysafe.admin.rendering import RELEASING, answer, duration, explain, instant, next_steps, start_time
from retrysafe.admin.selection import STATES
from retrysafe.backends.commands import MANAGE, Commands
from retrysafe.claims.attempt_ids import worker_of
from retrysafe.claims.responses import is_http
from retrysafe.django import project
from retrysafe.django.models import Record
from retrysafe.errors import InvalidKey, RetrysafeError
from retrysafe.protocol import records
from retrysafe.protocol.procedures import Change
from retrysafe.protocol.records import LAPSED_AS, EffectiveState, Micros, State
from retrysafe.protocol.retry_table import possible
from retrysafe.protocol.transitions import Transition

MOST = 100
"""Keys that one action changes, at most: they are listed before it does."""
TEMPLATE = "retrysafe/settle.html"
_SHOWN = 12
"""Digits of a key's hash in the list."""


F = TypeVar("F", bound=Callable[..., Any])


def _column(title: str, ordering: str | None = None) -> Callable[[F], F]:
    """A column or field of the admin, by its title."""
    return cast(Callable[[F], F], admin.display(description=title, ordering=ordering))


class Refused(Exception):
    """The form's values are invalid; nothing was changed."""


class Verb(NamedTuple):
    """One change: the right that it takes, the transition, what it means, and what else is asked for."""

    name: str
    title: str
    right: str
    event: Transition
    text: str
    carry_out: Callable[[Operator, records.Record, str, str], Change]
    result: str = ""
    """The name of the result that it needs; empty if it needs none."""


def _complete(operator: Operator, seen: records.Record, reason: str, result: str) -> Change:
    if is_http(seen.operation):
        return operator.resolve(seen, "completed", result=_response(result), reason=reason)
    try:
        stored = json_result(result)
    except ValueError as error:
        raise Refused(f"The result is not JSON: {error}. For nothing, write null.") from error
    return operator.resolve(seen, "completed", result=stored, reason=reason)


def _fail(operator: Operator, seen: records.Record, reason: str, result: str) -> Change:
    given = _response(result) if is_http(seen.operation) else result or None
    return operator.resolve(seen, "failed", result=given, reason=reason)


def _response(text: str) -> Any:
    try:
        return response_of(text)
    except ValueError as error:
        raise Refused(
            f"The response to an HTTP request is its status, lines of headers, an empty line and its body: {error}"
        ) from error


def _release(operator: Operator, seen: records.Record, reason: str, _: str) -> Change:
    return operator.release(seen, reason=reason)


def _expire(operator: Operator, seen: records.Record, reason: str, _: str) -> Change:
    return operator.expire(seen, reason=reason)


VERBS = (
    Verb(
        "complete",
        "Settle as completed: the effect happened",
        "resolve",
        Transition.RESOLVE_COMPLETED,
        "The effect of these keys happened. Their retries get the result below.",
        _complete,
        "Result, as JSON; of HTTP requests the response: status, lines of headers, an empty line, body",
    ),
    Verb(
        "fail",
        "Settle as failed: the effect will never happen",
        "resolve",
        Transition.RESOLVE_FAILED,
        "The effect of these keys will never happen. Their retries get a failure with the message below.",
        _fail,
        "Message; of HTTP requests the response: status, lines of headers, an empty line, body",
    ),
    Verb(
        "release",
        "Release: the effect did not happen, a retry runs the work",
        "resolve",
        Transition.RESOLVE_RELEASED,
        RELEASING,
        _release,
    ),
    Verb(
        "expire",
        "End the window: the next use runs the work again",
        "expire",
        Transition.EXPIRE,
        "The next use of these keys runs the work again, although it has been done.",
        _expire,
    ),
)


class StateFilter(admin.SimpleListFilter):
    """Selects by the state that operators count."""

    title = "state"
    parameter_name = "state"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        """The states."""
        return [(state, state) for state in STATES]

    def queryset(self, request: Any, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """The records in the state that was chosen."""
        value = self.value()
        return queryset.filter(match_reported(EffectiveState(value), _now())) if value in STATES else queryset


class RecordAdmin(admin.ModelAdmin):
    """The records of the store that the settings name."""

    list_display = ("short_digits", "state_now", "boundary", "operation", "scope", "attempts", "worker", "age")
    list_display_links = ("short_digits",)
    list_filter = (StateFilter,)
    search_fields = ("key_hash",)
    search_help_text = "A key, or the first digits of its hash as in the log"
    show_full_result_count = False
    ordering = ("key_hash",)
    list_per_page = 50
    fields = (
        *("digits", "state_now", "why", "retry", "commands", "boundary", "operation", "scope", "effects", "attempts"),
        *("worker", "started", "attempt", "token", "written", "window_ends", "memory_ends"),
    )
    readonly_fields = fields

    # ------------------------------------------------------------ rights: to look, and one for each verb

    def has_add_permission(self, request: Any) -> bool:
        """Return False: claims make records."""
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        """Return False: the verbs change records."""
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        """Return False: a sweep removes forgotten records."""
        return False

    def has_resolve_permission(self, request: Any) -> bool:
        """Tell whether the user may settle keys, and release them."""
        return bool(request.user.has_perm("retrysafe.resolve_record"))

    def has_expire_permission(self, request: Any) -> bool:
        """Tell whether the user may end windows."""
        return bool(request.user.has_perm("retrysafe.expire_record"))

    # ------------------------------------------------------------ what is shown

    def get_queryset(self, request: Any) -> QuerySet[Any]:
        """The records of the settings' store, without payloads and results, which may be confidential."""
        found: QuerySet[Any] = super().get_queryset(request)
        return found.using(project.alias()).defer("result")

    def get_search_results(self, request: Any, queryset: Any, search_term: str) -> tuple[Any, bool]:
        """The records of a key, as far as a sample of the store shows how it is used, and those of a hash."""
        if not search_term:
            return queryset, False
        found: Iterable[records.Record] = ()
        with self._operator(request) as operator:
            try:
                found = operator.locate(search_term)
            except InvalidKey as error:
                self.message_user(request, error.detail, messages.WARNING)
            if not found and is_hash_prefix(search_term):
                found = operator.matching(search_term, limit=MOST)
        return queryset.filter(pk__in=[record.key for record in found]), False

    @_column("key", "key_hash")
    def short_digits(self, record: Record) -> str:
        """The first digits of the key's hash, so that the other columns are in view."""
        return bytes(record.key_hash).hex()[:_SHOWN]

    @_column("key", "key_hash")
    def digits(self, record: Record) -> str:
        """The hash of the key."""
        return bytes(record.key_hash).hex()

    @_column("state")
    def state_now(self, record: Record) -> str:
        """The state that operators count."""
        return record.as_read(_now()).reported_state.value

    @_column("why")
    def why(self, record: Record) -> str:
        """Why it is as it is, and what can be done now."""
        return explain(record.as_read(_now()))

    @_column("a retry")
    def retry(self, record: Record) -> str:
        """Show the answer to a retry."""
        return answer(record.as_read(_now()))

    @_column("commands")
    def commands(self, record: Record) -> str:
        """The same verbs on the command line."""
        steps = next_steps(record.as_read(_now()), Commands(MANAGE))
        return "\n".join(f"{step['when']}: {step['command']}" for step in steps) or "None applies."

    @_column("process")
    def worker(self, record: Record) -> str:
        """The process of the last attempt."""
        worker = worker_of(record.attempt)
        return "-" if worker is None else f"{worker.host}, pid {worker.pid}"

    @_column("last attempt began")
    def started(self, record: Record) -> str:
        """Show the time of the last claim."""
        return start_time(record.as_read(_now()))

    @_column("age")
    def age(self, record: Record) -> str:
        """Since when it is as it is."""
        return duration((_now() - record.updated) / 1e6)

    @_column("last written")
    def written(self, record: Record) -> str:
        """Show the time of writing."""
        return instant(record.updated)

    @_column("window ends")
    def window_ends(self, record: Record) -> str:
        """Show the end of its window."""
        return instant(record.expires)

    @_column("memory ends")
    def memory_ends(self, record: Record) -> str:
        """Show the time at which the key is forgotten."""
        return instant(record.tombstone_until)

    # ------------------------------------------------------------ the verbs

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        """The list and its actions, outside of any transaction: an operator writes over connections of its own."""
        return super().changelist_view(request, extra_context)

    def carry_out(self, request: Any, queryset: Any, verb: Verb) -> Any:
        """Ask, and when it was answered change each key that is still as it was shown."""
        chosen = list(queryset.order_by("key_hash")[: MOST + 1])
        if len(chosen) > MOST:
            told = f"Nothing was changed: choose {MOST} keys at most, or use {MANAGE} keys resolve --all."
            self.message_user(request, told, messages.ERROR)
            return None
        confirmed = request.POST.get("confirmed") == "yes"
        with self._operator(request) as operator:
            fitting = list(_fitting(operator, chosen, verb))
            if confirmed:
                try:
                    self._change(request, operator, chosen, verb)
                except Refused as refused:
                    self.message_user(request, f"Nothing was changed: {refused}", messages.ERROR)
                else:
                    return None
        context = {
            **self.admin_site.each_context(request),
            "title": verb.title,
            "opts": self.model._meta,
            "verb": verb,
            "records": fitting,
            "others": len(chosen) - len(fitting),
            "checkbox": ACTION_CHECKBOX_NAME,
            "reason": request.POST.get("reason", ""),
            "result": request.POST.get("result", ""),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, TEMPLATE, context)

    def _change(self, request: Any, operator: Operator, chosen: Sequence[Record], verb: Verb) -> None:
        reason, result = request.POST.get("reason", "").strip(), request.POST.get("result", "").strip()
        if not reason:
            raise Refused("give the reason, for the audit.")
        shown = set(request.POST.getlist("seen"))
        done = 0
        for one in chosen:
            seen = operator.show(bytes(one.key_hash))
            if seen is None or _version(seen) not in shown or verb.event not in possible(seen):
                continue
            try:
                change = verb.carry_out(operator, seen, reason, result)
            except (RetrysafeError, OSError) as error:
                detail = error.detail if isinstance(error, RetrysafeError) else str(error)
                self.message_user(request, f"{seen.key.hex()[:8]}: {detail}", messages.ERROR)
                break
            if change.done:
                done += 1
                self.log_change(request, one, f"{verb.title}. {reason}")
        if done:
            self.message_user(request, f"{verb.title}: {done} done.", messages.SUCCESS)
        if done < len(shown):
            left = f"{len(shown) - done} left as they were: another process has changed them, or an error came first."
            self.message_user(request, left, messages.WARNING)

    def _operator(self, request: Any) -> Operator:
        return project.operator(request.user.get_username())


def _action(verb: Verb) -> Any:

    def act(model_admin: RecordAdmin, request: Any, queryset: Any) -> Any:
        return model_admin.carry_out(request, queryset, verb)

    act.__name__ = verb.name
    return admin.action(act, description=verb.title, permissions=[verb.right])


RecordAdmin.actions = tuple(map(_action, VERBS))


def _fitting(operator: Operator, chosen: Iterable[Record], verb: Verb) -> Iterator[dict[str, Any]]:
    """Those of the records that the verb can change, as they are shown."""
    for one in chosen:
        seen = operator.show(bytes(one.key_hash))
        if seen is not None and verb.event in possible(seen):
            yield {"digits": seen.key.hex(), "seen": _version(seen), "record": seen, "why": explain(seen)}


def _version(record: records.Record) -> str:
    return f"{record.key.hex()}:{record.attempt}:{record.version}"


def _now() -> Micros:
    return time.time_ns() // 1000


def match_reported(state: EffectiveState, now: Micros) -> Q:
    """The condition of `Record.reported_state`."""
    lapsed = Q(state=State.RUNNING, lease_until__lte=now)
    left = {
        one: Q(effects__in=[effects for effects, kept in LAPSED_AS.items() if kept is one])
        for one in LAPSED_AS.values()
    }
    settled = Q(state__in=(State.COMPLETED, State.FAILED, State.RELEASED))
    conditions = {
        EffectiveState.RUNNING: Q(state=State.RUNNING, lease_until__gt=now),
        EffectiveState.LAPSED: lapsed & left[EffectiveState.LAPSED],
        EffectiveState.UNKNOWN: Q(state=State.UNKNOWN) | (lapsed & left[EffectiveState.UNKNOWN]),
        EffectiveState.EXPIRED: settled & Q(expires__lte=now, tombstone_until__gt=now),
        EffectiveState.FORGOTTEN: settled & Q(tombstone_until__lte=now),
    }
    return conditions.get(state) or Q(state=state.value, expires__gt=now, tombstone_until__gt=now)


if project.alias() is not None:
    for name in connections:
        transaction.non_atomic_requests(name)(RecordAdmin.changelist_view)
    admin.site.register(Record, RecordAdmin)
