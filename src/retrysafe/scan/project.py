"""The scanned files as one project: follows a name through assignments, imports and classes to where it came from.

Modules are parsed when they are asked for, and only some are kept, so that a large project fits in memory.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from retrysafe.scan.catalogue import (
    GENERATORS,
    INJECTING,
    KNOWN,
    PROPERTIES,
    TASK_DECORATORS,
    WRAPPING_TYPES,
    simplify,
)
from retrysafe.scan.module import Binding, Function, How, Module, Scope
from retrysafe.scan.source import SourceFile, parse, read
from retrysafe.scan.symbols import Symbols

KEPT_MODULES = 300
MAX_STEPS = 40
"""Expressions between an expression and where it came from, at most."""
MAX_WORK = 1000
"""Expressions that are looked at to resolve one: names that branch again and again would take for ever."""
MAX_BASES = 40


class Project:
    """Resolves expressions to symbols."""

    def __init__(self, files: Iterable[SourceFile]) -> None:
        self._named: dict[str, list[SourceFile]] = defaultdict(list)
        self._names: dict[Path, str] = {}
        for file in files:
            names = _module_names(file)
            self._names[file.path] = names[0]
            for name in names:
                self._named[name].append(file)
        self._kept: OrderedDict[Path, Module | None] = OrderedDict()
        self._exports: dict[tuple[str, str], str] = {}
        self._active: set[object] = set()
        self._steps = 0
        self._work = 0

    # ------------------------------------------------------------ modules

    def open(self, file: SourceFile) -> Module:
        """The module of a file. Raises `ValueError` or `OSError` if it cannot be parsed or read."""
        kept = self._kept.get(file.path)
        if kept is not None:
            self._kept.move_to_end(file.path)
            return kept
        name = self._names[file.path]
        module = Module(name, file.shown, parse(read(file.path)), package=file.path.name == "__init__.py")
        self._kept[file.path] = module
        if len(self._kept) > KEPT_MODULES:
            self._kept.popitem(last=False)
        return module

    def module(self, name: str) -> Module | None:
        """The module that is imported by this name, if it belongs to the project and can be parsed."""
        found = self._named.get(name)
        if not found:
            return None
        file = found[0] if len(found) == 1 else next((one for one in found if self._names[one.path] == name), None)
        if file is None or (file.path in self._kept and self._kept[file.path] is None):
            return None
        try:
            return self.open(file)
        except (ValueError, OSError):
            self._kept[file.path] = None
            return None

    def definition(self, symbol: str) -> tuple[Module, ast.ClassDef | Function] | None:
        name, colon, qualname = symbol.partition(":")
        module = self.module(name) if colon else None
        node = module.definitions.get(qualname) if module is not None else None
        return (module, node) if module is not None and node is not None else None

    def function(self, symbol: str) -> tuple[Module, Function] | None:
        found = self.definition(symbol)
        return (found[0], found[1]) if found is not None and isinstance(found[1], Function) else None

    # ------------------------------------------------------------ expressions

    def resolve(self, module: Module, node: ast.AST | None) -> str:
        """Return the origin of an expression's value, as a symbol; empty if that is not known."""
        if node is None:
            return ""
        found = module.resolved.get(node)
        if found is None:
            key = (module.shown, id(node))
            if self._steps == 0:
                self._work = 0
            self._work += 1
            if key in self._active or self._steps > MAX_STEPS or self._work > MAX_WORK:
                return ""
            self._active.add(key)
            self._steps += 1
            try:
                found = self._resolve(module, node)
            finally:
                self._steps -= 1
                self._active.discard(key)
            if self._steps == 0 or found:
                module.resolved[node] = found
        return found

    def _resolve(self, module: Module, node: ast.AST) -> str:
        match node:
            case ast.Name():
                return self._name(module, node)
            case ast.Attribute(value, attribute):
                base = self.resolve(module, value)
                return self.member(base, attribute) if base else ""
            case ast.Call(function):
                return self.call_of(self.resolve(module, function))
            case ast.Await(value) | ast.NamedExpr(value=value):
                return self.resolve(module, value)
            case ast.Subscript(value):
                base = self.resolve(module, value)
                return f"{base}[]" if base.endswith((")", "]")) else base
            case ast.BoolOp(values=values):
                return next(filter(None, (self.resolve(module, one) for one in values)), "")
            case ast.IfExp(_, body, orelse):
                return self.resolve(module, body) or self.resolve(module, orelse)
        return ""

    def binding(self, module: Module, node: ast.AST) -> Binding | None:
        """Return the binding of an expression that is a name, in the scopes around it."""
        if not isinstance(node, ast.Name):
            return None
        first = scope = module.scope_of(node)
        current: Scope | None = scope
        while current is not None:
            if current is first or not isinstance(current.node, ast.ClassDef):
                found = current.at(node.id, node.lineno if current is first else None)
                if found is not None:
                    return found
            current = current.parent
        return None

    def value(self, module: Module, node: ast.expr) -> ast.AST:
        """The expression that a name was last assigned, or the node itself."""
        for _ in range(5):
            found = self.binding(module, node)
            if found is None or found.how is not How.VALUE or not isinstance(found.node, ast.expr):
                break
            node = found.node
        return node.value if isinstance(node, ast.Await) else node

    def _name(self, module: Module, node: ast.Name) -> str:
        found = self.binding(module, node)
        if found is not None:
            return self._resolve_binding(module, found)
        for star in module.stars:
            other = self.module(star)
            if other is not None and (symbol := self._export(other, node.id)):
                return symbol
        return f"builtins.{node.id}" if hasattr(builtins, node.id) else ""

    def _resolve_binding(self, module: Module, found: Binding) -> str:
        match found.how:
            case How.SYMBOL:
                return self._resolve_import(found.symbol)
            case How.VALUE:
                return self.resolve(module, found.node)
            case How.UNPACKED | How.ITEM:
                base = self.resolve(module, found.node)
                return f"{base}[]" if base else ""
            case How.ENTERED:
                return simplify(self.resolve(module, found.node))
            case How.TYPED:
                return self._resolve_annotation(module, found.node)
            case How.INJECTED:
                return self._resolve_injection(module, found.node)
            case How.OWNER:
                return f"{module.name}:{module.scopes[found.node].qualname}{'' if found.place else '()'}"  # type: ignore[index]
            case How.DEFINED:
                return self._resolve_definition(module, found.node)

    def _resolve_definition(self, module: Module, node: ast.AST | None) -> str:
        assert isinstance(node, ast.ClassDef | Function)
        for decorator in node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            symbol = self.resolve(module, called)
            for tasks, instance in TASK_DECORATORS:
                if symbol in tasks:
                    return "" if self._sends_in_its_way(module, decorator) else instance
        return f"{module.name}:{module.scopes[node].qualname}"

    def _sends_in_its_way(self, module: Module, decorator: ast.expr) -> bool:
        """Tell whether a task's ``base=`` is a class of the project that sends otherwise, as after the commit."""
        options = decorator.keywords if isinstance(decorator, ast.Call) else []
        base = next((self.resolve(module, one.value) for one in options if one.arg == "base"), "")
        members = (self.definition(f"{one}.{name}") for one in self.bases(base) for name in ("apply_async", "delay"))
        return any(one is not None for one in members)

    def _resolve_annotation(self, module: Module, node: ast.AST | None) -> str:
        assert isinstance(node, ast.arg | ast.AnnAssign)
        symbol = self.annotation(module, node.annotation)
        if symbol and not symbol.startswith(("builtins.", "typing.")):
            return simplify(f"{symbol}()")
        return self.resolve(module, node.value) if isinstance(node, ast.AnnAssign) else ""

    def _resolve_injection(self, module: Module, node: ast.AST | None) -> str:
        if isinstance(node, ast.Call) and node.args and self.resolve(module, node.func) in INJECTING:
            return self.call_of(self.resolve(module, node.args[0]))
        return self.resolve(module, node)

    def annotation(self, module: Module, node: ast.AST | None, steps: int = 0) -> str:
        """The class that an annotation names, without what is wrapped around it."""
        if steps > 10:
            return ""
        match node:
            case ast.Constant(str(text)) if len(text) < 200:
                return self._resolve_quoted(module, node, text, steps)
            case ast.BinOp(left, ast.BitOr(), right):
                return self.annotation(module, left, steps + 1) or self.annotation(module, right, steps + 1)
            case ast.Subscript(value, inner):
                outer = self.resolve(module, value)
                if outer in WRAPPING_TYPES or outer in GENERATORS:
                    first = inner.elts[0] if isinstance(inner, ast.Tuple) and inner.elts else inner
                    return self.annotation(module, first, steps + 1)
                return outer if not outer.startswith(("builtins.", "typing.", "collections.")) else ""
            case ast.Name() | ast.Attribute():
                return self._alias(module, node, steps) or self.resolve(module, node)
        return ""

    def _resolve_quoted(self, module: Module, node: ast.AST, text: str, steps: int) -> str:
        try:
            parsed = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return ""
        for one in ast.walk(parsed):
            module.parents[one] = node
        return self.annotation(module, parsed, steps + 1)

    def _alias(self, module: Module, node: ast.AST, steps: int) -> str:
        """Follow ``SessionDep = Annotated[Session, Depends(…)]``, here or in the module that it is imported from."""
        found = self.binding(module, node)
        home: Module | None = module
        for _ in range(5):
            if found is None or found.how is not How.SYMBOL:
                break
            name, _, attribute = found.symbol.rpartition(".")
            home = self.module(name)
            found = home.top.at(attribute, None) if home is not None else None
        if home is None or found is None or found.how not in (How.VALUE, How.TYPED):
            return ""
        value = found.node.value if isinstance(found.node, ast.AnnAssign) else found.node
        return self.annotation(home, value, steps + 1) if isinstance(value, ast.Subscript | ast.BinOp) else ""

    # ------------------------------------------------------------ symbols

    def call_of(self, symbol: str) -> str:
        """Return the result of calling this symbol."""
        found = self.function(symbol)
        if found is None:
            return simplify(f"{symbol}()") if symbol else ""
        module, node = found
        if node.returns is not None:
            named = self.annotation(module, node.returns)
            return simplify(f"{named}()") if named and not named.startswith("builtins.") else f"{symbol}()"
        returned = [one.value for one in own_nodes(node) if isinstance(one, ast.Return) and one.value is not None]
        return (self.resolve(module, returned[0]) if len(returned) == 1 else "") or f"{symbol}()"

    def member(self, base: str, attribute: str) -> str:
        """The symbol of an attribute of what a symbol names."""
        if ":" in base:
            instance = base.endswith("()")
            found = self.definition(base.removesuffix("()"))
            if found is not None and isinstance(found[1], ast.ClassDef):
                return self._class_member(base.removesuffix("()"), attribute, instance=instance)
            return simplify(f"{base}.{attribute}")
        if base.isidentifier() or base.replace(".", "").isidentifier():
            return self._resolve_import(f"{base}.{attribute}")
        return simplify(f"{base}.{attribute}")

    def _class_member(self, symbol: str, attribute: str, *, instance: bool) -> str:
        external = ""
        for base in self.bases(symbol):
            found = self.definition(base)
            if found is None:
                if base.startswith(KNOWN) or not external:
                    external = external if external.startswith(KNOWN) else base
                continue
            module, node = found
            scope = module.scopes[node]
            binding = scope.at(attribute, None) or scope.attributes.get(attribute)
            if binding is not None:
                return self._of_class(module, base, binding)
        return simplify(f"{external}{'()' if instance else ''}.{attribute}") if external else ""

    def _of_class(self, module: Module, owner: str, binding: Binding) -> str:
        node = binding.node
        if binding.how is not How.DEFINED or not isinstance(node, Function):
            return self._resolve_binding(module, binding)
        symbol = f"{owner}.{node.name}"
        if any(self.resolve(module, one) in PROPERTIES for one in node.decorator_list):
            return self.call_of(symbol)
        return symbol

    def bases(self, symbol: str) -> list[str]:
        found: list[str] = []
        waiting = [symbol]
        while waiting and len(found) < MAX_BASES:
            current = waiting.pop(0)
            if current in found:
                continue
            found.append(current)
            here = self.definition(current)
            if here is not None and isinstance(here[1], ast.ClassDef):
                resolved = (self.resolve(here[0], one) for one in here[1].bases)
                waiting += [one.removesuffix("[]") for one in resolved if one]
        return found

    def is_a(self, symbol: str, classes: Symbols) -> bool:
        return any(one in classes for one in self.bases(symbol))

    def _resolve_import(self, symbol: str) -> str:
        parts = symbol.split(".")
        for size in range(len(parts), 0, -1):
            name = ".".join(parts[:size])
            module = self.module(name)
            if module is None:
                continue
            if size == len(parts):
                return symbol
            current = self._export(module, parts[size])
            for part in parts[size + 1 :]:
                current = self.member(current, part) if current else ""
            return current
        return simplify(symbol)

    def _export(self, module: Module, name: str) -> str:
        key = (module.name, name)
        if key in self._exports:
            return self._exports[key]
        if key in self._active:
            return ""
        self._active.add(key)
        try:
            found = module.top.at(name, None)
            symbol = self._resolve_binding(module, found) if found is not None else self._from_stars(module, name)
        finally:
            self._active.discard(key)
        self._exports[key] = symbol
        return symbol

    def _from_stars(self, module: Module, name: str) -> str:
        others = (self.module(one) for one in module.stars)
        return next(filter(None, (self._export(one, name) for one in others if one is not None)), "")


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when a function runs: those of functions, classes and lambdas inside it are left out."""
    stack: list[ast.AST] = [function]
    if isinstance(function, Function | ast.Module):
        stack = [*reversed(function.body)]
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            stack += reversed(list(ast.iter_child_nodes(node)))


def _module_names(file: SourceFile) -> list[str]:
    """Return a module's import names: its path below the root, and below each folder that is no package."""
    folders = list(file.path.relative_to(file.root).parent.parts)
    parts = folders if file.path.name == "__init__.py" else [*folders, file.path.stem]
    names = [".".join([*_packages_above(file.root), *parts]) or file.path.stem]
    for start in range(1, len(parts)):
        folder = file.root.joinpath(*folders[:start])
        taken = parts[start] in sys.stdlib_module_names or f"{parts[start]}.".startswith(KNOWN)
        if not taken and not (folder / "__init__.py").exists():
            names.append(".".join(parts[start:]))
    return names


def _packages_above(root: Path) -> list[str]:
    names: list[str] = []
    current = root.resolve()
    while (current / "__init__.py").exists() and current.parent != current:
        names.insert(0, current.name)
        current = current.parent
    return names
