"""The rule on code that must not run inside a database transaction."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from retrysafe.scan import catalogue as known
from retrysafe.scan.effects import Effect, EffectKind
from retrysafe.scan.findings import Finding, Rule, Severity, finding
from retrysafe.scan.guards import is_guarded
from retrysafe.scan.module import Function, Module
from retrysafe.scan.project import Project, own_nodes
from retrysafe.scan.rules.view import View

CALL = Rule(
    "RS201",
    "A call out inside a transaction",
    Severity.WARNING,
    "If the transaction rolls back or the process dies before the commit, the other service has acted and no row says "
    "so; a retry calls it again. While the call is on its way, the transaction holds its locks and its connection.",
    "Commit what is to be done first, and call afterwards with a derived key; or write a message to the outbox.",
    "how-to/provider-call-and-rows.md",
    """
import requests
from django.db import transaction


def pay(order):
    with transaction.atomic():
        requests.post("https://bank.example/charges", json={"order": order.pk})
        order.save()
""",
    """
import requests
from django.db import transaction
from retrysafe import Boundary

payments = Boundary("payments", store="postgresql:///shop", effects="keyed")


def pay(order):
    with transaction.atomic():
        order.save()
    with payments.claim(order.pk) as claim:
        headers = {"Idempotency-Key": claim.key_for("bank")}
        requests.post("https://bank.example/charges", json={"order": order.pk}, headers=headers)
""",
)
SEND = Rule(
    "RS202",
    "A message is sent before the commit",
    Severity.WARNING,
    "The consumer may run before the commit and not find the rows. If the transaction rolls back, the message is out "
    "all the same; if the process dies after the commit, a message that is sent then is lost.",
    "Write the message to the outbox in the transaction. Where a lost message does no harm, send it after the commit "
    "(`transaction.on_commit`).",
    "how-to/outbox.md",
    """
from celery import shared_task
from django.db import transaction


@shared_task
def ship(order): ...


def confirm(order):
    with transaction.atomic():
        order.save()
        ship.delay(order.pk)
""",
    """
from celery import shared_task
from django.db import transaction


@shared_task
def ship(order): ...


def confirm(order):
    with transaction.atomic():
        order.save()
        transaction.on_commit(lambda: ship.delay(order.pk))
""",
)
AFTER = Rule(
    "RS203",
    "A message or a call after the commit is lost if the process dies",
    Severity.WARNING,
    "The rows are there and nothing says that something is missing: a retry that finds them leaves the message out, "
    "one that does not look makes them again. A call is a note: often its loss is meant.",
    "Write the message, or an order to call, to the outbox in the transaction.",
    "how-to/outbox.md",
    """
from celery import shared_task
from sqlalchemy.orm import Session


@shared_task
def ship(order): ...


def confirm(session: Session, order):
    session.add(order)
    session.commit()
    ship.delay(order.id)
""",
    """
from retrysafe.messaging import Outbox
from sqlalchemy.orm import Session

outbox = Outbox("postgresql:///shop", source="/shop")


def confirm(session: Session, order):
    session.add(order)
    outbox.add(session, "orders", {"order": order.id}, key=order.id, type="orders.placed.v1")
    session.commit()
""",
)
_LEAVING = ast.Return | ast.Raise | ast.Continue | ast.Break
_FOLLOWED = 2
"""Calls that are followed into functions of the project."""


def check(view: View) -> Iterator[Finding]:
    """RS201 to RS203."""
    yield from _after_commits(view)
    reported: set[tuple[str, ast.AST]] = set()
    for nodes in _regions(view.project, view.module):
        for effect in view.effects.of_nodes(view.module, iter(nodes), _FOLLOWED):
            rule = {EffectKind.CALL: CALL, EffectKind.READ: CALL, EffectKind.SEND: SEND}.get(effect.kind)
            if rule is not None and (rule.id, effect.node) not in reported:
                reported.add((rule.id, effect.node))
                yield _finding(rule, view.module, effect)


def _after_commits(view: View) -> Iterator[Finding]:
    project, module = view.project, view.module
    for _, function in module.functions():
        if is_guarded(project, module, function) or any(
            _decorates(project, module, d) for d in function.decorator_list
        ):
            continue
        nodes = list(own_nodes(function))
        commits = [node for node in nodes if _commits(project, module, node)]
        for effect in view.effects.of_nodes(module, iter(nodes), _FOLLOWED) if commits else ():
            out = effect.kind in (EffectKind.CALL, EffectKind.SEND) and not effect.keyed
            if out and any(_follows(module, one, effect.node) for one in commits):
                severity = Severity.NOTE if effect.kind is EffectKind.CALL else None
                yield finding(AFTER, module, effect.node, f"After the commit: {effect.describe()}.", severity)
                break


def _commits(project: Project, module: Module, node: ast.AST) -> bool:
    if isinstance(node, ast.With | ast.AsyncWith):
        return any(opens(project, module, one) for one in node.items)
    return isinstance(node, ast.Call) and project.resolve(module, node.func) in known.COMMITS


def _follows(module: Module, first: ast.AST, second: ast.AST) -> bool:
    """Tell whether the second node is in a statement that may run after that of the first."""
    current, around = first, module.parents.get(first)
    while around is not None:
        blocks = (getattr(around, name, None) for name in ("body", "orelse", "finalbody"))
        block: list[ast.stmt] = next((one for one in blocks if isinstance(one, list) and current in one), [])
        later = block[block.index(current) + 1 :] if block else []  # type: ignore[arg-type]
        if isinstance(around, ast.Try) and block is around.body:
            later += [*around.orelse, *around.finalbody]
        if any(second is one for statement in later for one in ast.walk(statement)):
            return True
        if isinstance(around, Function) or (block and isinstance(block[-1], _LEAVING)):
            return False
        current, around = around, module.parents.get(around)
    return False


def _finding(rule: Rule, module: Module, effect: Effect) -> Finding:
    if rule is SEND:
        return finding(rule, module, effect.node, f"Inside a transaction: {effect.describe()}.")
    severity = Severity.NOTE if effect.kind is EffectKind.READ else None
    held = "; the transaction stays open meanwhile" if effect.kind is EffectKind.READ else ""
    return finding(rule, module, effect.node, f"Inside a transaction: {effect.describe()}{held}.", severity)


def _regions(project: Project, module: Module) -> Iterator[list[ast.AST]]:
    for node in module.nodes:
        match node:
            case ast.With() | ast.AsyncWith() if any(opens(project, module, one) for one in node.items):
                yield _inside(node.body)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if any(_decorates(project, module, one) for one in node.decorator_list):
                    yield _inside(node.body)


def _inside(body: Iterable[ast.stmt]) -> list[ast.AST]:
    return [
        node
        for statement in body
        for node in own_nodes(statement)
        if not isinstance(statement, Function | ast.ClassDef)
    ]


def opens(project: Project, module: Module, item: ast.withitem) -> bool:
    """Tell whether entering this begins a transaction, itself or in a context manager of the project."""
    expression = item.context_expr
    if project.resolve(module, expression) in known.TRANSACTION_CONNECTIONS:
        return True
    if isinstance(expression, ast.Await):
        expression = expression.value
    if not isinstance(expression, ast.Call):
        return False
    symbol = project.resolve(module, expression.func)
    return symbol in known.TRANSACTIONS or _manages(project, symbol)


def _manages(project: Project, symbol: str) -> bool:
    found = project.function(symbol)
    if found is None:
        return False
    module, function = found
    if not any(project.resolve(module, one) in known.CONTEXT_MANAGERS for one in function.decorator_list):
        return False
    return any(
        isinstance(node, ast.With | ast.AsyncWith)
        and any(_begins(project, module, one) for one in node.items)
        and any(isinstance(one, ast.Yield) for statement in node.body for one in own_nodes(statement))
        for node in own_nodes(function)
    )


def _begins(project: Project, module: Module, item: ast.withitem) -> bool:
    call = item.context_expr
    return isinstance(call, ast.Call) and project.resolve(module, call.func) in known.TRANSACTIONS


def _decorates(project: Project, module: Module, decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    symbol = project.resolve(module, called)
    if symbol in known.METHOD_DECORATOR and isinstance(decorator, ast.Call) and decorator.args:
        return _decorates(project, module, decorator.args[0])
    return symbol in known.TRANSACTION_DECORATORS
