"""States of rows: an effect that a function has only in a state of a row which it then leaves is not repeated.

A second run finds the row in the new state, and does not come as far as the effect. The function has to set the
attribute that the condition is about to a value for which the condition does not hold, and to save the row, wherever it
has the effect. The same holds behind a mark that is taken out of the session of a browser.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from retrysafe.scan import catalogue as known
from retrysafe.scan.module import Function, Module
from retrysafe.scan.project import Project, own_nodes
from retrysafe.scan.rows import is_row, is_tracked, saves

_NEGATED = {ast.NotEq: ast.Eq, ast.IsNot: ast.Is, ast.NotIn: ast.In}


class Condition(NamedTuple):
    """The known values of an attribute at a node: it is one of some values, or none of them.

    owner: the row.
    attribute: its attribute.
    values: the values that it is compared with; None if its truth is asked.
    is_one: whether it is one of them, or true.
    """

    owner: ast.expr
    attribute: str
    values: tuple[ast.expr, ...] | None
    is_one: bool


def leaves_its_state(project: Project, module: Module, node: ast.AST) -> bool:
    """Tell whether a node runs only in a state of a row that the function leaves."""
    around = list(_around(module, node))
    function = around[-1] if around else None
    if not isinstance(function, Function):
        return False
    return any(
        is_row(project, module, condition.owner) and _is_left(project, module, function, around, condition)
        for condition in conditions(module, node)
    )


def takes_a_mark(project: Project, module: Module, node: ast.AST) -> bool:
    """Tell whether a one-time value is taken out of a session before a node: a second run does not find it."""
    around = list(_around(module, node))
    function = around[-1] if around else None
    return isinstance(function, Function) and any(
        isinstance(one, ast.Call)
        and len(one.args) == 1
        and one.lineno < getattr(node, "lineno", 0)
        and project.resolve(module, one.func) in known.SESSION_POPS
        and _always(module, one, around)
        for one in own_nodes(function)
    )


def _is_left(project: Project, module: Module, function: Function, around: list[ast.AST], condition: Condition) -> bool:
    """Tell whether the function saves the row with an attribute for which a condition does not hold any more."""
    saved = is_tracked(project, module, condition.owner) or any(
        _always(module, one, around) for one in saves(function, condition.owner)
    )
    made = list(_assignments(function, condition)) if saved else []
    return any(_always(module, one, around) for one in made) and all(
        _fails(project, module, condition, one.value) for one in made
    )


def _around(module: Module, node: ast.AST) -> Iterator[ast.AST]:
    current = module.parents.get(node)
    while current is not None:
        yield current
        if isinstance(current, Function | ast.Lambda | ast.ClassDef):
            return
        current = module.parents.get(current)


def leaving_before(around: ast.AST, statement: ast.AST) -> Iterator[ast.If]:
    """The conditions before a statement in its block whose bodies leave the block."""
    for name in ("body", "orelse", "finalbody"):
        body = getattr(around, name, None)
        if isinstance(body, list) and statement in body:
            for one in body[: body.index(statement)]:
                if isinstance(one, ast.If) and isinstance(one.body[-1], ast.Return | ast.Raise | ast.Continue):
                    yield one


def conditions(module: Module, node: ast.AST) -> Iterator[Condition]:
    """Yield the facts about attributes that hold at a node, by the branches around and left before it."""
    inner = node
    for current in _around(module, node):
        if isinstance(current, ast.If) and inner is not current.test:
            yield from _conditions(current.test, holds=inner in current.body)
        for left in leaving_before(current, inner):
            yield from _conditions(left.test, holds=False)
        inner = current


def _conditions(test: ast.expr, *, holds: bool) -> Iterator[Condition]:
    match test:
        case ast.UnaryOp(ast.Not(), inner):
            yield from _conditions(inner, holds=not holds)
        case ast.BoolOp(ast.And(), values) if holds:
            yield from (one for each in values for one in _conditions(each, holds=True))
        case ast.BoolOp(ast.Or(), values) if not holds:
            yield from (one for each in values for one in _conditions(each, holds=False))
        case ast.Attribute(owner, attribute):
            yield Condition(owner, attribute, None, holds)
        case ast.Compare(ast.Attribute(owner, attribute), [operator], [right]):
            plain = _NEGATED.get(type(operator), type(operator))
            is_one = holds if plain is type(operator) else not holds
            if plain in (ast.Eq, ast.Is):
                yield Condition(owner, attribute, (right,), is_one)
            elif plain is ast.In and isinstance(right, ast.Tuple | ast.List | ast.Set):
                yield Condition(owner, attribute, tuple(right.elts), is_one)


def _assignments(function: Function, condition: Condition) -> Iterator[ast.Assign]:
    owner = ast.unparse(condition.owner)
    for one in own_nodes(function):
        if isinstance(one, ast.Assign) and any(
            isinstance(target, ast.Attribute)
            and target.attr == condition.attribute
            and ast.unparse(target.value) == owner
            for target in one.targets
        ):
            yield one


def _always(module: Module, node: ast.AST, around: list[ast.AST]) -> bool:
    """Tell whether a statement is in one of the blocks around another node, rather than in a branch beside it."""
    statement = node
    while not isinstance(statement, ast.stmt):
        statement = module.parents[statement]
    return module.parents.get(statement) in around


def _fails(project: Project, module: Module, condition: Condition, value: ast.expr) -> bool:
    """Tell whether a condition surely does not hold for a value."""
    if condition.values is None:
        met = _truth(project, module, value)
    else:
        same = [_same(project, module, one, value) for one in condition.values]
        met = True if True in same else None if None in same else False
    return met is not None and met is not condition.is_one


def _truth(project: Project, module: Module, value: ast.expr) -> bool | None:
    if isinstance(value, ast.Constant):
        return bool(value.value)
    return True if project.resolve(module, value) in known.INSTANTS else None


def _same(project: Project, module: Module, one: ast.expr, other: ast.expr) -> bool | None:
    """Tell whether two expressions have the same value; None if that cannot be told."""
    if ast.dump(one) == ast.dump(other):
        return None if any(isinstance(each, ast.Call) for each in ast.walk(one)) else True
    match one, other:
        case ast.Constant(first), ast.Constant(second):
            return bool(first == second)
        case ast.Attribute(first_of, first), ast.Attribute(second_of, second):
            return False if ast.dump(first_of) == ast.dump(second_of) and first != second else None
        case (ast.Constant(None), value) | (value, ast.Constant(None)):
            return False if _truth(project, module, value) else None
    return None
