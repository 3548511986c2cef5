"""Patterns of symbols. A symbol says where a value comes from: `httpx.Client().post` is a method of an instance.

``()`` is the result of a call, ``[]`` an item; ``:`` stands before a definition of the scanned project. In a pattern,
``{a,b}`` is a choice, ``*`` a name, and ``**`` anything.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\*\*|\*|\{[^}]*\}|[^*{]+")


class Symbols:
    """A set of patterns, compiled to one expression."""

    def __init__(self, *patterns: str) -> None:
        self._match = re.compile("|".join(map(_expression, patterns))).fullmatch

    def __contains__(self, symbol: object) -> bool:
        return isinstance(symbol, str) and symbol != "" and self._match(symbol) is not None


def _expression(pattern: str) -> str:
    return "(?:" + "".join(map(_part, _TOKEN.findall(pattern))) + ")"


def _part(token: str) -> str:
    if token == "**":
        return ".*"
    if token == "*":
        return r"\w+"
    if token.startswith("{"):
        return "(?:" + "|".join(_expression(one) for one in token[1:-1].split(",")) + ")"
    return re.escape(token)
