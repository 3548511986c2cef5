"""The decisions of a relay: the order of messages, and the reaction to a broker's results. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from retrysafe.protocol.backoff import Backoff
from retrysafe.protocol.messages import PublishResult, PublishStatus, Queued, legible


class OnDead(StrEnum):
    """The treatment of a lane whose message is given up."""

    SKIP = "skip"
    PARK = "park"


class Rules(NamedTuple):
    """The limits of a relay: attempts that came to an end, those that were begun, and the pauses between them."""

    max_attempts: int = 10
    max_crashes: int = 3
    backoff: Backoff = Backoff(base=0.5, cap=300.0)
    on_dead: OnDead = OnDead.SKIP


class Delay(NamedTuple):
    """A message that is tried again, and with it its lane, after so many seconds; None: when a person says so.

    ``counted``: an attempt has been made for nothing.
    """

    queued: Queued
    seconds: float | None
    error: str
    counted: bool = True


class Death(NamedTuple):
    """A message that is given up, and why."""

    queued: Queued
    error: str


class PublishOutcome(NamedTuple):
    """The reaction to the results of a wave."""

    gone: list[Queued]
    delayed: list[Delay]
    dead: list[Death]
    stalled: list[Queued]
    """The messages that a destination which takes nothing now did not take."""
    withdrawn: list[Queued]
    """That, and what was to follow a message that waits: no attempt was made."""
    away: list[str]
    """The publisher's errors of a broker that takes nothing from anyone."""
    duplicates: list[Queued]
    """The messages that have gone and that the broker had already."""


def nothing_yet() -> PublishOutcome:
    """A verdict on nothing."""
    return PublishOutcome([], [], [], [], [], [], [])


def waves(queue: Iterable[Queued]) -> list[list[Queued]]:
    """Messages that may be under way together: no two of one lane, each lane in its order.

    A message follows the one before it in its lane only when that one has left: it cannot overtake it, however the
    broker takes them.
    """
    found: list[list[Queued]] = []
    depth: dict[int, int] = {}
    for queued in queue:
        at = depth.get(queued.lane, 0)
        depth[queued.lane] = at + 1
        if at == len(found):
            found.append([])
        found[at].append(queued)
    return found


MOST_COUNTED = 100_000
"""Rows of an outbox that are counted, at most: a look must cost the same however much waits."""

MOST_SAID = 2000
"""Characters of an error that are kept."""


def fit_text(error: str) -> str:
    """Make a text fit for every database: without NUL and halves of characters, and of bounded length."""
    return legible(error[:MOST_SAID])


def check_results(wave: Sequence[Queued], published: Sequence[PublishResult]) -> Sequence[PublishResult]:
    """The receptions of a wave; a publisher that says too many or too few has said nothing of any."""
    if len(published) == len(wave):
        return published
    error = f"The publisher was given {len(wave)} messages and said what became of {len(published)}."
    return [PublishResult(PublishStatus.UNKNOWN, error)] * len(wave)


LONGEST_PAUSE = 30 * 86400.0
"""Seconds for which a publisher can have a message wait, at most: what it says may be a stranger's word."""


def clip_pause(pause: float) -> float:
    """The seconds for which a publisher wants a message or a destination left alone, as far as that is obeyed."""
    return min(max(pause, 0.0), LONGEST_PAUSE) if pause == pause else 0.0


def judge(
    wave: Sequence[Queued], published: Sequence[PublishResult], rules: Rules, chance: Callable[[], float]
) -> PublishOutcome:
    """Decide how to go on with each message of a wave, by the broker's results; ``chance`` is random in [0, 1)."""
    verdict = nothing_yet()
    for queued, (status, said, pause) in zip(wave, published, strict=False):
        if status in (PublishStatus.ACKED, PublishStatus.DUPLICATE):
            verdict.gone.append(queued)
            if status is PublishStatus.DUPLICATE:
                verdict.duplicates.append(queued)
            continue
        error = fit_text(said)
        if status is PublishStatus.UNAVAILABLE:
            verdict.withdrawn.append(queued)
            verdict.away.append(error)
            continue
        if status is PublishStatus.STALLED:
            verdict.stalled.append(queued)
            verdict.withdrawn.append(queued)
            continue
        if status is PublishStatus.POSTPONED:
            verdict.delayed.append(Delay(queued, clip_pause(pause), error, counted=False))
            continue
        spent = status is PublishStatus.RETRYABLE and queued.finished + 1 >= rules.max_attempts
        if status is PublishStatus.REJECTED or spent:
            _give_up(verdict, queued, error, rules)
            continue
        rest = max(clip_pause(pause), rules.backoff.delay(queued.finished, chance()))
        verdict.delayed.append(Delay(queued, rest, error, counted=status is not PublishStatus.UNKNOWN))
    return verdict


def is_killer(queued: Queued, rules: Rules) -> bool:
    """Tell whether this message was begun so often without an end that it seems to take its relay down with it."""
    return queued.started - queued.finished >= rules.max_crashes


def _give_up(verdict: PublishOutcome, queued: Queued, error: str, rules: Rules) -> None:
    if rules.on_dead is OnDead.PARK:
        verdict.delayed.append(Delay(queued, None, error))
    else:
        verdict.dead.append(Death(queued, error))
