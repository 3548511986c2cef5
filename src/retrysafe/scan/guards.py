"""The code that recognises a second attempt: retrysafe's claims and decorators, similar libraries, a stored mark."""

from __future__ import annotations

import ast

from retrysafe.scan import catalogue as known
from retrysafe.scan.module import Function, How, Module
from retrysafe.scan.project import Project, own_nodes
from retrysafe.scan.states import leaving_before
from retrysafe.scan.symbols import Symbols


def is_guarded(project: Project, module: Module, function: Function) -> bool:
    """Tell whether a decorator, a dependency or the class of a function guards it, or it reads an `Idempotency-Key`."""
    if any(mentions_guard(project, module, one) for one in function.decorator_list):
        return True
    for default in [*function.args.defaults, *function.args.kw_defaults]:
        if default is not None and (mentions_guard(project, module, default) or reads_key(default)):
            return True
    for argument in [*function.args.args, *function.args.kwonlyargs]:
        if argument.annotation is not None and mentions_guard(project, module, argument.annotation):
            return True
    owner = module.parents.get(function)
    if isinstance(owner, ast.ClassDef) and _class_is_guarded(project, module, owner):
        return True
    return any(reads_key(one) for one in own_nodes(function))


def _class_is_guarded(project: Project, module: Module, node: ast.ClassDef) -> bool:
    symbol = f"{module.name}:{module.scopes[node].qualname}"
    if any(base in known.GUARDS for base in project.bases(symbol)):
        return True
    return any(mentions_guard(project, module, one) for one in node.decorator_list)


def mentions_guard(project: Project, module: Module, node: ast.AST) -> bool:
    names = (one for one in ast.walk(node) if isinstance(one, ast.Name | ast.Attribute))
    return any(project.resolve(module, one) in known.GUARDS for one in names)


def reads_key(node: ast.AST) -> bool:
    """Tell whether a node is the name of the header, as code has it that handles the key itself."""
    return isinstance(node, ast.Constant) and str(node.value).lower() in known.KEY_HEADERS


def in_guard(project: Project, module: Module, node: ast.AST) -> bool:
    current = module.parents.get(node)
    while current is not None and not isinstance(current, Function | ast.Lambda):
        if isinstance(current, ast.With | ast.AsyncWith) and any(
            project.resolve(module, item.context_expr) in known.GUARDS for item in current.items
        ):
            return True
        current = module.parents.get(current)
    return False


def runs_once_known(project: Project, module: Module, node: ast.AST) -> bool:
    """Tell whether a node runs only if a row of its own was made before: ``if created:`` after `get_or_create`."""
    current = module.parents.get(node)
    while current is not None and not isinstance(current, Function):
        if isinstance(current, ast.If) and _asks_whether_created(project, module, current.test):
            return True
        current = module.parents.get(current)
    return False


def _asks_whether_created(project: Project, module: Module, test: ast.expr) -> bool:
    for name in ast.walk(test):
        found = project.binding(module, name)
        if found is not None and found.how is How.UNPACKED and found.place == 1:
            made = found.node.value if isinstance(found.node, ast.Await) else found.node
            if isinstance(made, ast.Call):
                symbol = project.resolve(module, made.func)
                if symbol in known.GET_OR_CREATE or (
                    isinstance(made.func, ast.Attribute) and f".{made.func.attr}" in known.GET_OR_CREATE
                ):
                    return True
    return False


def is_looked_up(project: Project, module: Module, node: ast.AST) -> bool:
    """Tell whether a row is made only if a look-up found none, or where a unique constraint's error is handled.

    Two at once may still both find none; a retry after the first has ended does not.
    """
    inner, current = node, module.parents.get(node)
    while current is not None and not isinstance(inner, Function):
        match current:
            case ast.ExceptHandler(type=ast.expr() as caught) if _is_error(project, module, caught, known.NO_ROW):
                return True
            case ast.FunctionDef() | ast.AsyncFunctionDef() if any(
                isinstance(one, ast.ExceptHandler)
                and one.type is not None
                and _is_error(project, module, one.type, known.NOT_UNIQUE)
                for one in own_nodes(current)
            ):
                return True
            case ast.If(test, body) if inner in body and _says_found(project, module, test) is False:
                return True
            case ast.If(test, _, orelse) if inner in orelse and _says_found(project, module, test) is True:
                return True
        if isinstance(inner, ast.stmt) and any(
            _says_found(project, module, one.test) is True for one in leaving_before(current, inner)
        ):
            return True
        inner, current = current, module.parents.get(current)
    return False


def _says_found(project: Project, module: Module, test: ast.expr) -> bool | None:
    """Tell whether a condition says that a look-up found something (True) or nothing (False); None if neither."""
    positive = True
    for _ in range(10):
        match test:
            case ast.UnaryOp(ast.Not(), inner):
                test, positive = inner, not positive
            case ast.Compare(left, [ast.Is()], [ast.Constant(None)]):
                test, positive = left, not positive
            case ast.Compare(left, [ast.IsNot()], [ast.Constant(None)]):
                test = left
            case ast.Await(inner) | ast.NamedExpr(value=inner):
                test = inner
            case _:
                break
    symbol = project.resolve(module, test)
    if _may_find_nothing(project, module, test):
        return positive
    looked = symbol in known.LOOK_UPS or symbol in known.SESSION_READS or symbol in known.DJANGO_READS
    return positive if looked else None


def _may_find_nothing(project: Project, module: Module, test: ast.expr) -> bool:
    """Tell whether a value is what a function of the project returned that may return None."""
    made = project.value(module, test)
    found = project.function(project.resolve(module, made.func)) if isinstance(made, ast.Call) else None
    if found is None or found[1].returns is None:
        return False
    return any(
        (isinstance(one, ast.Constant) and one.value is None) or (isinstance(one, ast.Name) and one.id == "Optional")
        for one in ast.walk(found[1].returns)
        if one is not found[1].returns
    )


def _is_error(project: Project, module: Module, caught: ast.expr, errors: Symbols) -> bool:
    each = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(project.resolve(module, one) in errors for one in each)
