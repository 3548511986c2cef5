"""The requests that need a key, by method and path: declared once, for a whole application."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from functools import lru_cache
from typing import Generic, Literal, TypeVar

from retrysafe.errors import ConfigurationError

Need = Literal["required", "optional", "off"]
"""The need of a request: it must bring a key, is guarded when it does, or is never guarded."""
NEEDS = ("required", "optional", "off")
T = TypeVar("T")
_PATTERN = re.compile(r"(?:([A-Z]+) )?(/\S*)")
_PARAMETER = re.compile(r"\{[^{}]*\}|<[^<>]*>")
_LONGEST_KEPT = 512
"""Characters of a path up to which the rule that it matched is remembered: strangers choose the paths."""


class Patterns(Generic[T]):
    """Values for patterns such as "POST /payments", "/accounts/*/transfers" and "/internal/**".

    The first match counts. ``*`` stands for one segment of the path, ``**`` for any number. Raises
    `ConfigurationError` for what is no pattern.
    """

    def __init__(self, said: Mapping[str, T]) -> None:
        self._rules = [(*_compile(pattern), value) for pattern, value in said.items()]
        self._known = lru_cache(maxsize=1024)(self._search)

    def find(self, method: str, path: str) -> T | None:
        """Return the value of the first pattern that matches; None when none does."""
        return self._known(method, path) if len(path) <= _LONGEST_KEPT else self._search(method, path)

    def _search(self, method: str, path: str) -> T | None:
        for wanted, glob, value in self._rules:
            if wanted in (None, method) and glob.matches(path):
                return value
        return None


class Glob:
    """A path with wildcards: ``*`` matches within one segment, ``**`` anything.

    Strangers choose the paths, and a regular expression with several wildcards takes time by a power of their length.
    Here one bit stands for each place of the pattern that the path may have reached, and each character moves all of
    them at once (an automaton, as in R. Baeza-Yates and G. H. Gonnet, "A new approach to text searching", 1992).
    """

    def __init__(self, pattern: str) -> None:
        self._prefix = pattern.partition("*")[0]
        self._next: dict[str, int] = {}
        """For each character, the places that it leads on from."""
        self._within = self._anywhere = 0
        """The places that a character may leave as they are: one other than "/", any one."""
        place = 0
        for piece in re.split(r"(\*\*?)", pattern[len(self._prefix) :]):
            if piece == "**":
                self._anywhere |= 1 << place
            elif piece == "*":
                self._within |= 1 << place
            else:
                for character in piece:
                    self._next[character] = self._next.get(character, 0) | 1 << place
                    place += 1
        self._end = 1 << place

    def matches(self, path: str) -> bool:
        """Tell whether the pattern matches the whole of a path, in time proportional to its length."""
        if not path.startswith(self._prefix):
            return False
        places = 1
        for character in path[len(self._prefix) :]:
            stays = self._anywhere if character == "/" else self._anywhere | self._within
            places = places & stays | (places & self._next.get(character, 0)) << 1
            if not places:
                return False
        return bool(places & self._end)


class Routes:
    """The need of requests for a key, by `Patterns`. Raises `ConfigurationError` for what is no pattern or no need."""

    def __init__(self, routes: Mapping[str, Need]) -> None:
        self._patterns = list(routes)
        needs: dict[str, Need] = {pattern: _check_need(pattern, need) for pattern, need in routes.items()}
        ranked: dict[str, tuple[int, Need]] = {
            pattern: (rank, need) for rank, (pattern, need) in enumerate(needs.items())
        }
        self._exact: Patterns[tuple[int, Need]] = Patterns(ranked)
        self._alike: Patterns[tuple[int, Need]] = Patterns(alike(ranked))

    def need(self, method: str, path: str) -> Need | None:
        """Return the need of the first pattern that matches; None when none does."""
        found = self._exact.find(method, path)
        return None if found is None else found[1]

    def strictest(self, method: str, paths: Iterable[str]) -> Need | None:
        """Return the strictest need of a request that may be routed by each of these paths; None when none matches.

        Applications route other spellings to the same place (a doubled or a final slash, another case), so a rule
        that requires a key holds for these too, unless a rule before it matches the path as it is.
        """
        paths = set(paths)
        exact = [found for path in paths if (found := self._exact.find(method, path)) is not None]
        other = [found for path in paths if (found := self._alike.find(method, fold(path))) is not None]
        first = min((rank for rank, _ in exact), default=None)
        if any(need == "required" and (first is None or rank < first) for rank, need in other):
            return "required"
        needs: list[Need] = [need for _, need in exact]
        return min(needs, key=NEEDS.index, default=None)

    def find_unmatched(self, served: Iterable[tuple[Container[str], str]]) -> list[str]:
        """The patterns that match none of the routes of an application, each its methods and template."""
        routes = [(methods, *_readings(template)) for methods, template in served]
        return [one for one in self._patterns if not any(_meet(one, *route) for route in routes)]


def alike(said: Mapping[str, T]) -> dict[str, T]:
    """Index values by the folded paths of their patterns; the first counts."""
    found: dict[str, T] = {}
    for pattern, value in said.items():
        method, slash, path = pattern.partition("/")
        found.setdefault(method + fold(slash + path), value)
    return found


def fold(path: str) -> str:
    """A path without what applications overlook: doubled slashes, a final one or line feed, and case.

    A regular expression that ends with ``$``, as Starlette's routes do, matches before a final line feed as well.
    """
    return "/" + "/".join(filter(None, path.rstrip("\n").split("/"))).casefold()


def _readings(template: str) -> tuple[str, Glob]:
    """An example of a route's paths, and what matches all of them: ``{id}`` and ``<int:id>`` are its parameters."""
    return fold(_PARAMETER.sub("x", template)), Glob(fold(_PARAMETER.sub("**", template)))


def _meet(pattern: str, methods: Container[str], example: str, glob: Glob) -> bool:
    method, slash, path = pattern.partition("/")
    wanted = fold(slash + path)
    return (not method or method.strip() in methods) and (
        Glob(wanted).matches(example) or glob.matches(wanted.replace("*", "x"))
    )


def _compile(pattern: str) -> tuple[str | None, Glob]:
    matched = _PATTERN.fullmatch(pattern)
    if matched is None:
        raise ConfigurationError(f'routes=: {pattern!r} is not a pattern such as "POST /payments" or "/internal/**".')
    return matched[1], Glob(matched[2])


def _check_need(pattern: str, need: Need) -> Need:
    if need not in NEEDS:
        raise ConfigurationError(f"routes=: {pattern!r} is {need!r}, which is none of {', '.join(NEEDS)}.")
    return need
