"""Marks that are set before the work they stand for."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from retrysafe.scan import catalogue as known
from retrysafe.scan.effects import EffectKind
from retrysafe.scan.findings import Finding, Rule, Severity, finding
from retrysafe.scan.module import Function, Module
from retrysafe.scan.project import Project, own_nodes
from retrysafe.scan.rules.view import View

MARK = Rule(
    "RS601",
    "A mark in Redis or a cache, followed by the work",
    Severity.WARNING,
    "A process that dies between the mark and the end of the work leaves a mark without work: retries are turned away, "
    "and the work is lost. When the mark expires during the work, a second process begins it.",
    "Claim the key: a claim knows whether the work is running, done or unknown, and gives retries its result.",
    "how-to/guard-a-function.md",
    """
import redis
import requests

store = redis.Redis()


def charge(order):
    if store.set(f"charged:{order}", 1, nx=True, ex=86400):
        requests.post("https://bank.example/charges", json={"order": order})
""",
    """
import requests
from retrysafe import Boundary

payments = Boundary("payments", store="redis://localhost/0", effects="keyed")


def charge(order):
    with payments.claim(order) as claim:
        headers = {"Idempotency-Key": claim.key_for("bank")}
        requests.post("https://bank.example/charges", json={"order": order}, headers=headers)
""",
)
_WORK = frozenset({EffectKind.CREATE, EffectKind.CALL, EffectKind.SEND, EffectKind.INCREMENT})


def check(view: View) -> Iterator[Finding]:
    """RS601."""
    for node in view.module.nodes:
        if not isinstance(node, ast.If):
            continue
        mark, positive = _mark(view.project, view.module, node.test)
        if mark is None or _is_released(view.project, view.module, node):
            continue
        body = node.body if positive else _after(view.module, node)
        nodes = [one for statement in body for one in own_nodes(statement)]
        work = next((one for one in view.effects.of_nodes(view.module, iter(nodes), 2) if one.kind in _WORK), None)
        if work is not None:
            yield finding(MARK, view.module, mark, f"The mark is set before the work, which {work.describe()}.")


def _mark(project: Project, module: Module, test: ast.expr) -> tuple[ast.Call | None, bool]:
    """The call in a condition that sets a mark, and whether the body is for the one who set it."""
    positive = True
    while True:
        test = project.value(module, test) if isinstance(test, ast.Name) else test  # type: ignore[assignment]
        match test:
            case ast.UnaryOp(ast.Not(), inner):
                test, positive = inner, not positive
            case ast.Compare(left, [ast.Is() | ast.Eq()], [ast.Constant(None | False | 0)]):
                test, positive = left, not positive
            case ast.Await(inner) | ast.NamedExpr(value=inner):
                test = inner
            case ast.Call():
                return (test if _sets(project, module, test) else None), positive
            case _:
                return None, positive


def _sets(project: Project, module: Module, node: ast.Call) -> bool:
    symbol = project.resolve(module, node.func)
    owner, _, method = symbol.rpartition(".")
    if owner not in known.CACHES:
        return False
    if method == "set":
        return any(one.arg == "nx" and isinstance(one.value, ast.Constant) and one.value.value for one in node.keywords)
    return method == "setnx" or (method in ("add", "aadd") and owner.startswith("django."))


def _after(module: Module, node: ast.If) -> list[ast.stmt]:
    """The statements that run if the condition is false: after a body that leaves, what comes next."""
    if node.orelse or not isinstance(node.body[-1], ast.Return | ast.Raise | ast.Continue):
        return node.orelse
    around = module.parents.get(node)
    for body in (getattr(around, name, []) for name in ("body", "orelse", "finalbody")):
        if isinstance(body, list) and node in body:
            return list(body[body.index(node) + 1 :])
    return []


def _is_released(project: Project, module: Module, node: ast.AST) -> bool:
    """Tell whether the function deletes a mark as well: it is a lock, and stands for no work that was done."""
    function = module.function_around(node)
    nodes: Iterable[ast.AST] = own_nodes(function) if isinstance(function, Function) else ()
    for one in nodes:
        if isinstance(one, ast.Call):
            owner, _, method = project.resolve(module, one.func).rpartition(".")
            if owner in known.CACHES and method in ("delete", "adelete", "delete_many", "unlink", "eval"):
                return True
    return False
