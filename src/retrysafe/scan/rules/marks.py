"""Marks in Redis, a cache or memory that stand for work: set before it, looked up and set behind it, or taken back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from retrysafe.scan import catalogue as known
from retrysafe.scan.effects import EffectKind
from retrysafe.scan.findings import Finding, Rule, Severity, finding
from retrysafe.scan.guards import mentions_guard
from retrysafe.scan.module import Binding, Function, How, Module
from retrysafe.scan.project import Project, own_nodes
from retrysafe.scan.rules.view import View

_CLAIMED = """
import requests
from retrysafe import Boundary

payments = Boundary("payments", store="redis://localhost/0", effects="keyed")


def charge(order):
    with payments.claim(order) as claim:
        headers = {"Idempotency-Key": claim.key_for("bank")}
        requests.post("https://bank.example/charges", json={"order": order}, headers=headers)
"""
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
    _CLAIMED,
)
LOOK = Rule(
    "RS602",
    "A look into a cache decides whether the work runs",
    Severity.WARNING,
    "Two that arrive together both find nothing, and both do the work. A process that dies between the work and the "
    "entry leaves no entry, and a retry does the work again.",
    "Claim the key before the work: one of two gets it, and a retry finds what became of it.",
    "how-to/move-from-another-middleware.md",
    """
import redis
import requests

store = redis.Redis()


def charge(order):
    if store.get(f"charged:{order}"):
        return
    requests.post("https://bank.example/charges", json={"order": order})
    store.set(f"charged:{order}", 1, ex=86400)
""",
    _CLAIMED,
)
LOCK = Rule(
    "RS603",
    "A lock in Redis or a cache around the work, which any attempt deletes",
    Severity.WARNING,
    "A lock keeps attempts apart and recognises no retry: when it is deleted, the work can begin again. If it expires "
    "during the work, a second attempt begins, and the first one deletes the second one's lock.",
    "Claim the key: its lease is renewed while the work runs, only its owner ends it, and its result stays.",
    "how-to/move-from-another-middleware.md",
    """
import redis
import requests

store = redis.Redis()


def charge(order):
    if not store.set(f"lock:{order}", 1, nx=True, ex=30):
        raise RuntimeError("it is running")
    requests.post("https://bank.example/charges", json={"order": order})
    store.delete(f"lock:{order}")
""",
    _CLAIMED,
)
MEMORY = Rule(
    "RS604",
    "Ids that are kept in the memory of a process",
    Severity.WARNING,
    "They end with the process, which is when messages and requests come again; and each further process has its own.",
    "Use an inbox for messages, and a claim for anything else: both keep the ids in a store.",
    "how-to/inbox.md",
    """
import requests

charged = set()


def charge(order):
    if order not in charged:
        requests.post("https://bank.example/charges", json={"order": order})
        charged.add(order)
""",
    _CLAIMED,
)
_WORK = frozenset({EffectKind.CREATE, EffectKind.CALL, EffectKind.SEND, EffectKind.INCREMENT})
_GUARDING = re.compile("idempot|dedup|duplicate|once|processed|handled|already|seen", re.IGNORECASE)
"""Words by which a decorator says that it guards the function it is given, rather than caches or delays it."""
_LOOKS = frozenset({"get", "aget", "exists", "hget", "hgetall", "hexists", "sismember"})
_SETS = frozenset({"set", "aset", "setex", "psetex", "hset", "hmset", "sadd", "add", "append", "setdefault", "update"})
_DELETES = frozenset({"delete", "adelete", "delete_many", "unlink", "eval"})


def check(view: View) -> Iterator[Finding]:
    """RS601 to RS604."""
    seen: set[tuple[str, str]] = set()
    for node in view.module.nodes:
        if not isinstance(node, ast.If):
            continue
        test, positive = _unwrap(view.project, view.module, node.test)
        rule = _rule(view, node, test)
        body = node.body if positive is (rule in (MARK, LOCK)) else _after(view.module, node)
        work = None if rule is None else _work(view, [one for each in body for one in own_nodes(each)], node)
        place = (view.module.qualname_at(node), ast.unparse(test) if rule is MARK else rule.id if rule else "")
        if rule is not None and work is not None and place not in seen:
            seen.add(place)
            yield finding(rule, view.module, test, _MESSAGES[rule].format(work=work))


_MESSAGES = {
    MARK: "The mark is set before the work, which {work}.",
    LOOK: "Two at once both find nothing, and do the work, which {work}.",
    LOCK: "The lock is deleted without a look at whose it is, around work that {work}.",
    MEMORY: "Another process does not know the ids that are kept here, and does the work again, which {work}.",
}


def _rule(view: View, node: ast.If, test: ast.expr) -> Rule | None:
    """The rule that a condition falls under, if there is work behind it."""
    around = view.module.function_around(node)
    if around is not None and any(mentions_guard(view.project, view.module, one) for one in around.decorator_list):
        return None
    nodes = [*own_nodes(around or view.module.tree)]
    calls = [one for one in nodes if isinstance(one, ast.Call)]
    if isinstance(test, ast.Call) and _takes(view.project, view.module, test):
        methods = {method for one in calls if (method := _method(view, one, _DELETES))}
        compared = "eval" in methods or any(
            _method(view, one, frozenset({"get"})) and isinstance(view.module.parents[one], ast.Compare)
            for one in calls
        )
        return MARK if not methods else None if compared else LOCK
    if isinstance(test, ast.Call) and _reaches(view, test, _LOOKS):
        locked = any(_takes(view.project, view.module, one) for one in calls)
        return LOOK if not locked and any(_reaches(view, one, _SETS) for one in calls) else None
    kept = _kept(view, node, test)
    return MEMORY if kept is not None and any(_adds(one, ast.unparse(kept)) for one in nodes) else None


def _work(view: View, nodes: list[ast.AST], node: ast.If) -> str | None:
    """The first effect among these nodes, in words; in a decorator that guards, also the call of its function."""
    for effect in view.effects.of_nodes(view.module, iter(nodes), 2):
        if effect.kind in _WORK:
            return effect.describe()
    name = view.module.qualname_at(node)
    own = view.module.scope_of(node).names
    for one in nodes if _GUARDING.search(f"{name} {ast.unparse(node.test)}") else ():
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id not in own:
            found = view.project.binding(view.module, one.func)
            if found is not None and found.how in (How.INJECTED, How.TYPED):
                return f"calls {one.func.id}()"
    return None


def _unwrap(project: Project, module: Module, test: ast.expr) -> tuple[ast.expr, bool]:
    """The look-up that a condition is about, and whether the body is for the case that it answers yes."""
    positive = True
    for _ in range(10):
        test = project.value(module, test) if isinstance(test, ast.Name) else test  # type: ignore[assignment]
        match test:
            case ast.UnaryOp(ast.Not(), inner):
                test, positive = inner, not positive
            case ast.Compare(left, [ast.Is() | ast.Eq()], [ast.Constant(None | False | 0)]):
                test, positive = left, not positive
            case ast.Compare(_, [ast.NotIn()]):
                return test, not positive
            case (
                ast.Compare(inner, [ast.IsNot()], [ast.Constant(None)])
                | ast.Await(inner)
                | ast.NamedExpr(value=inner)
                | ast.BoolOp(ast.And(), [inner, *_])
            ):
                test = inner
            case _:
                break
    return test, positive


def _takes(project: Project, module: Module, node: ast.Call) -> bool:
    owner, _, method = project.resolve(module, node.func).rpartition(".")
    if owner not in known.CACHES:
        return False
    if method == "set":
        return any(one.arg == "nx" and isinstance(one.value, ast.Constant) and one.value.value for one in node.keywords)
    return method == "setnx" or (method in ("add", "aadd") and owner.startswith("django."))


def _method(view: View, node: ast.Call, methods: frozenset[str]) -> str:
    """The method of a cache that is called, if it is one of these."""
    owner, _, method = view.project.resolve(view.module, node.func).rpartition(".")
    return method if owner in known.CACHES and method in methods else ""


def _reaches(view: View, node: ast.Call, methods: frozenset[str]) -> bool:
    """Tell whether a call is one of a cache's methods, or of a function of the project that makes one."""
    if _method(view, node, methods):
        return True
    found = view.project.function(view.project.resolve(view.module, node.func))
    if found is None:
        return False
    inside = view._replace(module=found[0])
    return any(isinstance(one, ast.Call) and bool(_method(inside, one, methods)) for one in own_nodes(found[1]))


def _kept(view: View, node: ast.If, test: ast.expr) -> ast.expr | None:
    """The set, dict or list that a condition looks into, if it outlives the call of the function around."""
    match test:
        case ast.Compare(_, [ast.In() | ast.NotIn()], [owner]) | ast.Call(ast.Attribute(owner, "get")):
            pass
        case _:
            return None
    found: Binding | None = None
    if isinstance(owner, ast.Name):
        found = view.project.binding(view.module, owner)
        around = view.module.function_around(node)
        if around is not None and owner.id in view.module.scopes[around].names and not _in_consumer(view, node):
            return None
    elif isinstance(owner, ast.Attribute) and isinstance(owner.value, ast.Name):
        of = view.project.binding(view.module, owner.value)
        if of is not None and of.how is How.OWNER and of.node is not None:
            scope = view.module.scopes[of.node]
            found = scope.at(owner.attr, None) or scope.attributes.get(owner.attr)
    made = found.node if found is not None else None
    made = made.value if isinstance(made, ast.AnnAssign) else made
    if isinstance(made, ast.Call):
        return owner if view.project.resolve(view.module, made.func) in known.CONTAINERS else None
    return owner if isinstance(made, ast.Dict | ast.List) and not ast.unparse(made).strip("{}[]") else None


def _in_consumer(view: View, node: ast.AST) -> bool:
    loops = {id(one.node) for one in view.entry_points.consumers(view.module)}
    current: ast.AST | None = node
    while current is not None and id(current) not in loops:
        current = view.module.parents.get(current)
    return current is not None and not isinstance(current, Function)


def _adds(node: ast.AST, owner: str) -> bool:
    match node:
        case ast.Call(ast.Attribute(value, method)) if method in _SETS:
            return ast.unparse(value) == owner
        case ast.Assign([ast.Subscript(value)]):
            return ast.unparse(value) == owner
    return False


def _after(module: Module, node: ast.If) -> list[ast.stmt]:
    """The statements that run if the condition is false: after a body that leaves, what comes next."""
    if node.orelse or not isinstance(node.body[-1], ast.Return | ast.Raise | ast.Continue):
        return node.orelse
    around = module.parents.get(node)
    for body in (getattr(around, name, []) for name in ("body", "orelse", "finalbody")):
        if isinstance(body, list) and node in body:
            return list(body[body.index(node) + 1 :])
    return []
