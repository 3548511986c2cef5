"""Operators that take a defence out of one symbol, by one change of its syntax tree.

An operator finds its place by identifiers, never by source text, so that reformatting a function or renaming another
name in it disturbs nothing. Of the places that mention all the names, it takes the smallest; where several are left,
``at`` says which, in source order, larger places before those within them. A name is a variable, an attribute, an
argument or a string that is written there.

==================================  ====================================================================
``never(*names)``, ``always(…)``    a condition is False, or True
``without(*names)``                 an operand of `and`, `or`, `|`, `-`, an element or an argument is left out
``skipping(*names)``                a statement is left out
``swapped(one, other)``             two statements, elements or arguments change places
``instead(name, to)``               a name, a constant, a call (``"clock()"``) or the value given to an argument or
                                    under a key (``"retry="``) is another expression
``unwrapped(name)``                 a call is its first argument, or the object of which it is a method
``uncaught(*names)``                an `except` raises what it has caught
``first(code, before=name)``        statements come first, in the function or before a statement
``unrestricted(*names)``            a condition is left out of SQL between two `AND`s
``reworded(old, new)``              words in a string are others
==================================  ====================================================================

``one & other`` does both.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple


class Misfit(ValueError):
    """The change finds no place in its symbol, or several."""


class Place(NamedTuple):
    """A node in a syntax tree, and the field of its parent that has it."""

    parent: ast.AST
    field: str
    at: int | None
    """In a list."""
    node: ast.AST

    def put(self, *nodes: ast.AST) -> None:
        """Replace the node: by nothing or by several only in a list."""
        if self.at is None:
            (node,) = nodes
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.at : self.at + 1] = nodes


class Site(NamedTuple):
    """A place that an operator could change."""

    names: frozenset[object]
    within: tuple[ast.AST, ...]
    """The nodes that are changed; a place is smaller than another one that has one of its nodes in it."""
    shown: str
    change: Callable[[], None]


class Change(NamedTuple):
    """An operator and the names by which it finds its place."""

    shown: str
    names: tuple[object, ...]
    at: int | None
    sites: Callable[[ast.stmt], Iterable[Site]]
    then: tuple[Change, ...] = ()
    """Further changes of the same symbol."""

    def __and__(self, other: Change) -> Change:
        return self._replace(shown=f"{self.shown} & {other.shown}", then=(*self.then, other))

    def apply(self, symbol: ast.stmt) -> None:
        """Change the symbol's tree; `Misfit` unless there is exactly one place for it."""
        self._apply(symbol)
        for other in self.then:
            other.apply(symbol)

    def _apply(self, symbol: ast.stmt) -> None:
        every = [*self.sites(symbol)]
        fitting = [site for site in every if site.names.issuperset(self.names)]
        found = dict(enumerate(fitting or every))
        if fitting and self.at is not None:
            found = {number: one for number, one in found.items() if number == self.at}
        elif len(fitting) > 1:
            found = {
                number: one for number, one in found.items() if not any(_is_within(other, one) for other in fitting)
            }
        if len(found) != 1 or not fitting:
            known = "".join(f"\n  {number}: {one.shown}" for number, one in found.items())
            raise Misfit(
                f"{self.shown} fits {len(found) if fitting else 0} places, not one; candidates:{known or ' none'}"
            )
        for one in found.values():
            one.change()


def never(*names: str, at: int | None = None) -> Change:
    """A condition that is never met."""
    return Change(_shown("never", *names, at=at), names, at, partial(_conditions, value=False))


def always(*names: str, at: int | None = None) -> Change:
    """A condition that is always met."""
    return Change(_shown("always", *names, at=at), names, at, partial(_conditions, value=True))


def without(*names: str, at: int | None = None) -> Change:
    """An operand, an element or an argument that is left out."""
    return Change(_shown("without", *names, at=at), names, at, _elements)


def skipping(*names: str, at: int | None = None) -> Change:
    """A statement that is left out."""
    return Change(_shown("skipping", *names, at=at), names, at, _statements)


def swapped(one: str, other: str, at: int | None = None) -> Change:
    """Two statements, elements or arguments in each other's place; the first comes first in the source."""
    return Change(_shown("swapped", one, other, at=at), (one, other), at, partial(_pairs, one=one, other=other))


def instead(name: object, to: str, at: int | None = None) -> Change:
    """An expression where a name or a constant stands, or a call: ``name()``."""
    return Change(_shown("instead", name, to, at=at), (name,), at, partial(_terms, to=to))


def unwrapped(name: str, at: int | None = None) -> Change:
    """An argument instead of the call that has it first, or the object of a method that has no argument."""
    return Change(_shown("unwrapped", name, at=at), (f"{name}()",), at, partial(_terms, to=None))


def uncaught(*names: str, at: int | None = None) -> Change:
    """An error that an `except` of these names raises again at once."""
    return Change(_shown("uncaught", *names, at=at), names, at, _handlers)


def first(code: str, before: str = "", at: int | None = None) -> Change:
    """Statements at the beginning of a function, or before the statement that mentions a name."""
    sites = partial(_statements, code=code) if before else partial(_beginning, code=code)
    return Change(_shown("first", code, before, at=at), (before,) if before else (), at, sites)


def unrestricted(*names: str, at: int | None = None) -> Change:
    """SQL without a condition that `AND` joins to others."""
    return Change(_shown("unrestricted", *names, at=at), names, at, _conjuncts)


def reworded(old: str, new: str, at: int | None = None) -> Change:
    """Words of a string that are others."""
    return Change(_shown("reworded", old, new, at=at), (), at, partial(_words, old=old, new=new))


def names_in(node: ast.AST) -> frozenset[object]:
    """The identifiers and strings in a tree."""
    found: set[object] = set()
    for one in ast.walk(node):
        for value in (getattr(one, field, None) for field in ("id", "attr", "arg", "name", "module", "value")):
            if isinstance(value, str):
                found.add(value)
    return frozenset(found)


def _shown(operator: str, *given: object, at: int | None) -> str:
    parts = [repr(one) for one in given if one != ""] + ([] if at is None else [f"at={at}"])
    return f"{operator}({', '.join(parts)})"


def _is_within(inner: Site, outer: Site) -> bool:
    """Tell whether a place is smaller than another: in it, or one of those that it has."""
    known = [node for root in outer.within for node in ast.walk(root)]
    return (
        inner is not outer
        and inner.within != outer.within
        and all(any(node is one for one in known) for node in inner.within)
    )


def _places(root: ast.AST) -> Iterator[Place]:
    """Every node beneath, in source order."""
    for field, value in ast.iter_fields(root):
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(node, ast.AST):
                yield Place(root, field, index, node)
                yield from _places(node)


def _site(place: Place, *nodes: ast.AST) -> Site:
    return Site(names_in(place.node), (place.node,), _text(place.node), partial(place.put, *nodes))


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 100 else f"{text[:97]}…"


def _conditions(root: ast.stmt, *, value: bool) -> Iterator[Site]:
    for place in _places(root):
        is_test = place.field in ("test", "ifs", "guard") and not isinstance(place.parent, ast.Assert)
        is_operand = isinstance(place.parent, ast.BoolOp) and place.field == "values"
        is_not = isinstance(place.node, ast.UnaryOp) and isinstance(place.node.op, ast.Not)
        if is_test or is_operand or is_not or isinstance(place.node, ast.Compare | ast.BoolOp):
            yield _site(place, ast.Constant(value))


ELEMENTS = {
    ast.Tuple: ("elts",),
    ast.List: ("elts",),
    ast.Set: ("elts",),
    ast.Call: ("args", "keywords"),
    ast.ClassDef: ("decorator_list", "bases"),
    ast.FunctionDef: ("decorator_list",),
    ast.AsyncFunctionDef: ("decorator_list",),
    ast.JoinedStr: ("values",),
}


def _elements(root: ast.stmt) -> Iterator[Site]:
    for place in _places(root):
        node = place.node
        if place.field in ELEMENTS.get(type(place.parent), ()):
            yield _site(place)
        if isinstance(node, ast.BoolOp):
            for one in node.values:
                rest = [other for other in node.values if other is not one]
                yield _left_out(place, one, rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest))
        if isinstance(node, ast.BinOp):
            yield _left_out(place, node.left, node.right)
            yield _left_out(place, node.right, node.left)
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                pairs = [pair for pair in zip(node.keys, node.values, strict=True) if pair[1] is not value]
                rest_of = ast.Dict([pair[0] for pair in pairs], [pair[1] for pair in pairs])
                yield _left_out(place, ast.Dict([key], [value]), rest_of)


def _left_out(place: Place, part: ast.AST, rest: ast.AST) -> Site:
    return Site(names_in(part), (part,), _text(part), lambda: place.put(rest))


def _statements(root: ast.stmt, code: str | None = None) -> Iterator[Site]:
    for place in _places(root):
        if not isinstance(place.node, ast.stmt):
            continue
        if code is not None:
            yield _site(place, *ast.parse(code).body, place.node)
        else:
            alone = len(getattr(place.parent, place.field)) == 1
            yield _site(place, *([ast.Pass()] if alone else []))


def _beginning(root: ast.stmt, code: str) -> Iterator[Site]:
    if isinstance(root, ast.FunctionDef | ast.AsyncFunctionDef):
        at = 1 if ast.get_docstring(root) is not None else 0
        yield Site(frozenset(), (root,), root.name, lambda: root.body.__setitem__(slice(at, at), ast.parse(code).body))


def _pairs(root: ast.stmt, one: str, other: str) -> Iterator[Site]:
    for parent in ast.walk(root):
        for _, value in ast.iter_fields(parent):
            nodes = [node for node in value if isinstance(node, ast.AST)] if isinstance(value, list) else []
            known = [names_in(node) for node in nodes]
            for left, names in enumerate(known):
                for right in range(left + 1, len(nodes)):
                    if one in names - known[right] and other in known[right] - names:
                        yield _exchanged(value, nodes, left, right, one, other)


def _exchanged(fields: list[Any], nodes: list[ast.AST], left: int, right: int, *names: str) -> Site:
    def change() -> None:
        fields[left], fields[right] = fields[right], fields[left]

    shown = f"{_text(nodes[left])} <-> {_text(nodes[right])}"
    return Site(frozenset(names), (nodes[left], nodes[right]), shown, change)


def _terms(root: ast.stmt, to: str | None) -> Iterator[Site]:
    for place in _places(root):
        for name in (*_called(place.node), *_given(place)):
            if (new := _argument(place.node) if to is None else _expression(to)) is not None:
                yield _site(place, new)._replace(names=frozenset({name}))


def _given(place: Place) -> list[object]:
    """The name of the argument or of the key for which a value is given."""
    if isinstance(place.parent, ast.keyword) and place.field == "value":
        return [f"{place.parent.arg}="]
    if isinstance(place.parent, ast.Dict) and place.field == "values" and place.at is not None:
        key = place.parent.keys[place.at]
        return [f"{name}=" for name in _called(key)] if key is not None else []
    return []


def _called(node: ast.AST) -> list[object]:
    """The name of a term, or its value."""
    if isinstance(node, ast.Constant):
        return [node.value]
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
        return [node.id if isinstance(node, ast.Name) else node.attr]
    return [f"{name}()" for name in _called(node.func)] if isinstance(node, ast.Call) else []


def _expression(source: str) -> ast.expr:
    return ast.parse(source, mode="eval").body


def _argument(node: ast.AST) -> ast.expr | None:
    if isinstance(node, ast.Call):
        return node.args[0] if node.args else node.func.value if isinstance(node.func, ast.Attribute) else None
    return None


def _handlers(root: ast.stmt) -> Iterator[Site]:
    for node in ast.walk(root):
        if isinstance(node, ast.ExceptHandler):
            caught = names_in(node.type) if node.type else frozenset[object]()
            yield Site(caught, (node,), _text(node), partial(setattr, node, "body", [ast.Raise()]))


def _strings(root: ast.stmt) -> Iterator[Place]:
    """Strings that are no docstrings, those with values in them as a whole."""
    inner = {id(part) for node in ast.walk(root) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for place in _places(root):
        node = place.node
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and id(node) not in inner
        if (is_text and not isinstance(place.parent, ast.Expr)) or isinstance(node, ast.JoinedStr):
            yield place


def _words(root: ast.stmt, old: str, new: str) -> Iterator[Site]:
    for place in _strings(root):
        for node in ast.walk(place.node):
            value = node.value if isinstance(node, ast.Constant) else None
            text = value.decode("latin-1") if isinstance(value, bytes) else value if isinstance(value, str) else ""
            for found in re.finditer(re.escape(old), text):
                words = f"{text[: found.start()]}{new}{text[found.end() :]}"
                changed = words.encode("latin-1") if isinstance(value, bytes) else words
                around = text[max(0, found.start() - 30) : found.end() + 30]
                yield Site(frozenset(), (ast.Constant(text),), around, partial(setattr, node, "value", changed))


_END = re.compile(r"\b(?:AND|ORDER BY|GROUP BY|LIMIT|RETURNING|FOR UPDATE|UNION|ON CONFLICT|THEN|FROM)\b")
_BEGINNING = re.compile(r"\b(?:WHERE|ON)\s+")
_HOLE = re.compile("\x00(\\d+)\x00")


def _conjuncts(root: ast.stmt) -> Iterator[Site]:
    """Each condition in SQL that has an `AND` before it, or after it and WHERE before it."""
    for place in _strings(root):
        parts: list[Any] = place.node.values if isinstance(place.node, ast.JoinedStr) else [place.node]
        text = "".join(
            str(one.value) if isinstance(one, ast.Constant) else f"\x00{number}\x00" for number, one in enumerate(parts)
        )
        for begin, end in _spans(text):
            words = {*re.findall(r"\w+", _HOLE.sub(" ", text[begin:end]))}
            holes = [names_in(parts[int(number)]) for number in _HOLE.findall(text[begin:end])]
            pieces = enumerate(_HOLE.split(text[:begin] + text[end:]))
            rest = [parts[int(piece)] if number % 2 else ast.Constant(piece) for number, piece in pieces]
            shown = _HOLE.sub("…", text[begin:end]).strip()
            new = ast.JoinedStr(rest) if isinstance(place.node, ast.JoinedStr) else rest[0]
            yield Site(frozenset(words.union(*holes)), (ast.Constant(shown),), shown, partial(place.put, new))


def _spans(text: str) -> Iterator[tuple[int, int]]:
    for found in re.finditer(r"\s*\bAND\b", text):
        yield found.start(), _end_of(text, found.end())
    for found in re.finditer(_BEGINNING if re.search(_BEGINNING, text) else r"\A", text):
        end = _end_of(text, found.end())
        if following := re.match(r"\s*AND\s+", text[end:]):
            yield found.end(), end + following.end()


def _end_of(text: str, begin: int) -> int:
    """The end of the condition that begins here: the first closing parenthesis too many, or a word that ends it."""
    depth = 0
    for at in range(begin, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth < 0 or (depth == 0 and _END.match(text, at) and not text[at - 1].isalnum()):
            return len(text[:at].rstrip())
    return len(text.rstrip())
