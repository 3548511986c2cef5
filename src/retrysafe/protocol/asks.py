"""An ask: one request to a store with the function that parses its answer; and the type of programs that yield asks."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, NamedTuple, TypeVar

from retrysafe.errors import StoreUnavailable

R = TypeVar("R")


class Ask(NamedTuple, Generic[R]):
    """One request, and the function that parses its answer."""

    request: Any
    parse: Callable[[Any], R]


Steps = Generator[Ask[Any], Any, R]
"""A program: it yields asks, is sent their parsed answers, and returns an outcome."""


def ask(request: Ask[R], *, again: bool = False) -> Generator[Ask[Any], Any, R]:
    """Put one ask; with ``again`` put it once more if the store did not answer what it was sent.

    Only asks that recognise their own lost reply, by attempt id, may be put again.
    """
    try:
        answer: R = yield request
    except StoreUnavailable as error:
        if not again or error.unsent:
            raise
        answer = yield request
    return answer
