"""Our publishers pass the suite that is published, and publishers that are wrong do not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus
from retrysafe.testing.publishers import CASES, PublisherFeatures, Publishing
from tests.conftest import served
from tests.messaging.harnesses import PUBLISHINGS
from tests.tables import each_row

ACKED = PublishResult(PublishStatus.ACKED)


@pytest.mark.slow
@pytest.mark.every_value
@each_row("name", CASES)
@pytest.mark.parametrize("publishing", PUBLISHINGS)
async def test_ours(name: str, publishing: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    service, make = PUBLISHINGS[publishing]
    served(request, service)
    async with make(tmp_path) as made:
        await CASES[name](made)


# ---------------------------------------------------------------- wrong ones


LARGEST = 300_000


class Wrong(Publishing):
    """A broker in memory that can be away, and a publisher that does something wrong."""

    topic = "orders"
    elsewhere = "nowhere"
    beside = "mails"
    largest = LARGEST
    features = PublisherFeatures(reports_missing=True, duplicates=True)

    def __init__(self) -> None:
        self.publisher = self
        self.there: list[Envelope] = []
        self.away = self.full = False

    async def arrived(self) -> Sequence[Envelope]:
        return [one for one in self.there if one.topic == self.topic]

    async def stall(self) -> bool:
        self.full = True
        return True

    async def unstall(self) -> None:
        self.full = False

    async def cut(self) -> bool:
        self.away = True
        return True

    async def mend(self) -> None:
        self.away = False

    async def publish(self, *envelopes: Any) -> Any:
        if len(envelopes) == 1 and isinstance(envelopes[0], list):
            return [self.take(one) for one in envelopes[0]]
        return await Publishing.publish(self, *envelopes)

    def take(self, envelope: Envelope) -> PublishResult:
        if self.away:
            return PublishResult(PublishStatus.STALLED, "away")
        if self.full and envelope.topic == self.topic:
            return self.refused(envelope)
        if len(envelope.payload) > LARGEST:
            return PublishResult(PublishStatus.REJECTED, "too large")
        if envelope.topic == self.elsewhere:
            return PublishResult(PublishStatus.STALLED, "no such topic")
        if any((one.id, one.source) == (envelope.id, envelope.source) for one in self.there):
            return PublishResult(PublishStatus.DUPLICATE)
        self.there.append(self.stored(envelope))
        return ACKED

    def refused(self, envelope: Envelope) -> PublishResult:
        return PublishResult(PublishStatus.STALLED, "full")

    def stored(self, envelope: Envelope) -> Envelope:
        return envelope


class AcksWithoutSending(Wrong):
    def take(self, envelope: Envelope) -> PublishResult:
        return ACKED


class AcksWhenAway(Wrong):
    def take(self, envelope: Envelope) -> PublishResult:
        return ACKED if self.away else super().take(envelope)


class GivesUpWhenAway(Wrong):
    def take(self, envelope: Envelope) -> PublishResult:
        return PublishResult(PublishStatus.REJECTED, "away") if self.away else super().take(envelope)


class LosesTheMissing(Wrong):
    def take(self, envelope: Envelope) -> PublishResult:
        return ACKED if envelope.topic == "nowhere" else super().take(envelope)


class DropsHeaders(Wrong):
    def stored(self, envelope: Envelope) -> Envelope:
        return envelope._replace(headers={})


class MistakesBytesForText(Wrong):
    def stored(self, envelope: Envelope) -> Envelope:
        return envelope._replace(payload=envelope.payload.decode(errors="replace").encode())


class GivesNewIds(Wrong):
    def stored(self, envelope: Envelope) -> Envelope:
        return envelope._replace(id=f"{envelope.id}-{len(self.there)}")


class ForgetsTheSource(Wrong):
    def take(self, envelope: Envelope) -> PublishResult:
        if any(one.id == envelope.id for one in self.there):
            return PublishResult(PublishStatus.DUPLICATE)
        return super().take(envelope)


class Reverses(Wrong):
    async def publish(self, *envelopes: Any) -> Any:
        if len(envelopes) == 1 and isinstance(envelopes[0], list):
            return [self.take(one) for one in reversed(envelopes[0])][::-1]
        return await super().publish(*envelopes)


class SaysTooLittle(Wrong):
    async def publish(self, *envelopes: Any) -> Any:
        said = await super().publish(*envelopes)
        return said[:1] if len(envelopes) == 1 and isinstance(envelopes[0], list) else said


class TakesDuplicatesForNew(Wrong):
    def take(self, envelope: Envelope) -> PublishResult:
        self.there.append(envelope)
        return ACKED


class BlamesMessagesForAFullQueue(Wrong):
    def refused(self, envelope: Envelope) -> PublishResult:
        return PublishResult(PublishStatus.RETRYABLE, "full")


class SaysNumbersOfMessages(Wrong):
    def refused(self, envelope: Envelope) -> PublishResult:
        return PublishResult(PublishStatus.STALLED, f"{envelope.id}: full")


class StallsWithAnother(Wrong):
    def take(self, envelope: Envelope) -> PublishResult:
        return self.refused(envelope) if self.full else super().take(envelope)


class BlamesAllForASize(Wrong):
    async def publish(self, *envelopes: Any) -> Any:
        said = await super().publish(*envelopes)
        if len(envelopes) == 1 and any(one.status is PublishStatus.REJECTED for one in said):
            return [PublishResult(PublishStatus.REJECTED, "too large")] * len(said)
        return said


WRONG = {
    BlamesMessagesForAFullQueue: "a_destination_that_takes_nothing_blames_no_message",
    SaysNumbersOfMessages: "a_destination_that_takes_nothing_blames_no_message",
    StallsWithAnother: "a_destination_that_takes_nothing_keeps_no_other",
    BlamesAllForASize: "what_is_too_large_is_refused_alone",
    AcksWithoutSending: "what_is_acked_has_arrived",
    AcksWhenAway: "a_broker_that_is_away_is_told_and_nothing_is_lost",
    GivesUpWhenAway: "a_broker_that_is_away_is_told_and_nothing_is_lost",
    LosesTheMissing: "what_nothing_takes_is_told_and_keeps_no_other",
    DropsHeaders: "what_arrives_is_whole",
    MistakesBytesForText: "what_arrives_is_whole",
    GivesNewIds: "a_message_that_comes_again_is_taken_again_or_recognised",
    ForgetsTheSource: "another_source_may_use_the_same_id",
    Reverses: "the_order_within_a_call_is_kept",
    SaysTooLittle: "what_is_acked_has_arrived",
    TakesDuplicatesForNew: "a_message_that_comes_again_is_taken_again_or_recognised",
}


@each_row("kind", WRONG, ids=lambda kind: kind.__name__)
async def test_a_wrong_publisher_is_caught(kind: type[Wrong]) -> None:
    with pytest.raises(AssertionError):
        await CASES[WRONG[kind]](kind())


@each_row("name", CASES)
async def test_the_broker_of_the_wrong_ones_is_right_by_itself(name: str) -> None:
    await CASES[name](Wrong())
