"""Stored rows in the code: which values are rows, which are made here, and whether a change of one is saved."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrysafe.scan import catalogue as known
from retrysafe.scan.module import Function, How, Module
from retrysafe.scan.project import Project, own_nodes

_VALIDATING = frozenset({"model_validate", "model_validate_json", "model_construct", "from_orm", "parse_obj"})
"""Class methods of Pydantic and SQLModel that make an instance."""


def is_new(project: Project, module: Module, node: ast.expr) -> bool:
    """Tell whether a value is made here, by calling a class of the project."""
    made = project.value(module, node)
    if isinstance(made, ast.List | ast.ListComp):
        return True
    if isinstance(made, ast.Call):
        function = made.func
        if isinstance(function, ast.Attribute) and function.attr in _VALIDATING:
            function = function.value
        return _is_class(project, project.resolve(module, function))
    return _is_body(project, module, node)


def _is_body(project: Project, module: Module, node: ast.expr) -> bool:
    """Tell whether a value is a parameter of a decorated handler, which a framework makes of the request."""
    found = project.binding(module, node)
    around = module.function_around(node)
    if found is None or found.how is not How.TYPED or around is None or not around.decorator_list:
        return False
    return _is_class(project, project.resolve(module, node).removesuffix("()"))


def _is_class(project: Project, symbol: str) -> bool:
    found = project.definition(symbol)
    return found is not None and isinstance(found[1], ast.ClassDef)


def is_row(project: Project, module: Module, owner: ast.expr) -> bool:
    """Tell whether a value is a stored row, rather than one that is made here."""
    if isinstance(project.value(module, owner), ast.Call) and is_new(project, module, owner):
        return False
    symbol = project.resolve(module, owner)
    if symbol in known.DJANGO_READS or symbol in known.SESSION_READS:
        return True
    return symbol.endswith("()") and project.is_a(symbol.removesuffix("()"), known.DJANGO_MODEL)


def is_tracked(project: Project, module: Module, owner: ast.expr) -> bool:
    """Tell whether a session writes the changes of a row by itself when it commits."""
    return project.resolve(module, owner) in known.SESSION_READS


def saves(function: Function, owner: ast.expr) -> Iterator[ast.Call]:
    name = ast.unparse(owner)
    for one in own_nodes(function):
        match one:
            case ast.Call(ast.Attribute(value, "save" | "asave")) if ast.unparse(value) == name:
                yield one
