"""An attempt that is killed: at a boundary between two of its calls, as a crash would, but in this process."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any, TypeVar

from retrysafe import Boundary, Claim, StoredFailure, current

R = TypeVar("R")


class Killed(BaseException):
    """The process ends here."""


class World:
    """Providers that recognise keys: a call sets a thing, and is noted with its key."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.things: dict[tuple[str, str], bool] = {}

    def call(self, name: str, *, made: bool = True) -> str:
        key = current().key_for("provider")
        self.calls.append((name if made else f"undo {name}", key))
        self.things[name, key if made else ""] = made
        return name

    def keys_of(self, call: str) -> set[str]:
        return {key for name, key in self.calls if name == call}

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


class Killer:
    """Counts the boundaries that a run passes, and kills it at one of them."""

    def __init__(self, at: int | None) -> None:
        self._at, self._passed = at, itertools.count()

    def __call__(self) -> None:
        if next(self._passed) == self._at:
            raise Killed


def pairs(most: int) -> Iterator[list[int | None]]:
    """Plans of two kills each, and of an attempt that comes to its end."""
    for first, then in itertools.product(range(most), repeat=2):
        yield [first, then, None]


def settle(attempt: Callable[[Killer], R], plan: list[int | None]) -> R | str:
    """Attempt until it comes to an end; a failure that is stored is one."""
    for at in plan:
        try:
            return attempt(Killer(at))
        except Killed:
            continue
        except (ValueError, StoredFailure) as error:
            return type(error).__name__
    raise AssertionError("it came to no end")


def key() -> str:
    return secrets.token_hex(8)


@contextmanager
def stalled(boundary: Boundary, key: str) -> Iterator[Claim]:
    """A claim whose process stands still until its lease is over; in the block, another attempt may take over."""
    claim = boundary.claim(key)
    context = Context()
    context.run(claim.__enter__)
    stall(claim)
    yield claim


def stall(claim: Claim) -> None:
    """Stand still until the lease is over."""
    assert claim._held is not None
    claim._held.let_go()
    time.sleep(claim._held.seconds + claim._held.ownership.clocks.margin / 1e6 + 0.05)


def elsewhere(function: Callable[..., R], *args: Any) -> R:
    """Run it as another process would: with no claim around."""
    return Context().run(function, *args)
