"""The handling of several messages together, and of its failure: they are split until the one at fault is alone.

Pure: the plan asks for parts to be handled, is told how each went, and keeps every lane in its order.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from typing import NamedTuple

from retrysafe.protocol.redelivery_policy import HandleResult, MessageOutcome


class BatchPart(NamedTuple):
    """Messages, by their places, to be handled in one transaction; a single one with all that belongs to one."""

    places: list[int]

    @property
    def single(self) -> bool:
        """True if it is one message, which is handled by itself."""
        return len(self.places) == 1


class Broken(NamedTuple):
    """Nothing of a part was kept. ``at``: because of the message at that place; None: unknown."""

    at: int | None


Answer = list[HandleResult] | Broken
BatchPlan = Generator[BatchPart, Answer, list[HandleResult]]


def plan(lanes: Sequence[int], suspects: Collection[int] = ()) -> BatchPlan:
    """Handle messages, of which these are the lanes, in their order; ``suspects`` are handled by themselves.

    What follows, in its lane, a message that has to come again is not tried.
    """
    done: dict[int, HandleResult] = {}
    waiting: dict[int, float] = {}
    parts = _parts(len(lanes), suspects)
    while parts:
        places = _select(parts.pop(0), lanes, done, waiting)
        if not places:
            continue
        answer = yield BatchPart(places)
        if isinstance(answer, Broken):
            parts[:0] = _divide(places, answer.at)
            continue
        for place, handled in zip(places, answer, strict=True):
            done[place] = handled
            if handled.again is not None:
                waiting[lanes[place]] = handled.again
    return [done[place] for place in range(len(lanes))]


def _select(
    places: list[int], lanes: Sequence[int], done: dict[int, HandleResult], waiting: Mapping[int, float]
) -> list[int]:
    """Select the messages of a part to try: none behind a message which has to come again."""
    tried: list[int] = []
    for place in places:
        pause = waiting.get(lanes[place])
        if pause is None:
            tried.append(place)
        else:
            done[place] = HandleResult(MessageOutcome.BEHIND, pause)
    return tried


def _parts(count: int, suspects: Collection[int]) -> list[list[int]]:
    """Runs of messages that nothing is known against, and suspects one by one."""
    parts: list[list[int]] = []
    run: list[int] = []
    for place in range(count):
        if place in suspects:
            parts += [run, [place]]
            run = []
        else:
            run.append(place)
    return [part for part in (*parts, run) if part]


def _divide(places: list[int], at: int | None) -> list[list[int]]:
    """Before, at and after the message at fault; halves, where that is not known."""
    if at is None:
        middle = len(places) // 2
        return [places[:middle], places[middle:]]
    middle = places.index(at)
    return [part for part in (places[:middle], [at], places[middle + 1 :]) if part]
