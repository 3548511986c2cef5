"""What a program asks: one request, and how its answer is read."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

R = TypeVar("R")


class Ask(Generic[R]):
    """One request, and how to read its answer."""

    __slots__ = ("parse", "request")

    def __init__(self, request: Any, parse: Callable[[Any], R]) -> None:
        self.request = request
        self.parse = parse


Steps = Generator[Ask[Any], Any, R]
"""A program: it yields asks, is sent their parsed answers, and returns an outcome."""
