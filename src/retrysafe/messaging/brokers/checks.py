"""The form in which a broker's folder brings its checks for `retrysafe doctor`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple, TypeVar

from retrysafe.protocol.checks import Check, Facts, Judge, Severity

T = TypeVar("T")
_MOST = 30.0
"""Seconds after which a broker is not asked any further, also when its answer is still awaited."""
_LEAVING = 2.0


class BrokerExamination(NamedTuple):
    """The checks of one broker.

    checks: each judges the facts.
    facts: asks the broker at a URL for them, with the topics that are looked at. It is called in a thread of its own,
        and abandoned when it takes too long. What it raises means that the broker cannot be reached.
    kept: finds in the facts for how many seconds each topic or queue may hand a message out again; without those of
        which the broker does not say so.
    """

    checks: tuple[Check, ...]
    facts: Callable[[str, tuple[str, ...]], Mapping[str, Any]]
    kept: Callable[[Facts], Mapping[str, float]] = lambda _: {}


def ask(work: Coroutine[Any, Any, T], most: float = _MOST) -> T:
    """The answers of a broker, on an event loop of its own.

    One that goes silent in the middle holds its thread and connection no longer than this; to hang up may take as long
    again, and is cancelled. Raises `TimeoutError` then.
    """

    async def run_bounded() -> T:
        asking = asyncio.ensure_future(work)
        if not (await asyncio.wait([asking], timeout=most))[0]:
            asking.cancel()
            if not (await asyncio.wait([asking], timeout=_LEAVING))[0]:
                raise TimeoutError
        return asking.result()

    try:
        return asyncio.run(run_bounded())
    except asyncio.CancelledError:
        raise TimeoutError from None


def some(kind: str, says: Callable[[Any], object], text: str) -> Judge:
    """Judge settings by their names, which are the facts of this kind: ``says`` is true of the evidence."""

    def judge(facts: Facts) -> str | None:
        found = [name for name, settings in facts[kind].items() if says(settings)]
        return f"{text}: {', '.join(sorted(found))}." if found else None

    return judge


def _short_memory(facts: Facts) -> str | None:
    kept, windows = facts.get("redelivered_for", {}), facts.get("windows", {})
    longest = max(kept.values(), default=0.0)
    short = [f"boundary {name!r} for {window:.12g} s" for name, window in windows.items() if window < longest]
    if not short:
        return None
    places = ", ".join(sorted(place for place, seconds in kept.items() if seconds == longest))
    every = (
        "" if facts.get("named") else " All inboxes were compared: --topic NAME=BOUNDARY says whose consumes a topic."
    )
    return (
        f"A message of {places} may be handed out again for {longest:.12g} s, and is remembered by {', '.join(short)}."
        f"{every}"
    )


UNREACHABLE = Check(
    "broker-unreachable",
    "Does the broker answer, and let us in?",
    Severity.ERROR,
    "Start the broker, or correct the address, user and password in its URL.",
    "how-to/troubleshooting.md",
    lambda facts: facts.get("unreachable"),
)
WINDOW = Check(
    "broker-window",
    "Do inboxes remember a message for as long as it may be handed out again?",
    Severity.ERROR,
    "window={needed} in the boundary of the inbox, or longer; or let the broker keep messages for a shorter time",
    "how-to/windows-and-key-memory.md",
    _short_memory,
)
