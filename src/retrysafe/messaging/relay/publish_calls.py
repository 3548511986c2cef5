"""Calling a publisher: a publisher that fails takes no relay with it, and a message that it refuses takes no other.

A publisher that raises `ConfigurationError` has published nothing. What it cannot do may concern one message, such as
one of a topic that it has no route for, or all of them, such as when it is used on a foreign event loop. So what was
refused together is published in halves, until it is known which messages are refused alone. They wait, and spend no
attempt: a person has to change the publisher. If it refuses everything, it takes no messages at all.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Generator, Sequence
from typing import Any, TypeAlias, cast

from retrysafe.cancellation import is_failure
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.exception_groups import every, leaves
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus, Queued
from retrysafe.protocol.publish_policy import check_results

HELD = 30.0
"""Seconds for which a message waits that a publisher refuses when it is published alone."""
_UNTRIED = 1.0
"""Seconds for which those wait that were refused together, and of which more are tried then."""
_MOST_REFUSED = 8
"""The number of messages refused alone, before a refused group is no longer halved, except for topics."""

_Answer: TypeAlias = "Sequence[PublishResult] | ConfigurationError"


class PublishRefusal(PublishResult):
    """The result of a message for which a publisher has raised `ConfigurationError`."""

    __slots__ = ()


class PublishCalls:
    def __init__(self, publisher: Any, within: float) -> None:
        self._publisher, self._within = publisher, within
        self.works = False
        """True if it has done something in this run, instead of refusing it."""

    def publish(self, wave: Sequence[Queued]) -> Sequence[PublishResult]:
        """Publish a wave, and say of each message how it was taken."""
        answer = self._call(wave)
        if not isinstance(answer, ConfigurationError):
            self.works = True
            return answer
        parts = self._in_parts(wave)
        next(parts)
        try:
            while True:
                answer = self._call(parts.send(answer))
        except StopIteration as ended:
            said: Sequence[PublishResult] = ended.value
            return said

    async def apublish(self, wave: Sequence[Queued]) -> Sequence[PublishResult]:
        """`publish` for async code; results that do not come in time are unknown."""
        answer = await self._acall(wave)
        if not isinstance(answer, ConfigurationError):
            self.works = True
            return answer
        parts = self._in_parts(wave)
        next(parts)
        try:
            while True:
                answer = await self._acall(parts.send(answer))
        except StopIteration as ended:
            said: Sequence[PublishResult] = ended.value
            return said

    def _in_parts(self, wave: Sequence[Queued]) -> Generator[Sequence[Queued], _Answer, list[PublishResult]]:
        """Yield what to publish, beginning with all, and take what came of it; return what is said of the wave."""
        left: list[Sequence[int]] = [range(len(wave))]
        refused = 0
        said: dict[int, PublishResult] = {}
        while left:
            part = left.pop()
            answer = yield [wave[at] for at in part]
            if not isinstance(answer, ConfigurationError):
                self.works = True
                said.update(zip(part, answer, strict=True))
            elif len(part) > 1 and (refused < _MOST_REFUSED or (self.works and len(_topics(wave, part)) > 1)):
                left += _halves(wave, part)
            else:
                refused += 1
                error = answer.detail or str(answer)
                pause = HELD if len(part) == 1 else _UNTRIED
                said.update(dict.fromkeys(part, PublishRefusal(PublishStatus.POSTPONED, error, pause)))
        return [said[at] for at in range(len(wave))]

    def _call(self, wave: Sequence[Queued]) -> _Answer:
        try:
            return _receptions(wave, self._publisher.publish(_envelopes(wave)))
        except BaseException as error:
            if not is_failure(error):
                raise
            return _answer_of_failure(wave, error)

    async def _acall(self, wave: Sequence[Queued]) -> _Answer:
        try:
            async with asyncio.timeout(self._within):
                return _receptions(wave, await self._publisher.publish(_envelopes(wave)))
        except BaseException as error:
            if not is_failure(error):
                raise
            return _answer_of_failure(wave, error)


def _topics(wave: Sequence[Queued], part: Sequence[int]) -> set[str]:
    return {wave[at].envelope.topic for at in part}


def _halves(wave: Sequence[Queued], part: Sequence[int]) -> list[Sequence[int]]:
    """Topics apart, as far as there are several; at random, so that what is not refused is soon among what is tried."""
    topics = sorted(_topics(wave, part))
    if len(topics) > 1:
        half = set(random.sample(topics, len(topics) // 2))
        return [[at for at in part if (wave[at].envelope.topic in half) is taken] for taken in (True, False)]
    mixed = random.sample(part, len(part))
    return [mixed[len(part) // 2 :], mixed[: len(part) // 2]]


def _envelopes(wave: Sequence[Queued]) -> list[Envelope]:
    return [queued.envelope for queued in wave]


def _answer_of_failure(wave: Sequence[Queued], error: BaseException) -> _Answer:
    """Turn an error into an answer: every outcome is unknown, unless the error says that nothing was published."""
    found = leaves(error)
    if every(error, ConfigurationError):
        return cast("ConfigurationError", found[0])
    said = "; ".join(f"{type(one).__name__}: {one}" for one in found)
    return [PublishResult(PublishStatus.UNKNOWN, said)] * len(wave)


def _receptions(wave: Sequence[Queued], said: Sequence[PublishResult]) -> Sequence[PublishResult]:
    """Check the results of a publisher; raise if they are something else."""
    return [
        PublishResult(PublishStatus(one), str(error), float(pause)) for one, error, pause in check_results(wave, said)
    ]
