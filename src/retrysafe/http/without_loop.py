"""Coroutines for sync code: what is written once for both colours, and waits for nothing where it is used in sync code.

What such a coroutine waits for (a port, a wire) comes in two colours. That of sync code does its work before the
coroutine goes on, so that no event loop is needed.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_without_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("A coroutine of sync code has waited for an event loop.")
