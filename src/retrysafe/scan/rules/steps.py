"""Guarded functions of several parts, of which a retry repeats those that were done."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrysafe.scan import catalogue as known
from retrysafe.scan.effects import Effect, EffectKind
from retrysafe.scan.findings import Finding, Rule, Severity, finding
from retrysafe.scan.guards import mentions_guard
from retrysafe.scan.module import Function
from retrysafe.scan.project import own_nodes
from retrysafe.scan.rules.transactions import opens
from retrysafe.scan.rules.view import View

_HEAD = """
import requests
from retrysafe import Boundary, current
from sqlalchemy import create_engine

engine = create_engine("postgresql:///shop")
orders = Boundary("orders", store=engine, effects="keyed")


"""
_CALLS = """def reserve(order):
    requests.post("https://stock.example/reservations", json={"order": order})


def send_mail(order):
    requests.post("https://mail.example/mails", json={"order": order})


"""
SEVERAL = Rule(
    "RS701",
    "Several calls out in one guarded function, without steps",
    Severity.NOTE,
    "If a later call fails, or the process dies before it, a retry makes the earlier ones again: the guard knows the "
    "function as a whole. A call with a derived key is recognised by its receiver; the others happen twice.",
    "Make each call a step, `current().step('reserve', reserve, order)`: a retry goes on behind the last one.",
    "how-to/steps.md",
    f"""{_HEAD}@orders.once(key="order")
def place(order):
    requests.post("https://stock.example/reservations", json={{"order": order}})
    requests.post("https://mail.example/mails", json={{"order": order}})
""",
    f"""{_HEAD}{_CALLS}@orders.once(key="order")
def place(order):
    current().step("reserve", reserve, order)
    current().step("mail", send_mail, order)
""",
)
COMMITTED = Rule(
    "RS702",
    "A call after a commit in one guarded function, without steps",
    Severity.WARNING,
    "If the call fails, or the process dies before it, a retry runs the function from its beginning, and commits its "
    "rows a second time.",
    "Make the rows a step in their transaction, `current().step('rows', tx=tx)`, which commits with them, and the "
    "call another one.",
    "how-to/steps.md",
    f"""{_HEAD}@orders.once(key="order")
def place(order):
    with engine.begin() as tx:
        tx.execute("INSERT INTO orders VALUES (:id)", {{"id": order}})
    requests.post("https://mail.example/mails", json={{"order": order}})
""",
    f"""{_HEAD}{_CALLS}@orders.once(key="order")
def place(order):
    with engine.begin() as tx, current().step("rows", tx=tx) as step:
        if not step.replayed:
            tx.execute("INSERT INTO orders VALUES (:id)", {{"id": order}})
    current().step("mail", send_mail, order)
""",
)
_OUT = frozenset({EffectKind.CALL, EffectKind.SEND})


def check(view: View) -> Iterator[Finding]:
    """RS701 and RS702."""
    for _, function in view.module.functions():
        called = (one.func for one in function.decorator_list if isinstance(one, ast.Call))
        guards = any(view.project.resolve(view.module, one) in known.IN_STEPS for one in called)
        if guards or view.entry_points.is_guarded_route(view.module, function):
            calls = [one for one in view.effects.of_function(view.module, function) if one.kind in _OUT]
            yield from _check(view, function, sorted(calls, key=_line))


def _check(view: View, function: Function, calls: list[Effect]) -> Iterator[Finding]:
    blocks = (node for node in own_nodes(function) if isinstance(node, ast.With | ast.AsyncWith))
    end = next((node.end_lineno for node in blocks if _commits(view, node)), None)
    after = [one for one in calls if end is not None and _line(one) > end]
    if after:
        yield finding(COMMITTED, view.module, after[0].node, f"After a commit, it {after[0].describe()}.")
    elif len(calls) > 1 and not calls[0].keyed:
        message = f"A retry repeats the call: it {calls[0].describe()}, and then {calls[1].describe()}."
        yield finding(SEVERAL, view.module, calls[0].node, message)


def _line(effect: Effect) -> int:
    return effect.node.lineno  # type: ignore[attr-defined, no-any-return]


def _commits(view: View, node: ast.With | ast.AsyncWith) -> bool:
    """Tell whether a block is a transaction that commits without a step."""
    guarded = any(mentions_guard(view.project, view.module, one.context_expr) for one in node.items)
    return not guarded and any(opens(view.project, view.module, one) for one in node.items)
