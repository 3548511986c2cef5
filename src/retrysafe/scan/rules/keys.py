"""Idempotency keys that no retry can repeat."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from retrysafe.scan import catalogue as known
from retrysafe.scan.findings import Finding, Rule, Severity, finding
from retrysafe.scan.guards import reads_key
from retrysafe.scan.module import Function, How, Module
from retrysafe.scan.project import Project
from retrysafe.scan.rules.view import View

RANDOM_KEY = Rule(
    "RS501",
    "A key that is made from chance or time",
    Severity.ERROR,
    "Every attempt gets a key of its own, so the other side recognises none of them as a retry.",
    "Make the key from what is the same on every attempt: the id of the order, the claim (`claim.key_for`), or a key "
    "that is stored before the first attempt.",
    "how-to/call-an-external-api.md",
    """
import uuid

import stripe


def charge(order):
    stripe.PaymentIntent.create(amount=order.amount, currency="eur", idempotency_key=str(uuid.uuid4()))
""",
    """
import stripe


def charge(order):
    stripe.PaymentIntent.create(amount=order.amount, currency="eur", idempotency_key=f"charge-{order.id}")
""",
)
DOTTED = Rule(
    "RS502",
    "A key is looked up by a path with dots, which a dict does not know",
    Severity.ERROR,
    "`dict.get` takes it for one name and finds nothing. Where a missing key lets the work pass, nothing is guarded.",
    "Name the path to the guard, `once(key='message.headers.idempotency_key')`: a path that finds no key is an error.",
    "how-to/guard-a-function.md",
    """
def key_of(message):
    return message.get("headers.idempotency_key")
""",
    """
def key_of(message):
    return message["headers"]["idempotency_key"]
""",
)
_DOTTED = re.compile(r"(headers|payload|body|event|message|data|detail|metadata|attributes|properties)(\.\w+)+")
_PURE = frozenset({"hex", "int", "isoformat", "timestamp", "strftime", "bytes"})
_STEPS = 12


def check(view: View) -> Iterator[Finding]:
    """RS501 and RS502."""
    for node in view.module.nodes:
        for path in _paths(view, node):
            if _DOTTED.fullmatch(path):
                yield finding(DOTTED, view.module, node, f"It finds nothing, as dicts know no dots: {path!r}.")
        for key in _keys(view.project, view.module, node):
            made = _chance(view.project, view.module, key)
            if made is not None and not _is_kept_for_attempts(view.module, key, made):
                what = ast.unparse(made)
                yield finding(RANDOM_KEY, view.module, key, f"Every attempt gets another key: it is made from {what}.")


def _paths(view: View, node: ast.AST) -> Iterator[str]:
    """The texts that `get` is called with: its own, or those that the module calls the function around it with."""
    match node:
        case ast.Call(ast.Attribute(_, "get"), [ast.Constant(str(text)), *_]):
            yield text
        case ast.Call(ast.Attribute(_, "get"), [ast.Name(name) as given, *_]):
            found = view.project.binding(view.module, given)
            calls = view.module.nodes if found is not None and found.how in (How.INJECTED, How.TYPED) else ()
            for call in (one for one in calls if isinstance(one, ast.Call)):
                called = view.project.function(view.project.resolve(view.module, call.func))
                names = [one.arg for one in called[1].args.args] if called is not None else []
                values = {one.arg: one.value for one in call.keywords} | dict(zip(names, call.args, strict=False))
                match values.get(name) if names else None:
                    case ast.Constant(str(text)):
                        yield text


def _keys(project: Project, module: Module, node: ast.AST) -> Iterator[ast.expr]:
    match node:
        case ast.Dict(names, values):
            yield from (
                value for name, value in zip(names, values, strict=True) if name is not None and reads_key(name)
            )
        case ast.Assign([ast.Subscript(slice=name)], value) if reads_key(name):
            yield value
        case ast.Call():
            symbol = project.resolve(module, node.func)
            # a call that makes a row: a key that is stored is the same on every later attempt
            is_stored = symbol in known.DJANGO_CREATES or project.is_a(symbol, known.DJANGO_MODEL)
            if not is_stored:
                yield from (one.value for one in node.keywords if one.arg == "idempotency_key")
            if symbol in known.CLAIMS and node.args:
                yield node.args[0]


def _chance(project: Project, module: Module, node: ast.AST | None, steps: int = 0) -> ast.AST | None:
    """The part of a value that is random or a time, if there is one; the other parts do not make it repeatable."""
    if node is None or steps > _STEPS:
        return None
    if isinstance(node, ast.Call | ast.Attribute | ast.Subscript) and project.resolve(module, node) in known.RANDOM:
        return node
    match node:
        case ast.Name():
            found = project.binding(module, node)
            local = found is not None and found.how is How.VALUE and module.function_around(found.node) is not None  # type: ignore[arg-type]
            return _chance(project, module, found.node, steps + 1) if found is not None and local else None
        case ast.Call(ast.Name("str" | "repr" | "hash" | "int"), [argument, *_]):
            return _chance(project, module, argument, steps + 1)
        case ast.Call(ast.Attribute(value, method)) if method in ("format", "join", *_PURE):
            parts: list[ast.AST] = [value, *node.args, *(one.value for one in node.keywords)]
        case ast.Attribute(value, attribute) if attribute in _PURE:
            parts = [value]
        case ast.JoinedStr(values):
            parts = [one.value for one in values if isinstance(one, ast.FormattedValue)]
        case ast.BinOp(left, ast.Add() | ast.Mod(), right):
            parts = [left, right]
        case ast.Tuple(elements) | ast.List(elements):
            parts = list(elements)
        case ast.Subscript(value):
            parts = [value]
        case _:
            return None
    return next(filter(None, (_chance(project, module, part, steps + 1) for part in parts)), None)


def _is_kept_for_attempts(module: Module, key: ast.AST, made: ast.AST) -> bool:
    """Tell whether the key is made before a loop that the call is in: all attempts of the loop have the same."""
    inner = module.parents.get(key)
    while inner is not None and not isinstance(inner, Function | ast.Lambda):
        if isinstance(inner, ast.For | ast.AsyncFor | ast.While):
            above: ast.AST | None = made
            while above is not None and above is not inner:
                above = module.parents.get(above)
            return above is None
        inner = module.parents.get(inner)
    return False
