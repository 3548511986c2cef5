"""The effects of a function that happen twice when it runs twice: new rows, calls, messages, increments."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from retrysafe.scan import catalogue as known
from retrysafe.scan.guards import in_guard, is_guarded, is_looked_up, reads_key, runs_once_known
from retrysafe.scan.module import Function, Module
from retrysafe.scan.project import Project, own_nodes
from retrysafe.scan.rows import is_new, is_row, is_tracked, saves
from retrysafe.scan.states import leaves_its_state, takes_a_mark

_INSERT = re.compile(r"\s*(?:WITH\b.*\)\s*)?INSERT\s+INTO\b", re.IGNORECASE | re.DOTALL)
_UPSERT = re.compile(r"\bON\s+CONFLICT\b|\bON\s+DUPLICATE\b|\bNOT\s+EXISTS\b", re.IGNORECASE)
_UPDATE = re.compile(r"\bUPDATE\b", re.IGNORECASE)
_SET = re.compile(r"\bSET\b", re.IGNORECASE)
_ADDED = re.compile(r"\b(\w++)\s*+=\s*+(?:\w++\.)?+(\w++)\s*+[+-]\s*+[\w:%$?.(]")
"""A column that is set to something plus or minus something."""
_DEPTH = 3
"""Calls that are followed into functions of the project, one below the other."""
_BREADTH = 200


class EffectKind(Enum):
    """The kind of an effect, as a verb in a message."""

    CREATE = "creates a row"
    CALL = "calls out"
    READ = "reads from another service"
    SEND = "sends a message"
    INCREMENT = "adds to a stored number"


_IN_ROWS = frozenset({EffectKind.CREATE, EffectKind.INCREMENT})


class Effect(NamedTuple):
    """One effect. ``what`` is the source text; ``through`` names the functions between, outermost first."""

    kind: EffectKind
    what: str
    line: int
    shown: str
    node: ast.AST
    through: tuple[str, ...] = ()
    keyed: bool = False
    """The call carries an idempotency key, by which the other side recognises it."""

    def describe(self) -> str:
        """The effect in words, with its place if that is in another function."""
        if not self.through:
            return f"{self.kind.value}: {self.what}"
        return f"{self.kind.value}: {self.what} ({self.shown}:{self.line}, through {' → '.join(self.through)})"


class Effects:
    """Finds effects, and remembers those of functions by their symbols."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._own: dict[str, tuple[tuple[Effect, ...], tuple[tuple[str, bool], ...]]] = {}

    def of_function(self, module: Module, function: Function, depth: int = _DEPTH) -> list[Effect]:
        """The effects of running a function, and of what it calls in the project."""
        return list(self.of_nodes(module, own_nodes(function), depth))

    def of_nodes(self, module: Module, nodes: Iterator[ast.AST], depth: int = _DEPTH) -> Iterator[Effect]:
        """The effects of these nodes, each with the node here that it comes from."""
        for node in nodes:
            found = self.of_node(module, node)
            if found is not None:
                if not self._is_known(module, node, found.kind):
                    yield found
            elif isinstance(node, ast.Call) and depth:
                for below in self._below(self.project.resolve(module, node.func), depth):
                    if not self._is_known(module, node, below.kind):
                        yield below._replace(node=node)

    def _is_known(self, module: Module, node: ast.AST, kind: EffectKind) -> bool:
        """Tell whether a second run is recognised where the effect is."""
        if in_guard(self.project, module, node) or runs_once_known(self.project, module, node):
            return True
        if kind is EffectKind.CREATE and is_looked_up(self.project, module, node):
            return True
        return kind in _IN_ROWS and (
            leaves_its_state(self.project, module, node) or takes_a_mark(self.project, module, node)
        )

    def _below(self, symbol: str, depth: int) -> Iterator[Effect]:
        waiting: list[tuple[str, bool, tuple[str, ...]]] = [(symbol, False, ())]
        seen: set[tuple[str, bool]] = set()
        while waiting and len(seen) < _BREADTH:
            current, looked_up, through = waiting.pop(0)
            if ":" not in current or not seen.isdisjoint({(current, False), (current, looked_up)}):
                continue
            seen.add((current, looked_up))
            effects, calls = self._of_symbol(current)
            path = (*through, f"{current.partition(':')[2]}()")
            for one in effects:
                if not (looked_up and one.kind in _IN_ROWS):
                    yield one._replace(through=path)
            if len(path) < depth:
                waiting += [(call, looked_up or known_row, path) for call, known_row in calls]

    def _of_symbol(self, symbol: str) -> tuple[tuple[Effect, ...], tuple[tuple[str, bool], ...]]:
        if symbol not in self._own:
            self._own[symbol] = ((), ())
            found = self.project.function(symbol)
            if found is not None and not is_guarded(self.project, *found):
                module, function = found
                nodes = list(own_nodes(function))
                effects = tuple(self.of_nodes(module, iter(nodes), 0))
                self._own[symbol] = (effects, tuple(dict.fromkeys(self._calls(module, nodes))))
        return self._own[symbol]

    def _calls(self, module: Module, nodes: list[ast.AST]) -> Iterator[tuple[str, bool]]:
        """Functions of the project that are called, unless a second run is recognised around the call.

        Each with whether a look-up recognises its rows only: what it calls and sends happens again.
        """
        for node in nodes:
            if isinstance(node, ast.Call):
                symbol = self.project.resolve(module, node.func)
                if ":" in symbol and not self._is_known(module, node, EffectKind.CALL):
                    yield symbol, self._is_known(module, node, EffectKind.CREATE)

    # ------------------------------------------------------------ one node

    def of_node(self, module: Module, node: ast.AST) -> Effect | None:
        kind = self._kind_of_call(module, node) if isinstance(node, ast.Call) else None
        if kind is None and isinstance(node, ast.Assign | ast.AugAssign | ast.Call) and self._counts(module, node):
            kind = EffectKind.INCREMENT
        if kind is None:
            return None
        assert isinstance(node, ast.Call | ast.Assign | ast.AugAssign)
        shown = node.func if isinstance(node, ast.Call) else node
        return Effect(kind, _text(shown), node.lineno, module.shown, node, keyed=_is_keyed(node))

    def _kind_of_call(self, module: Module, node: ast.Call) -> EffectKind | None:
        symbol = self.project.resolve(module, node.func)
        if symbol in known.SENDS:
            return EffectKind.SEND
        if symbol in known.CALLS_OUT:
            return EffectKind.CALL if self._writes(symbol, node) else EffectKind.READ
        if symbol in known.READS_OUT:
            return EffectKind.READ
        return EffectKind.CREATE if self._creates(module, node, symbol) else None

    @staticmethod
    def _writes(symbol: str, node: ast.Call) -> bool:
        """Tell whether a call with the method as an argument is more than a read."""
        if symbol.endswith(".urlopen"):
            return len(node.args) > 1 or any(one.arg == "data" for one in node.keywords)
        if not symbol.endswith((".request", ".stream")):
            return True
        method = node.args[0] if node.args else next((one.value for one in node.keywords if one.arg == "method"), None)
        return not (isinstance(method, ast.Constant) and str(method.value).upper() in ("GET", "HEAD", "OPTIONS"))

    def _creates(self, module: Module, node: ast.Call, symbol: str) -> bool:
        if symbol in known.DJANGO_CREATES:
            return not any(one.arg in ("ignore_conflicts", "update_conflicts") for one in node.keywords)
        if symbol in known.MONGO_INSERTS:
            return True
        if symbol in known.SESSION_ADDS:
            return bool(node.args) and is_new(self.project, module, node.args[0])
        attribute = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if attribute in ("save", "asave") and isinstance(node.func, ast.Attribute):
            return self._saves_new(module, node.func.value)
        return self._inserts(module, node)

    def _saves_new(self, module: Module, owner: ast.expr) -> bool:
        made = self.project.value(module, owner)
        if not isinstance(made, ast.Call):
            return False
        symbol = self.project.resolve(module, made.func)
        without = not any(one.arg in ("instance", "pk", "id") for one in made.keywords)
        if symbol in known.DRF_GETS_SERIALIZER:
            return without and not made.args
        if self.project.is_a(symbol, known.DJANGO_MODEL):
            return without
        if self.project.is_a(symbol, known.DRF_SERIALIZER):
            return without and not made.args and any(one.arg == "data" for one in made.keywords)
        return without and self.project.is_a(symbol, known.MODEL_FORM)

    def _inserts(self, module: Module, node: ast.Call) -> bool:
        text = self.sql(module, node)
        if text is not None:
            return _INSERT.match(text) is not None and not _UPSERT.search(text)
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in known.EXECUTES or not node.args:
            return False
        symbol = self.project.resolve(module, node.args[0])
        return symbol in known.SQL_INSERT and "on_conflict" not in symbol and "on_duplicate" not in symbol

    def sql(self, module: Module, node: ast.Call) -> str | None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if not node.args or (
            name not in known.EXECUTES and self.project.resolve(module, node.func) not in known.SQL_TEXT
        ):
            return None
        return _literal(self.project.value(module, node.args[0]))

    # ------------------------------------------------------------ increments

    def _counts(self, module: Module, node: ast.Assign | ast.AugAssign | ast.Call) -> bool:
        if isinstance(node, ast.Call):
            return self._updates(module, node)
        target = node.target if isinstance(node, ast.AugAssign) else node.targets[0]
        if not isinstance(target, ast.Attribute):
            return False
        if isinstance(node, ast.Assign):
            if self._adds_f(module, node.value, target.attr):
                return True
            if not _adds_itself(node.value, target):
                return False
        elif not isinstance(node.op, ast.Add | ast.Sub) or _is_text(node.value):
            return False
        return is_row(self.project, module, target.value) and self._is_saved(module, node, target.value)

    def _updates(self, module: Module, node: ast.Call) -> bool:
        text = self.sql(module, node)
        if text is not None:
            return _adds_in_sql(text)
        symbol = self.project.resolve(module, node.func)
        if symbol in known.DJANGO_UPDATES:
            fields = {one.arg for one in node.keywords}
            if fields & _filter_fields(node.func):
                return False  # compare-and-set: a second run finds no row
            return any(self._adds_f(module, one.value, one.arg or "") for one in node.keywords)
        if symbol.endswith(".values") and symbol in known.SQL_UPDATE:
            return any(self._adds_column(module, one.value, one.arg or "") for one in node.keywords)
        return False

    def _adds_f(self, module: Module, node: ast.expr, field: str) -> bool:
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add | ast.Sub):
            return False
        for side in (node.left, node.right):
            if isinstance(side, ast.Call) and self.project.resolve(module, side.func) in known.DJANGO_F:
                return bool(side.args) and isinstance(side.args[0], ast.Constant) and side.args[0].value == field
        return False

    def _adds_column(self, module: Module, node: ast.expr, field: str) -> bool:
        """``Table.field + n``; what is taken from a column of JSON is a text."""
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add | ast.Sub):
            return False
        sides = (node.left, node.right)
        if any(_literal(self.project.value(module, side)) is not None for side in sides):
            return False
        return any(isinstance(side, ast.Attribute) and side.attr == field for side in sides)

    def _is_saved(self, module: Module, node: ast.AST, owner: ast.expr) -> bool:
        if is_tracked(self.project, module, owner):
            return True
        function = module.function_around(node)
        return function is not None and next(saves(function, owner), None) is not None


def _is_keyed(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    named = any(one.arg == "idempotency_key" for one in node.keywords)
    return named or any(reads_key(one) for keyword in node.keywords for one in ast.walk(keyword.value))


def _filter_fields(node: ast.expr) -> set[str | None]:
    fields: set[str | None] = set()
    while isinstance(node, ast.Attribute | ast.Call):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in known.DJANGO_FILTERS:
                fields |= {(one.arg or "").partition("__")[0] for one in node.keywords}
            node = node.func
        else:
            node = node.value
    return fields


def _adds_itself(node: ast.expr, target: ast.Attribute) -> bool:
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Add | ast.Sub)
        and isinstance(node.left, ast.Attribute)
        and not _is_text(node.right)
        and ast.unparse(node.left) == ast.unparse(target)
    )


def _is_text(node: ast.expr) -> bool:
    """Tell whether a sum is a text or a list, as far as its literals tell."""
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    literal = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return literal or isinstance(node, ast.JoinedStr | ast.List | ast.ListComp | ast.Tuple)


def _literal(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(one.value) if isinstance(one, ast.Constant) else "x" for one in node.values)
    return None


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 80 else f"{text[:77]}…"


def _adds_in_sql(text: str) -> bool:
    """Tell whether SQL adds to a column, without comparing it in the condition: a second run would find no such row."""
    begun = (update := _UPDATE.search(text)) and _SET.search(text, update.end())
    for found in _ADDED.finditer(text, begun.end()) if begun else ():
        if found[1].lower() == found[2].lower():
            return not re.search(rf"\b{found[1]}\s*=", text[found.end() :], re.IGNORECASE)
    return False
