"""Finds regular expressions that can match ever longer texts in two ways, so that a failing match takes more than
linear time in `re`, which tries each of them.

The expression becomes its position automaton (Glushkov): a state per character class, an edge to each class that may
follow. It is ambiguous without bound if, for some word, a state p leads to p and to another state q, and q to q
(criterion IDA of A. Weber and H. Seidl, "On the degree of ambiguity of finite automata", 1991; an exponential one has
it too), or if a loop has two edges between the same states. A possessive repetition is left only by a character that
it could not have taken. Counted repetitions count as unbounded ones: what is found may be a false alarm, but nothing is
overlooked.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import reduce
from itertools import product
from operator import and_, or_
from re import _constants as c  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

LATIN = [chr(code) for code in range(256)]
BEYOND = ["\u0663", "\u2003", "\u03bb", "\u2603"]
"""A digit, a space, a letter and a symbol stand for all characters beyond Latin-1."""
ALPHABET = LATIN + BEYOND
EVERY = (1 << len(ALPHABET)) - 1


class Part(NamedTuple):
    """A part of an expression: where it begins and ends, each with the characters that exclude it there."""

    first: dict[int, int]
    last: dict[int, int]
    skipped: int | None
    """The characters before which it may not be empty; None if it is never empty."""


class Automaton:
    """The position automaton of an expression; ``searched`` is whether it may begin anywhere in a text."""

    def __init__(self, pattern: re.Pattern[Any], *, searched: bool) -> None:
        self.folds = bool(pattern.flags & re.IGNORECASE)
        self.classes: list[int] = []
        self.edges: dict[tuple[int, int], list[int]] = defaultdict(list)
        whole = self.sequence(parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG))
        if searched:
            self.joined(self.repeated(self.one(EVERY)), whole)

    # ------------------------------------------------------------ construction

    def one(self, characters: int) -> Part:
        self.classes.append(characters)
        state = len(self.classes) - 1
        return Part({state: 0}, {state: 0}, None)

    def joined(self, before: Part, after: Part) -> Part:
        self.connect(before.last, after.first)
        first, last = dict(before.first), dict(after.last)
        if before.skipped is not None:
            first |= {state: out | before.skipped for state, out in after.first.items()}
        if after.skipped is not None:
            last |= {state: out | after.skipped for state, out in before.last.items()}
        empty = None if before.skipped is None or after.skipped is None else before.skipped | after.skipped
        return Part(first, last, empty)

    def connect(self, last: dict[int, int], first: dict[int, int]) -> None:
        for (here, out), (there, also) in product(last.items(), first.items()):
            self.edges[here, there].append(self.classes[there] & ~(out | also))

    def repeated(self, part: Part) -> Part:
        self.connect(part.last, part.first)
        return part

    def alternatives(self, parts: Iterable[Part]) -> Part:
        several = list(parts)
        empty = [part.skipped for part in several if part.skipped is not None]
        return Part(
            {state: out for part in several for state, out in part.first.items()},
            {state: out for part in several for state, out in part.last.items()},
            reduce(and_, empty) if empty else None,
        )

    def sequence(self, items: Iterable[tuple[Any, Any]]) -> Part:
        whole = Part({}, {}, 0)
        for kind, value in items:
            whole = self.joined(whole, self.item(kind, value))
        return whole

    def item(self, kind: Any, value: Any) -> Part:
        if kind in (c.AT, c.ASSERT, c.ASSERT_NOT):
            return Part({}, {}, 0)
        if kind in (c.MAX_REPEAT, c.MIN_REPEAT, c.POSSESSIVE_REPEAT):
            least, most, body = value
            return self.repetition(self.sequence(body), least, most, possessive=kind is c.POSSESSIVE_REPEAT)
        if kind is c.SUBPATTERN:
            return self.sequence(value[-1])
        if kind is c.ATOMIC_GROUP:
            return self.sequence(value)
        if kind is c.BRANCH:
            return self.alternatives(self.sequence(branch) for branch in value[1])
        return self.one(self.folded(characters(kind, value)))

    def repetition(self, part: Part, least: int, most: Any, *, possessive: bool) -> Part:
        taken = 0
        for state in part.first.keys() & part.last.keys() if possessive else ():
            taken |= self.classes[state]
        last = part.last
        if most is c.MAXREPEAT:
            last = {state: out | taken for state, out in last.items()}
        if most is c.MAXREPEAT or most > 1:
            self.repeated(part)
        return Part(part.first, last, taken if least == 0 else part.skipped)

    def folded(self, found: int) -> int:
        if self.folds:
            for at, one in enumerate(LATIN):
                if found >> at & 1:
                    found |= _bits(one.lower()) | _bits(one.upper())
        return found

    # ------------------------------------------------------------ the criterion

    def is_ambiguous(self) -> bool:
        after: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for (here, there), labels in self.edges.items():
            for label in labels:
                after[here].append((there, label))
        reached = {state: self.reached(state, after) for state in range(len(self.classes))}
        for (here, there), labels in self.edges.items():
            twice = any(one & other for at, one in enumerate(labels) for other in labels[at + 1 :])
            if twice and (here in reached[there]):
                return True
        looping = [state for state in reached if state in reached[state]]
        return any(
            one != other and other in reached[one] and _forks(one, other, after) for one in looping for other in looping
        )

    @staticmethod
    def reached(start: int, after: dict[int, list[tuple[int, int]]]) -> set[int]:
        found: set[int] = set()
        waiting = [start]
        while waiting:
            for there, label in after[waiting.pop()]:
                if label and there not in found:
                    found.add(there)
                    waiting.append(there)
        return found


def _forks(one: int, other: int, after: dict[int, list[tuple[int, int]]]) -> bool:
    """Tell whether some word leads from ``one`` to itself and to ``other``, and from ``other`` to itself."""
    seen = {(one, one, other)}
    waiting = [(one, one, other)]
    while waiting:
        a, b, d = waiting.pop()
        for (x, one_label), (y, two_label) in product(after[a], after[b]):
            if both := one_label & two_label:
                for z, three_label in after[d]:
                    if both & three_label:
                        if (x, y, z) == (one, other, other):
                            return True
                        if (x, y, z) not in seen:
                            seen.add((x, y, z))
                            waiting.append((x, y, z))
    return False


def characters(kind: Any, value: Any) -> int:
    """The characters of a class, as bits."""
    if kind is c.LITERAL:
        return _bits(chr(value))
    if kind is c.NOT_LITERAL:
        return EVERY & ~_bits(chr(value)) if value < len(LATIN) else EVERY
    if kind is c.RANGE:
        low, high = value
        return sum(1 << at for at in range(low, min(high + 1, len(LATIN)))) | (_BEYOND if high >= len(LATIN) else 0)
    if kind is c.CATEGORY:
        return _CATEGORIES[value]
    if kind is c.IN:
        negated = value[0][0] is c.NEGATE
        found = reduce(or_, (characters(*one) for one in value[negated:]))
        return EVERY & ~found if negated else found
    return EVERY  # any character, or what is not analysed


_BEYOND = EVERY & ~((1 << len(LATIN)) - 1)


def _bits(text: str) -> int:
    """A character as a bit; of one beyond Latin-1, all those that stand for them."""
    return 1 << ord(text) if len(text) == 1 and ord(text) < len(LATIN) else _BEYOND


def _of(category: str) -> int:
    matching = re.compile(category)
    return sum(1 << at for at, one in enumerate(ALPHABET) if matching.match(one))


_CATEGORIES = {
    c.CATEGORY_DIGIT: _of(r"\d"),
    c.CATEGORY_NOT_DIGIT: _of(r"\D"),
    c.CATEGORY_SPACE: _of(r"\s"),
    c.CATEGORY_NOT_SPACE: _of(r"\S"),
    c.CATEGORY_WORD: _of(r"\w"),
    c.CATEGORY_NOT_WORD: _of(r"\W"),
}


def is_ambiguous(pattern: re.Pattern[Any], *, searched: bool = False) -> bool:
    """Tell whether matching may take more than linear time; ``searched`` if it may begin anywhere in a text."""
    return Automaton(pattern, searched=searched).is_ambiguous()


def patterns(values: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, re.Pattern[Any]]]:
    """The patterns among the members of a module, and those whose method is one."""
    for name, value in values:
        owner = getattr(value, "__self__", value)
        if isinstance(owner, re.Pattern):
            yield name, owner
