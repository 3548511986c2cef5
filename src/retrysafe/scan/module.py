"""One parsed module: what each name is bound to, scope by scope."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef


class How(Enum):
    """The origin of a name's value."""

    SYMBOL = auto()
    """By an import."""
    VALUE = auto()
    """By an assignment of the expression."""
    UNPACKED = auto()
    """As one of several targets of an assignment."""
    ENTERED = auto()
    """By ``with … as``."""
    ITEM = auto()
    """By a loop over the expression."""
    TYPED = auto()
    """By an annotation: an instance of it."""
    INJECTED = auto()
    """A parameter with the expression as its default."""
    OWNER = auto()
    """The first parameter of a method; the node is the class."""
    DEFINED = auto()
    """By ``def`` or ``class``."""


class Binding(NamedTuple):
    """One binding of a name; ``place`` is that in an unpacking; 1 for the class of a class method."""

    line: int
    how: How
    node: ast.AST | None = None
    symbol: str = ""
    place: int = 0


class Scope:
    """The names of a module, a class or a function."""

    def __init__(self, node: ast.AST, parent: Scope | None, qualname: str) -> None:
        self.node = node
        self.parent = parent
        self.qualname = qualname
        self.names: dict[str, list[Binding]] = {}
        self.attributes: dict[str, Binding] = {}
        """Of a class: what its methods assign to attributes of their first parameter."""

    def bind(self, name: str, binding: Binding) -> None:
        self.names.setdefault(name, []).append(binding)

    def at(self, name: str, line: int | None) -> Binding | None:
        """The binding that holds at a line: the last one above it, or else the first; without a line, the last."""
        found = self.names.get(name)
        if not found:
            return None
        if line is None:
            return found[-1]
        before = [one for one in found if one.line < line]
        return before[-1] if before else found[0]


class Module:
    """A module of the scanned project: its tree, its scopes and its definitions."""

    def __init__(self, name: str, shown: str, tree: ast.Module, *, package: bool) -> None:
        self.name = name
        self.shown = shown
        self.tree = tree
        self.parents: dict[ast.AST, ast.AST] = {}
        self.scopes: dict[ast.AST, Scope] = {}
        self.definitions: dict[str, ast.ClassDef | Function] = {}
        self.stars: list[str] = []
        """Modules that everything is imported from."""
        self.nodes: list[ast.AST] = []
        """Every node, in the order of the text."""
        self.resolved: dict[ast.AST, str] = {}
        """Symbols of expressions, as far as they were asked for."""
        self._package = name if package else name.rpartition(".")[0]
        self.top = Scope(tree, None, "")
        self._bind_all()

    # ------------------------------------------------------------ reading

    def scope_of(self, node: ast.AST) -> Scope:
        """The scope in which a node's names are looked up."""
        current: ast.AST | None = node
        while current is not None:
            if current in self.scopes:
                return self.scopes[current]
            current = self.parents.get(current)
        return self.top

    def functions(self) -> Iterator[tuple[str, Function]]:
        for name, node in self.definitions.items():
            if isinstance(node, Function):
                yield name, node

    def classes(self) -> Iterator[tuple[str, ast.ClassDef]]:
        for name, node in self.definitions.items():
            if isinstance(node, ast.ClassDef):
                yield name, node

    def function_around(self, node: ast.AST) -> Function | None:
        current = self.parents.get(node)
        while current is not None and not isinstance(current, Function):
            current = self.parents.get(current)
        return current

    def qualname_at(self, node: ast.AST) -> str:
        """The qualified name of the definition that a node is or is in; empty at the module's top."""
        return self.scope_of(node).qualname

    # ------------------------------------------------------------ binding

    def _bind_all(self) -> None:
        self.scopes[self.tree] = self.top
        stack: list[tuple[ast.AST, Scope]] = [(self.tree, self.top)]
        while stack:
            node, scope = stack.pop()
            self.nodes.append(node)
            inner = self._bind(node, scope)
            children = list(ast.iter_child_nodes(node))
            self.parents.update(dict.fromkeys(children, node))
            outside = set(_outside(node)) if inner is not scope else ()
            stack += [(child, scope if child in outside else inner) for child in reversed(children)]

    def _bind(self, node: ast.AST, scope: Scope) -> Scope:
        match node:
            case ast.Import():
                for alias in node.names:
                    whole = alias.name if alias.asname else alias.name.partition(".")[0]
                    scope.bind(alias.asname or whole, Binding(node.lineno, How.SYMBOL, symbol=whole))
            case ast.ImportFrom():
                self._bind_from(node, scope)
            case ast.Assign():
                for target in node.targets:
                    self._bind_target(target, node.value, scope)
            case ast.AnnAssign():
                self._bind_name(node.target, Binding(node.lineno, How.TYPED, node), scope)
            case ast.NamedExpr():
                self._bind_target(node.target, node.value, scope)
            case ast.withitem() if node.optional_vars is not None:
                line = node.context_expr.lineno
                self._bind_name(node.optional_vars, Binding(line, How.ENTERED, node.context_expr), scope)
            case ast.For() | ast.AsyncFor():
                self._bind_name(node.target, Binding(node.lineno, How.ITEM, node.iter), scope)
            case ast.comprehension():
                self._bind_name(node.target, Binding(node.iter.lineno, How.ITEM, node.iter), scope)
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                return self._define(node, scope)
        return scope

    def _bind_from(self, node: ast.ImportFrom, scope: Scope) -> None:
        base = node.module or ""
        if node.level:
            package = self._package.split(".") if self._package else []
            kept = package[: len(package) - node.level + 1]
            base = ".".join([*kept, *([base] if base else [])])
        for alias in node.names:
            if alias.name == "*":
                self.stars.append(base)
            else:
                symbol = f"{base}.{alias.name}" if base else alias.name
                scope.bind(alias.asname or alias.name, Binding(node.lineno, How.SYMBOL, symbol=symbol))

    def _bind_target(self, target: ast.expr, value: ast.expr, scope: Scope) -> None:
        if not isinstance(target, ast.Tuple | ast.List):
            self._bind_name(target, Binding(target.lineno, How.VALUE, value), scope)
        elif isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
            for one, what in zip(target.elts, value.elts, strict=True):
                self._bind_name(one, Binding(target.lineno, How.VALUE, what), scope)
        else:
            for index, one in enumerate(target.elts):
                self._bind_name(one, Binding(target.lineno, How.UNPACKED, value, place=index), scope)

    def _bind_name(self, target: ast.expr, binding: Binding, scope: Scope) -> None:
        match target:
            case ast.Name(name):
                scope.bind(name, binding)
            case ast.Attribute(ast.Name(owner), name):
                of = scope.at(owner, target.lineno)
                if of is not None and of.how is How.OWNER and of.node in self.scopes:
                    self.scopes[of.node].attributes.setdefault(name, binding)

    def _define(self, node: ast.ClassDef | Function, scope: Scope) -> Scope:
        scope.bind(node.name, Binding(node.lineno, How.DEFINED, node))
        qualname = f"{scope.qualname}.{node.name}" if scope.qualname else node.name
        self.definitions[qualname] = node  # the last of a name is the one that counts, as when Python runs it
        inner = self.scopes[node] = Scope(node, scope, qualname)
        if not isinstance(node, ast.ClassDef):
            self._bind_parameters(node, inner, scope.node)
        return inner

    def _bind_parameters(self, node: Function, inner: Scope, owner: ast.AST) -> None:
        arguments = [*node.args.posonlyargs, *node.args.args]
        defaults: list[ast.expr | None] = [None] * (len(arguments) - len(node.args.defaults))
        pairs = [*zip(arguments, [*defaults, *node.args.defaults], strict=True)]
        pairs += [*zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)]
        named = {one.id for one in node.decorator_list if isinstance(one, ast.Name)}
        for index, (argument, default) in enumerate(pairs):
            if index == 0 and isinstance(owner, ast.ClassDef) and "staticmethod" not in named:
                binding = Binding(node.lineno, How.OWNER, owner, place=int("classmethod" in named))
            elif argument.annotation is not None:
                binding = Binding(node.lineno, How.TYPED, argument)
            else:
                binding = Binding(node.lineno, How.INJECTED, default)
            inner.bind(argument.arg, binding)


def _outside(node: ast.AST) -> Iterator[ast.AST]:
    """Children of a definition that are evaluated in the scope around it."""
    if isinstance(node, ast.ClassDef):
        yield from [*node.bases, *node.keywords, *node.decorator_list]
    elif isinstance(node, Function):
        yield from [*node.decorator_list, *([node.returns] if node.returns else [])]
