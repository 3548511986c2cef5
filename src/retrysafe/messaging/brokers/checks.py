"""The form in which a broker's folder brings its checks for `retrysafe doctor`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

from retrysafe.protocol.checks import Check, Facts, Severity

T = TypeVar("T")
_MOST = 30.0
"""Seconds after which a broker is not asked any further, also when its answer is still awaited."""
_LEAVING = 2.0


class BrokerExamination(NamedTuple):
    """The checks of one broker.

    checks: each judges the facts.
    gather: asks the broker at a URL for the facts, with the topics that are looked at. It is called in a thread of its
        own, and abandoned when it takes too long. What it raises means that the broker cannot be reached.
    kept: finds in the facts for how many seconds each topic or queue may hand a message out again; without those of
        which the broker does not say so.
    """

    checks: tuple[Check, ...]
    gather: Callable[[str, tuple[str, ...]], Facts | Coroutine[Any, Any, Facts]]
    kept: Callable[[Facts], Mapping[str, float]] = lambda _: {}

    def facts(self, url: str, topics: tuple[str, ...]) -> Facts:
        """Ask the broker."""
        facts = self.gather(url, topics)
        return ask(facts) if inspect.iscoroutine(facts) else facts  # type: ignore[return-value]


def ask(work: Coroutine[Any, Any, T], most: float = _MOST) -> T:
    """The answers of a broker, on an event loop of its own.

    One that goes silent in the middle holds its thread and connection no longer than this; to hang up may take
    `_LEAVING` more, and is cancelled. Raises `TimeoutError` then.
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


class BrokerCheck(NamedTuple):
    """One check of settings: ``fails`` is asked of each in the facts of a kind.

    asks: the question, of which "no" is the finding.
    evidence: says what is wrong, with the names of those that fail for ``{}``.
    """

    severity: Severity
    id: str
    kind: str
    fails: Callable[[Any], object]
    asks: str
    evidence: str
    fix: str

    def judge(self, facts: Facts) -> str | None:
        """Return the evidence; None when none fails."""
        settings = facts[self.kind]
        named = settings.items() if isinstance(settings, Mapping) else zip(settings, settings, strict=True)
        names = sorted(name for name, one in named if self.fails(one))
        return self.evidence.format(", ".join(names)) if names else None


error, warning, note = (
    partial(BrokerCheck, severity) for severity in (Severity.ERROR, Severity.WARNING, Severity.NOTE)
)


def checks_of(page: str, *rows: BrokerCheck) -> tuple[Check, ...]:
    """The checks of a broker, which a page explains."""
    return tuple(Check(row.id, row.asks, row.severity, row.fix, page, row.judge) for row in rows)


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
