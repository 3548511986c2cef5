"""Which requests need a key, by method and path: declared once, for a whole application."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Generic, Literal, TypeVar

from retrysafe.errors import ConfigurationError

Need = Literal["required", "optional", "off"]
"""Whether a request must bring a key, is guarded when it does, or is never guarded."""
NEEDS = ("required", "optional", "off")
T = TypeVar("T")
_PATTERN = re.compile(r"(?:([A-Z]+) )?(/\S*)")


class Patterns(Generic[T]):
    """What is said of patterns such as "POST /payments", "/accounts/*/transfers" and "/internal/**".

    The first match counts. ``*`` stands for one segment of the path, ``**`` for any number. Raises
    `ConfigurationError` for what is no pattern.
    """

    def __init__(self, said: Mapping[str, T]) -> None:
        self._rules = [(*_compiled(pattern), value) for pattern, value in said.items()]
        self._known = lru_cache(maxsize=1024)(self._search)

    def find(self, method: str, path: str) -> T | None:
        """What is said of the first pattern that matches; None when none does."""
        return self._known(method, path)

    def _search(self, method: str, path: str) -> T | None:
        for wanted, expression, value in self._rules:
            if wanted in (None, method) and expression.fullmatch(path):
                return value
        return None


class Routes:
    """Whether a request needs a key, by `Patterns`. Raises `ConfigurationError` for what is no pattern or no need."""

    def __init__(self, routes: Mapping[str, Need]) -> None:
        needs: dict[str, Need] = {pattern: _checked(pattern, need) for pattern, need in routes.items()}
        self._needs: Patterns[Need] = Patterns(needs)

    def need(self, method: str, path: str) -> Need | None:
        """What the first pattern that matches says; None when none does."""
        return self._needs.find(method, path)


def _compiled(pattern: str) -> tuple[str | None, re.Pattern[str]]:
    matched = _PATTERN.fullmatch(pattern)
    if matched is None:
        raise ConfigurationError(f'routes=: {pattern!r} is not a pattern such as "POST /payments" or "/internal/**".')
    pieces = re.split(r"(\*\*?)", matched[2])
    wild = {"*": "[^/]*", "**": ".*"}
    return matched[1], re.compile("".join(wild.get(piece) or re.escape(piece) for piece in pieces), re.DOTALL)


def _checked(pattern: str, need: Need) -> Need:
    if need not in NEEDS:
        raise ConfigurationError(f"routes=: {pattern!r} is {need!r}, which is none of {', '.join(NEEDS)}.")
    return need
